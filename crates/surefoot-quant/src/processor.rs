//! How far this processor's instructions may be used: the environment variable `SUREFOOT_CPU`.
//!
//! `avx2` restricts the kernels of this crate and of `surefoot-kernels` to AVX2, FMA and F16C. `portable` restricts those of this crate to
//! what every processor has; `surefoot-kernels` has none of that sort, so `surefoot-ops` leaves its operations to Burn, whose own take what
//! they find. It serves to compare results and speed with another processor's. This is the only place that reads it.

use std::sync::OnceLock;

/// The most that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// All that the processor has.
    All,
    /// AVX2, FMA and F16C. Processors other than x86-64 have no such thing and use all that they have.
    Avx2,
    /// Nothing that was not there at compile time.
    Portable,
}

/// What `SUREFOOT_CPU` asks for; read once. A value that is not known is told on stderr and changes nothing.
pub fn most() -> Most {
    static MOST: OnceLock<Most> = OnceLock::new();
    *MOST.get_or_init(|| {
        let asked = std::env::var_os("SUREFOOT_CPU").unwrap_or_default();
        let asked = asked.to_string_lossy();
        parse(&asked).unwrap_or_else(|| {
            eprintln!("SUREFOOT_CPU={asked} is ignored: it may be `avx2`, `portable` or unset");
            Most::All
        })
    })
}

fn parse(asked: &str) -> Option<Most> {
    match asked {
        "" => Some(Most::All),
        "avx2" => Some(Most::Avx2),
        "portable" => Some(Most::Portable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_values_are_taken() {
        assert_eq!(parse(""), Some(Most::All));
        assert_eq!(parse("avx2"), Some(Most::Avx2));
        assert_eq!(parse("portable"), Some(Most::Portable));
        assert_eq!(parse("sse9"), None);
    }
}
