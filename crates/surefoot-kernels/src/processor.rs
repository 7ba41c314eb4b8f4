//! The instructions that the kernels here are run with.
//!
//! [`has_vectors`] is for callers: most kernels are written for vectors of 4, 8 or 16 numbers and know nothing else. `arch` is for the
//! kernels themselves. What one process uses never changes.

use std::sync::OnceLock;

use pulp::Arch;
use surefoot_quant::processor::{Most, most};

/// The best that this processor has and `SUREFOOT_CPU` allows.
#[inline]
pub(crate) fn arch() -> Arch {
    static ARCH: OnceLock<Arch> = OnceLock::new();
    *ARCH.get_or_init(|| restricted(Arch::new(), most()))
}

/// Whether there are vector instructions that the kernels know. Without them only [`math`](crate::math) and
/// [`paged_attention`](crate::paged_attention) may be called.
pub fn has_vectors() -> bool {
    !matches!(arch(), Arch::Scalar)
}

/// Stops where a kernel has no code for vectors of so many numbers: a caller has not asked [`has_vectors`].
#[cold]
pub(crate) fn no_kernel_for(lanes: usize) -> ! {
    panic!(
        "no kernel is written for vectors of {lanes} numbers: callers must ask has_vectors() first"
    )
}

fn restricted(best: Arch, most: Most) -> Arch {
    match most {
        Most::All => best,
        Most::Portable => Arch::Scalar,
        #[cfg(target_arch = "x86_64")]
        Most::Avx2 => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
        // Other processors have no AVX2 to be restricted to.
        #[cfg(not(target_arch = "x86_64"))]
        Most::Avx2 => best,
    }
}

/// All sorts of vector instructions that this processor has, for tests of kernels.
#[cfg(test)]
pub(crate) fn archs() -> Vec<Arch> {
    let best = Arch::new();
    let mut archs = vec![restricted(best, Most::Avx2), best];
    archs.dedup_by_key(|arch| format!("{arch:?}"));
    archs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole of this crate's unit tests once more, restricted to AVX2.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn all_tests_pass_with_avx2_alone() {
        const NAME: &str = "processor::tests::all_tests_pass_with_avx2_alone";
        if most() == Most::All {
            let tests = std::env::current_exe().unwrap();
            let run = std::process::Command::new(tests)
                .args(["--skip", NAME])
                .env("SUREFOOT_CPU", "avx2")
                .output()
                .unwrap();
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
            assert!(String::from_utf8_lossy(&run.stdout).contains("dense::tests"));
        }
    }

    /// The lane that runs these tests for ARM says that they must run with NEON, so that it can't pass without the kernels it is for.
    #[test]
    fn a_processor_that_should_have_neon_has_it() {
        struct Lanes;
        impl pulp::WithSimd for Lanes {
            type Output = usize;

            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        if std::env::var_os("SUREFOOT_REQUIRE_NEON").is_some() {
            assert!(has_vectors());
            assert_eq!(arch().dispatch(Lanes), 4, "{:?}", arch());
            assert_eq!(std::env::consts::ARCH, "aarch64");
        }
    }

    #[test]
    fn instructions_are_restricted_to_what_is_asked_for() {
        assert!(matches!(restricted(Arch::new(), Most::Portable), Arch::Scalar));
        #[cfg(target_arch = "x86_64")]
        assert!(matches!(restricted(Arch::new(), Most::Avx2), Arch::V3(_) | Arch::Scalar));
    }
}
