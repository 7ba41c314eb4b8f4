//! The instructions that the kernels here are run with.

use std::sync::OnceLock;

use pulp::Arch;
use surefoot_quant::processor::{Most, most};

/// The best that this processor has and `SUREFOOT_CPU` allows.
#[inline]
pub(crate) fn arch() -> Arch {
    static ARCH: OnceLock<Arch> = OnceLock::new();
    *ARCH.get_or_init(|| held(Arch::new(), most()))
}

/// Whether there are vector instructions that the kernels know.
pub(crate) fn has_vectors() -> bool {
    !matches!(arch(), Arch::Scalar)
}

fn held(best: Arch, most: Most) -> Arch {
    match most {
        Most::All => best,
        Most::Portable => Arch::Scalar,
        #[cfg(target_arch = "x86_64")]
        Most::Avx2 => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
        // Other processors have no AVX2 to be held to.
        #[cfg(not(target_arch = "x86_64"))]
        Most::Avx2 => best,
    }
}

/// All sorts of vector instructions that this processor has, for tests of kernels.
#[cfg(test)]
pub(crate) fn archs() -> Vec<Arch> {
    let best = Arch::new();
    let mut archs = vec![held(best, Most::Avx2), best];
    archs.dedup_by_key(|arch| format!("{arch:?}"));
    archs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole of this crate's unit tests once more, held to AVX2.
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
            assert!(String::from_utf8_lossy(&run.stdout).contains("attention::tests"));
        }
    }

    #[test]
    fn instructions_are_held_to_what_is_asked_for() {
        assert!(matches!(held(Arch::new(), Most::Portable), Arch::Scalar));
        #[cfg(target_arch = "x86_64")]
        assert!(matches!(held(Arch::new(), Most::Avx2), Arch::V3(_) | Arch::Scalar));
    }
}
