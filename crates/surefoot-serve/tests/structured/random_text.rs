//! Texts of random tokens under a constraint, from a vocabulary as models have them.

use serde_json::Value;
use surefoot_serve::structured::{Constraint, Format, FormatError, Matcher, Vocabulary};

/// The token that ends a text.
const END: u32 = 0;

/// A vocabulary, and the bytes of its tokens.
pub(crate) struct Tokens {
    bytes: Vec<Vec<u8>>,
    vocabulary: Vocabulary,
}

impl Tokens {
    pub(crate) fn new(words: &[&[u8]]) -> Self {
        let mut bytes: Vec<Vec<u8>> = vec![Vec::new()];
        bytes.extend(words.iter().map(|word| word.to_vec()));
        let known = bytes.clone();
        let vocabulary = Vocabulary::new(bytes.len(), move |id| {
            Some(known[id as usize].clone()).filter(|token| !token.is_empty())
        });
        Self { bytes, vocabulary: vocabulary.unwrap() }
    }

    /// All bytes, and some of what models have as one token.
    pub(crate) fn of_bytes_and_words() -> Self {
        let bytes: Vec<[u8; 1]> = (0..=255_u8).map(|byte| [byte]).collect();
        let mut words: Vec<&[u8]> = bytes.iter().map(<[u8; 1]>::as_slice).collect();
        for word in [
            "{\"", "\":", "\": ", "\",", "\", \"", "\"}", "}}", "]}", "[{", "[]", "{}", " \"",
            "true", "false", "null", "name", "age", "kind", "value", "children", "00", "12", "999",
            "0.5", "é", "ü", "日本", "\n ", "\\n", "\\\"", "ab", "abc", "the", " the", "red",
            "green",
        ] {
            words.push(word.as_bytes());
        }
        Self::new(&words)
    }

    pub(crate) fn constraint(&self, format: &Format) -> Result<Constraint, FormatError> {
        format.constraint(&self.vocabulary)
    }

    /// A text of random tokens, at most `room`, and whether it is complete.
    pub(crate) fn generated(
        &self,
        constraint: &Constraint,
        seed: u64,
        room: usize,
    ) -> (String, bool) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut matcher = Matcher::new(constraint);
        let mut bytes = Vec::new();
        for left in (1..=room).rev() {
            if matcher.has_ended() {
                break;
            }
            let mut logits = vec![0.0_f32; self.bytes.len()];
            if !matcher.restrict(&mut logits, &[END], left).unwrap() {
                break;
            }
            let allowed: Vec<u32> =
                (0..logits.len() as u32).filter(|id| logits[*id as usize] == 0.0).collect();
            let id = allowed[random.usize(..allowed.len())];
            if id == END {
                break;
            }
            assert!(matcher.accept(id).unwrap(), "a token that is allowed can come");
            bytes.extend_from_slice(&self.bytes[id as usize]);
        }
        let complete = matcher.is_complete();
        match String::from_utf8(bytes) {
            Ok(text) => (text, complete),
            Err(error) => {
                assert!(!complete, "a complete text is UTF-8: {error}");
                (String::new(), false)
            }
        }
    }

    /// Whether a text can come, byte by byte, and be all.
    pub(crate) fn admits(&self, constraint: &Constraint, text: &str) -> bool {
        let mut matcher = Matcher::new(constraint);
        text.bytes().all(|byte| matcher.accept(1 + u32::from(byte)).unwrap())
            && matcher.is_complete()
    }
}

/// A text as JSON; none if it is JSON with a number that is too large for 64 bits, such as `1e999`.
pub(crate) fn parsed(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.to_string().contains("number out of range"), "{error}: {text}");
            None
        }
    }
}
