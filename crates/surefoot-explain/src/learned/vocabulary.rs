//! The features that a model knows, as a table of fixed size: where each has its weights, and that others have none.
//!
//! A hash names a bucket of eight slots; a slot holds eight more bits of the hash (its fingerprint; 0 is an empty slot). So an n-gram that
//! training never saw is taken for a known one in 2 to 3 of 100 cases, and scores nothing in all others; in a table without fingerprints nearly
//! every one scores something, which cost 3 points of accuracy.

use std::borrow::Cow;

/// Slots of one bucket, whose fingerprints are compared in one go.
const WIDTH: usize = 8;
const BUCKETS: usize = 7_200;

/// How many features there is room for.
pub(super) const SLOTS: usize = BUCKETS * WIDTH;

/// The fingerprints of all slots.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Vocabulary {
    fingerprints: Cow<'static, [u8]>,
}

impl Vocabulary {
    /// One of these hashes, the most important first; what finds its bucket full is left out.
    pub(super) fn new(hashes: impl IntoIterator<Item = u64>) -> Self {
        let mut fingerprints = vec![0_u8; SLOTS];
        for hash in hashes {
            let (first, fingerprint) = place(hash);
            let bucket = &mut fingerprints[first..first + WIDTH];
            if !bucket.contains(&fingerprint)
                && let Some(free) = bucket.iter_mut().find(|slot| **slot == 0)
            {
                *free = fingerprint;
            }
        }
        Self { fingerprints: fingerprints.into() }
    }

    /// The vocabulary that `bytes` holds; `None` if they are not of its size.
    pub(super) fn from_bytes(bytes: Cow<'static, [u8]>) -> Option<Self> {
        (bytes.len() == SLOTS).then_some(Self { fingerprints: bytes })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.fingerprints
    }

    /// The slot of a feature, if it is known.
    pub(super) fn find(&self, hash: u64) -> Option<usize> {
        const LOW: u64 = 0x0101_0101_0101_0101;
        let (first, fingerprint) = place(hash);
        let bucket: [u8; WIDTH] = self.fingerprints[first..first + WIDTH].try_into().ok()?;
        // The lowest byte of the difference that is zero: the slot with the fingerprint.
        let difference = u64::from_le_bytes(bucket) ^ (LOW * u64::from(fingerprint));
        let zeros = difference.wrapping_sub(LOW) & !difference & (LOW << 7);
        (zeros != 0).then(|| first + zeros.trailing_zeros() as usize / 8)
    }
}

/// The first slot of the hash's bucket, and its fingerprint.
fn place(hash: u64) -> (usize, u8) {
    let bucket = (((hash >> 32) * BUCKETS as u64) >> 32) as usize;
    (bucket * WIDTH, (hash as u8).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes_are_found_where_they_were_put_and_others_hardly_ever() {
        let mut random = fastrand::Rng::with_seed(5);
        let known: Vec<u64> = (0..40_000).map(|_| random.u64(..)).collect();
        let vocabulary = Vocabulary::new(known.iter().copied());
        let found: std::collections::HashSet<usize> =
            known.iter().filter_map(|&hash| vocabulary.find(hash)).collect();
        assert!(found.len() > 38_000, "{}", found.len());
        let taken = (0..40_000).filter(|_| vocabulary.find(random.u64(..)).is_some()).count();
        assert!(taken < 1_500, "{taken}");
    }

    #[test]
    fn bytes_of_another_size_are_refused() {
        let vocabulary = Vocabulary::new([3, 1 << 40]);
        let bytes = vocabulary.as_bytes().to_vec();
        assert_eq!(Vocabulary::from_bytes(bytes.clone().into()).as_ref(), Some(&vocabulary));
        assert!(Vocabulary::from_bytes(bytes[1..].to_vec().into()).is_none());
    }
}
