//! From a text to hashed features: character 3- to 5-grams and word 1- to 3-grams.
//!
//! Training and scoring share this code, so a change here needs new weights. Letters become
//! lower case, every number becomes `0`, white space becomes one space; stack frames are left out,
//! since they name the user's files and not the fault. Each feature counts once per text (`vocabulary`).

use std::ops::Range;

/// Of a longer text the end is read: it is where the error is.
const LONGEST: usize = 1200;

/// The two families of features. Each counts the same in a text, though n-grams of characters are
/// ten times as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Characters,
    Words,
}

impl Family {
    pub(super) const COUNT: usize = 2;
}

/// A text as the model reads it, and where each of its bytes comes from.
pub(super) struct Normalised {
    pub(super) bytes: Vec<u8>,
    /// The place of each byte in the original text.
    pub(super) from: Vec<u32>,
}

impl Normalised {
    pub(super) fn new(text: &str) -> Self {
        let room = text.len().min(4 * LONGEST) + 2;
        let mut this = Self { bytes: Vec::with_capacity(room), from: Vec::with_capacity(room) };
        this.push(b' ', 0);
        let from = text.ceil_char_boundary(text.len().saturating_sub(4 * LONGEST));
        let mut place = from;
        let mut code_of_frame = false;
        for line in text[from..].split_inclusive('\n') {
            let inner = line.trim_start();
            let frame = inner.starts_with("File \"") || inner.starts_with("Traceback (most recent");
            if !(frame || code_of_frame && line.starts_with("    ")) {
                this.push_line(line, place);
            }
            code_of_frame = frame;
            place += line.len();
        }
        this.push(b' ', text.len());
        let over = this.bytes.len().saturating_sub(LONGEST);
        this.bytes.drain(..over);
        this.from.drain(..over);
        this
    }

    fn push_line(&mut self, line: &str, place: usize) {
        for (at, byte) in line.bytes().enumerate() {
            let byte = match byte {
                b'0'..=b'9' => b'0',
                byte if byte.is_ascii_whitespace() => b' ',
                byte => byte.to_ascii_lowercase(),
            };
            let repeated = matches!(byte, b' ' | b'0') && self.bytes.last() == Some(&byte);
            if !repeated {
                self.push(byte, place + at);
            }
        }
    }

    fn push(&mut self, byte: u8, place: usize) {
        if byte != b' ' || self.bytes.last() != Some(&b' ') {
            self.bytes.push(byte);
            self.from.push(place as u32);
        }
    }

    /// The words, as ranges of `bytes`.
    pub(super) fn words(&self) -> Vec<Range<usize>> {
        let in_word = |byte: u8| byte.is_ascii_alphanumeric() || byte >= 0x80;
        let mut words = Vec::new();
        let mut start = None;
        for (at, &byte) in self.bytes.iter().enumerate() {
            match (start, in_word(byte)) {
                (None, true) => start = Some(at),
                (Some(from), false) => {
                    words.push(from..at);
                    start = None;
                }
                _ => {}
            }
        }
        words.extend(start.map(|from| from..self.bytes.len()));
        words
    }

    /// Calls `visit` with the family, the hash and the span of every feature, as often as it occurs.
    pub(super) fn features(&self, mut visit: impl FnMut(Family, u64, Range<usize>)) {
        for start in 0..self.bytes.len() {
            let mut hash = CHARACTERS;
            for (length, &byte) in (1..=5).zip(&self.bytes[start..]) {
                hash = extend(hash, u64::from(byte));
                if length >= 3 {
                    visit(Family::Characters, mix(hash), start..start + length);
                }
            }
        }
        let words = self.words();
        let hashes: Vec<u64> = words
            .iter()
            .map(|word| self.bytes[word.clone()].iter().fold(WORDS, |h, &b| extend(h, b.into())))
            .collect();
        for start in 0..words.len() {
            let mut hash = WORDS;
            for (word, &next) in words[start..].iter().zip(&hashes[start..]).take(3) {
                hash = extend(hash, next);
                visit(Family::Words, mix(hash), words[start].start..word.end);
            }
        }
    }
}

/// Different beginnings, so that a word and the same letters as an n-gram are two features.
const CHARACTERS: u64 = 0xcbf2_9ce4_8422_2325;
const WORDS: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of FNV-1a, by hand: weights that were trained are found by these hashes, so they may never change.
fn extend(hash: u64, next: u64) -> u64 {
    (hash ^ next).wrapping_mul(0x0100_0000_01b3)
}

/// Spreads the low bits, which FNV mixes well, over the high ones, which choose a place in the vocabulary.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(text: &str) -> Vec<u64> {
        let mut hashes = Vec::new();
        Normalised::new(text).features(|_, hash, _| hashes.push(hash));
        hashes
    }

    #[test]
    fn case_numbers_spaces_and_frames_make_no_difference() {
        let plain = hashes("tried to allocate 20 gib");
        assert_eq!(plain, hashes("Tried to  allocate 4096\tGiB"));
        assert_eq!(
            plain,
            hashes(
                "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    g(x)\nTried to allocate 1 GiB"
            )
        );
        assert_ne!(plain, hashes("tried to allocate 20 mib"));
    }

    #[test]
    fn there_is_a_feature_for_each_n_gram() {
        // 15 bytes with the spaces around: 13 + 12 + 11 n-grams, and 3 + 2 + 1 of words.
        assert_eq!(hashes("out of memory").len(), 13 + 12 + 11 + 6);
    }

    #[test]
    fn the_end_of_a_long_text_is_read() {
        let text = "x".repeat(100_000) + " the end";
        let read = Normalised::new(&text);
        assert!(read.bytes.len() <= LONGEST && read.bytes.ends_with(b"the end "));
        assert_eq!(read.from.len(), read.bytes.len());
    }
}
