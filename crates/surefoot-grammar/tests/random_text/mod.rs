//! Texts of random tokens under a constraint, from a vocabulary as models have them.

use std::sync::Arc;

use surefoot_grammar::{Constraint, Matcher, Vocabulary};

/// The token that ends a text.
pub(crate) const END: u32 = 0;

/// All bytes, and some of what models have as one token.
pub(crate) fn vocabulary() -> Arc<Vocabulary> {
    let mut tokens: Vec<Vec<u8>> = vec![Vec::new()];
    tokens.extend((0..=255_u8).map(|byte| vec![byte]));
    for word in [
        "{\"", "\":", "\": ", "\",", "\", \"", "\"}", "}}", "]}", "[{", "[]", "{}", " \"", "true",
        "false", "null", "name", "age", "kind", "value", "children", "00", "12", "999", "0.5", "é",
        "ü", "日本", "\n ", "\\n", "\\\"", "ab", "abc", "the", " the", "red", "green",
    ] {
        tokens.push(word.as_bytes().to_vec());
    }
    let size = tokens.len();
    Arc::new(Vocabulary::new(size, move |id| {
        Some(tokens[id as usize].clone()).filter(|t| !t.is_empty())
    }))
}

/// A text of random tokens, of at most `room`.
pub(crate) fn generated(
    constraint: &Arc<Constraint>,
    vocabulary: &Vocabulary,
    seed: u64,
    room: usize,
) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut matcher = Matcher::new(Arc::clone(constraint));
    let mut bytes = Vec::new();
    for left in (1..=room).rev() {
        if matcher.has_ended() {
            break;
        }
        let mut logits = vec![0.0_f32; vocabulary.size()];
        matcher.restrict(&mut logits, &[END], left).unwrap();
        let allowed: Vec<u32> =
            (0..logits.len() as u32).filter(|id| logits[*id as usize] == 0.0).collect();
        let id = allowed[random.usize(..allowed.len())];
        if id == END {
            break;
        }
        assert!(matcher.accept(id).unwrap(), "a token that is allowed can come");
        bytes.extend_from_slice(vocabulary.bytes(id));
    }
    assert!(matcher.is_complete(), "unfinished: {}", String::from_utf8_lossy(&bytes));
    String::from_utf8(bytes).unwrap()
}

/// Whether a text can come, byte by byte, and be all.
pub(crate) fn admits(constraint: &Arc<Constraint>, text: &str) -> bool {
    let mut matcher = Matcher::new(Arc::clone(constraint));
    text.bytes().all(|byte| matcher.accept(1 + u32::from(byte)).unwrap()) && matcher.is_complete()
}
