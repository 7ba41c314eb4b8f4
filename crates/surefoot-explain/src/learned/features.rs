//! From a text to hashed features: character 3- to 5-grams and word 1- to 3-grams.
//!
//! Training and scoring share this code, so a change here needs new weights. Letters become
//! lower case, every number becomes `0`, white space becomes one space; stack frames are left out,
//! since they name the user's files and not the fault. Each feature counts once per text.

use std::ops::Range;

/// How many rows a model has. A multiply maps a hash onto it, so it need not be a power of two.
pub(super) const BUCKETS: usize = 60_000;

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

    /// Calls `visit` with the family, the bucket and the span of every feature, each bucket once.
    pub(super) fn features(&self, mut visit: impl FnMut(Family, usize, Range<usize>)) {
        let mut seen = [0_u64; BUCKETS.div_ceil(64)];
        let mut once = |family: Family, hash: u64, span: Range<usize>| {
            let bucket = (((hash >> 32) * BUCKETS as u64) >> 32) as usize;
            let bit = 1 << (bucket % 64);
            if seen[bucket / 64] & bit == 0 {
                seen[bucket / 64] |= bit;
                visit(family, bucket, span);
            }
        };
        for start in 0..self.bytes.len() {
            let mut hash = CHARACTERS;
            for (length, &byte) in (1..=5).zip(&self.bytes[start..]) {
                hash = extend(hash, u64::from(byte));
                if length >= 3 {
                    once(Family::Characters, mix(hash), start..start + length);
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
                once(Family::Words, mix(hash), words[start].start..word.end);
            }
        }
    }
}

/// Different beginnings, so that a word and the same letters as an n-gram are two features.
const CHARACTERS: u64 = 0xcbf2_9ce4_8422_2325;
const WORDS: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of FNV-1a.
fn extend(hash: u64, next: u64) -> u64 {
    (hash ^ next).wrapping_mul(0x0100_0000_01b3)
}

/// Spreads the low bits, which FNV mixes well, over the high ones, which choose the bucket.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(text: &str) -> Vec<usize> {
        let mut buckets = Vec::new();
        Normalised::new(text).features(|_, bucket, _| buckets.push(bucket));
        buckets
    }

    #[test]
    fn case_numbers_spaces_and_frames_make_no_difference() {
        let plain = buckets("tried to allocate 20 gib");
        assert_eq!(plain, buckets("Tried to  allocate 4096\tGiB"));
        assert_eq!(
            plain,
            buckets(
                "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    g(x)\nTried to allocate 1 GiB"
            )
        );
        assert_ne!(plain, buckets("tried to allocate 20 mib"));
    }

    #[test]
    fn each_feature_counts_once_and_stays_in_the_table() {
        let once = buckets("out of memory");
        let mut unique = once.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), once.len());
        assert!(once.iter().all(|&bucket| bucket < BUCKETS));
        // 15 bytes with the spaces around: 13 + 12 + 11 n-grams, and 3 + 2 + 1 of words.
        assert_eq!(once.len(), 13 + 12 + 11 + 6);
    }

    #[test]
    fn the_end_of_a_long_text_is_read() {
        let text = "x".repeat(100_000) + " the end";
        let read = Normalised::new(&text);
        assert!(read.bytes.len() <= LONGEST && read.bytes.ends_with(b"the end "));
        assert_eq!(read.from.len(), read.bytes.len());
    }
}
