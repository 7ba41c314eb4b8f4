//! The tokens of a model as bytes, in the order of a walk over their common beginnings.

/// The tokens of a model as bytes.
#[derive(Debug)]
pub struct Vocabulary {
    /// Sorted by their bytes.
    tokens: Vec<Token>,
    /// How many ids there are.
    size: usize,
    bytes: Vec<Vec<u8>>,
    /// Bytes that have a token of their own.
    spellable: Box<[bool; 256]>,
}

#[derive(Debug)]
struct Token {
    id: u32,
    /// How many bytes it has in common with the one before.
    common: usize,
}

impl Vocabulary {
    /// The vocabulary of a model with `size` tokens, of which `bytes` says what each stands for; none
    /// for tokens that have no text, such as those that end a text.
    pub fn new(size: usize, bytes: impl Fn(u32) -> Option<Vec<u8>>) -> Self {
        let all: Vec<Vec<u8>> = (0..size as u32).map(|id| bytes(id).unwrap_or_default()).collect();
        let mut ids: Vec<u32> =
            (0..size as u32).filter(|id| !all[*id as usize].is_empty()).collect();
        ids.sort_by(|a, b| all[*a as usize].cmp(&all[*b as usize]));
        let mut spellable = Box::new([false; 256]);
        let mut tokens = Vec::with_capacity(ids.len());
        let mut before: &[u8] = &[];
        for id in ids {
            let token = &all[id as usize];
            if let [byte] = token.as_slice() {
                spellable[usize::from(*byte)] = true;
            }
            let common = before.iter().zip(token).take_while(|(a, b)| a == b).count();
            tokens.push(Token { id, common });
            before = token;
        }
        Self { tokens, size, bytes: all, spellable }
    }

    /// How many token ids there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The bytes of a token; none if it has no text.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// Which bytes have a token of their own. Texts of other bytes are not generated under a
    /// constraint: the next token for them might not exist.
    pub(crate) fn spellable(&self) -> &[bool; 256] {
        &self.spellable
    }

    /// Walks all tokens from `start`: `step` gives the state behind a byte, none if there is no way on,
    /// and `reached` is told each token that leads to a state.
    pub(crate) fn walk<S: Copy, E>(
        &self,
        start: S,
        mut step: impl FnMut(S, u8) -> Result<Option<S>, E>,
        mut reached: impl FnMut(u32, S),
    ) -> Result<(), E> {
        let mut path = vec![start];
        // The length of the beginning that has no way on; tokens that share it are passed over.
        let mut dead = usize::MAX;
        for token in &self.tokens {
            if token.common >= dead {
                continue;
            }
            dead = usize::MAX;
            path.truncate(token.common + 1);
            let bytes = &self.bytes[token.id as usize];
            for (at, &byte) in bytes.iter().enumerate().skip(token.common) {
                match step(path[at], byte)? {
                    Some(state) => path.push(state),
                    None => {
                        dead = at + 1;
                        break;
                    }
                }
            }
            if dead == usize::MAX {
                reached(token.id, path[bytes.len()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_reaches_what_byte_for_byte_is_reached_and_steps_once_for_common_beginnings() {
        let words = ["", "a", "ab", "abc", "abd", "b", "ba", "x", "ab"];
        let vocabulary =
            Vocabulary::new(words.len(), |id| Some(words[id as usize].as_bytes().to_vec()));
        let mut steps = 0;
        let mut reached = Vec::new();
        // No "c", and nothing behind "b" at the start.
        vocabulary
            .walk::<_, ()>(
                0_usize,
                |depth, byte| {
                    steps += 1;
                    Ok((byte != b'c' && byte != b'x' && !(byte == b'a' && depth == 1))
                        .then_some(depth + 1))
                },
                |id, depth| reached.push((words[id as usize], depth)),
            )
            .unwrap();
        reached.sort_unstable();
        assert_eq!(reached, [("a", 1), ("ab", 2), ("ab", 2), ("abd", 3), ("b", 1)]);
        assert_eq!(steps, 7, "a, b, c, d, b, a, x");
        assert!(vocabulary.spellable()[usize::from(b'x')]);
        assert!(!vocabulary.spellable()[usize::from(b'c')]);
    }
}
