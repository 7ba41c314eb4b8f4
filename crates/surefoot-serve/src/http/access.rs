//! Access control: API keys, compared in constant time.

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};

/// Longer keys are refused when they are read.
const LONGEST: usize = 256;

/// The keys of a server; without any, everyone may ask.
#[derive(Clone, Default)]
pub struct Keys(Vec<Padded>);

/// A key in a box that is the same size for all.
#[derive(Clone)]
struct Padded {
    bytes: [u8; LONGEST],
    length: u64,
}

/// A text that holds no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableKeys {
    /// There is none.
    #[error("there is no key in it")]
    None,
    /// One is too long, or not of visible ASCII.
    #[error("line {0} is not a key: keys are up to {LONGEST} visible ASCII characters")]
    Line(usize),
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Padded {
    fn new(key: &[u8]) -> Self {
        let mut bytes = [0; LONGEST];
        let length = key.len().min(LONGEST);
        bytes[..length].copy_from_slice(&key[..length]);
        Self { bytes, length: key.len() as u64 }
    }

    fn is(&self, other: &Self) -> Choice {
        self.bytes.ct_eq(&other.bytes) & self.length.ct_eq(&other.length)
    }
}

impl Keys {
    /// One key a line; empty lines are skipped.
    pub fn read(text: &str) -> Result<Self, UnusableKeys> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let key = line.trim();
            if key.is_empty() {
                continue;
            }
            if key.len() > LONGEST || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(UnusableKeys::Line(number + 1));
            }
            keys.push(Padded::new(key.as_bytes()));
        }
        if keys.is_empty() { Err(UnusableKeys::None) } else { Ok(Self(keys)) }
    }

    /// Whether everyone may ask.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the bearer of these headers may ask.
    pub(super) fn allow(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let given = Padded::new(given.and_then(bearer).unwrap_or_default());
        // All keys are compared, whichever fits.
        let any = self.0.iter().fold(Choice::from(0), |any, key| any | key.is(&given));
        any.into()
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn only_a_bearer_of_one_of_the_keys_may_ask() {
        let keys = Keys::read("sk-one\n\n  sk-two \n").unwrap();
        for good in ["Bearer sk-one", "bearer  sk-two"] {
            assert!(keys.allow(&with(good)), "{good}");
        }
        let longer = format!("Bearer sk-one{}", "\t".repeat(0) + &"x".repeat(300));
        for bad in [
            "Bearer sk-on",
            "Bearer sk-onee",
            "Bearer ",
            "Bearer",
            "sk-one",
            "Basic sk-one",
            &longer,
        ] {
            assert!(!keys.allow(&with(bad)), "{bad}");
        }
        assert!(!keys.allow(&HeaderMap::new()));
        assert!(Keys::default().allow(&HeaderMap::new()));
        assert_eq!(format!("{keys:?}"), "2 keys", "keys are not printed");
    }

    #[test]
    fn what_is_no_key_is_refused_when_it_is_read() {
        assert_eq!(Keys::read(" \n").unwrap_err(), UnusableKeys::None);
        assert_eq!(Keys::read("a\nb c").unwrap_err(), UnusableKeys::Line(2));
        assert_eq!(Keys::read(&"x".repeat(257)).unwrap_err(), UnusableKeys::Line(1));
        assert!(Keys::read(&"x".repeat(256)).is_ok());
    }
}
