//! Random numbers that follow from a key: the extendable output of keyed BLAKE3.
//!
//! Challenges, projections and samples are made from these streams, and fingerprints in files rest
//! on them, so the numbers are part of the file format. That is why this is not a generator of the
//! `rand` crate, whose algorithms may change between versions.

use blake3::OutputReader;

/// An endless stream of random numbers.
pub struct KeyedStream {
    reader: OutputReader,
}

impl KeyedStream {
    /// The stream of `key` for the purpose that `words` name.
    pub fn new(key: &[u8; 32], words: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key);
        for word in words {
            // With their lengths, so that no two lists of words run together.
            hasher.update(&(word.len() as u64).to_le_bytes());
            hasher.update(word);
        }
        Self { reader: hasher.finalize_xof() }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.reader.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The last incomplete range is rejected: it would favour small numbers.
        let fair = u64::MAX - u64::MAX % end;
        loop {
            let number = self.next_u64();
            if number < fair {
                return number % end;
            }
        }
    }

    /// `count` times 1 or -1.
    pub fn signs(&mut self, count: usize) -> Vec<f32> {
        let words: Vec<u64> = (0..count.div_ceil(64)).map(|_| self.next_u64()).collect();
        (0..count).map(|at| if words[at / 64] >> (at % 64) & 1 == 1 { 1.0 } else { -1.0 }).collect()
    }
}

/// A public key, derived from a sentence.
pub fn public_key(sentence: &str) -> [u8; 32] {
    blake3::derive_key("surefoot 2026-11 public key from a sentence", sentence.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart_by_key_and_by_where_words_end() {
        let first = |key: u8, words: &[&[u8]]| KeyedStream::new(&[key; 32], words).next_u64();
        let one = first(1, &[b"ab", b"c"]);
        assert_eq!(one, first(1, &[b"ab", b"c"]));
        assert_ne!(one, first(2, &[b"ab", b"c"]));
        assert_ne!(one, first(1, &[b"a", b"bc"]));
    }

    #[test]
    fn numbers_below_an_end_reach_all_of_it() {
        let mut stream = KeyedStream::new(&[3; 32], &[]);
        let mut seen = [0_usize; 7];
        for _ in 0..7000 {
            seen[stream.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
    }

    #[test]
    fn signs_are_balanced() {
        let sum: f32 = KeyedStream::new(&[4; 32], &[]).signs(10_000).iter().sum();
        assert!(sum.abs() < 400.0, "{sum}");
    }
}
