//! What an answer has besides what the model says: its name, its time, and the random seed where the client gives none.
//!
//! A [gateway](super::gateway) chooses them and sends them in a header, so that a request which it sends again to another
//! process gets the same answer to the byte. They are also taken from a client, whose own answers alone they are about.

use std::hash::{BuildHasher, RandomState};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::now;

/// The header from a gateway to the process that answers.
const HEADER: HeaderName = HeaderName::from_static("x-surefoot-answer");
/// The longest number of an answer.
const LONGEST: usize = 32;

/// What an answer has besides what the model says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnswerIdentity {
    /// Hexadecimal digits, unique on this server.
    number: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// The random seed of a request that gives none.
    pub(super) seed: u64,
}

impl AnswerIdentity {
    /// That of a request: what its headers say, or a new one with this number.
    pub(super) fn of_request(headers: &HeaderMap, number: impl FnOnce() -> String) -> Self {
        Self::parse(headers).unwrap_or_else(|| Self {
            number: number(),
            created: now(),
            seed: RandomState::new().hash_one(0_u8),
        })
    }

    fn parse(headers: &HeaderMap) -> Option<Self> {
        let mut parts = headers.get(HEADER)?.to_str().ok()?.split('.');
        let number = parts.next()?;
        let is_number = |digit: char| digit.is_ascii_digit() || ('a'..='f').contains(&digit);
        let identity = Self {
            number: number.to_owned(),
            created: parts.next()?.parse().ok()?,
            seed: parts.next()?.parse().ok()?,
        };
        let is_valid = (1..=LONGEST).contains(&number.len()) && number.chars().all(is_number);
        (is_valid && parts.next().is_none()).then_some(identity)
    }

    /// Sends it along with a request.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let value = format!("{}.{}.{}", self.number, self.created, self.seed);
        // Digits and points are a header's value.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HEADER, value);
        }
    }

    /// The name of the answer.
    pub(super) fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: &str) -> AnswerIdentity {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_str(value).unwrap());
        AnswerIdentity::of_request(&headers, || "7".to_owned())
    }

    #[test]
    fn what_a_gateway_chose_is_taken_as_it_is() {
        let chosen = AnswerIdentity::of_request(&HeaderMap::new(), || "1f".to_owned());
        let mut headers = HeaderMap::new();
        chosen.write(&mut headers);
        assert_eq!(AnswerIdentity::of_request(&headers, || "2".to_owned()), chosen);
        assert_eq!(chosen.id("cmpl"), "cmpl-1f");
        let given = with("ab12.99.18446744073709551615");
        assert_eq!((given.id("x"), given.created, given.seed), ("x-ab12".to_owned(), 99, u64::MAX));
    }

    #[test]
    fn requests_without_one_get_different_seeds_and_nonsense_is_ignored() {
        let new = || AnswerIdentity::of_request(&HeaderMap::new(), || "7".to_owned());
        assert_ne!(new().seed, new().seed);
        let long = format!("{}.1.1", "a".repeat(LONGEST + 1));
        for nonsense in ["", "1", "1.2", "1.2.3.4", "X.2.3", "1.-2.3", ".2.3", "a b.2.3", &long] {
            assert_eq!(with(nonsense).id("x"), "x-7", "{nonsense}");
        }
    }
}
