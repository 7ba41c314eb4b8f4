//! Hamming distance, at the speed of memory.
//!
//! What the processor has for counting bits, in vectors or one word at a time, is found when the
//! program runs; the loop is plain so that the compiler can use it.

use pulp::Arch;
use rayon::prelude::*;

/// The number of bits in which two vectors of equal length differ.
pub fn distance(a: &[u64], b: &[u64]) -> u32 {
    Arch::new().dispatch(|| differing(a, b))
}

#[inline(always)]
fn differing(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

/// The distance of `query` to each vector of `library`, which lie one after the other.
pub fn distances(query: &[u64], library: &[u64]) -> Vec<u32> {
    /// Vectors that one thread takes at a time.
    const SHARE: usize = 512;
    if query.is_empty() {
        return Vec::new();
    }
    let arch = Arch::new();
    let share = |(some, counts): (&[u64], &mut [u32])| {
        arch.dispatch(|| {
            for (vector, count) in some.chunks_exact(query.len()).zip(counts) {
                *count = differing(query, vector);
            }
        });
    };
    let mut counts = vec![0; library.len() / query.len()];
    library.par_chunks(query.len() * SHARE).zip(counts.par_chunks_mut(SHARE)).for_each(share);
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plainly(a: &[u64], b: &[u64]) -> u32 {
        a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
    }

    proptest! {
        #[test]
        fn distances_are_what_counting_bits_gives(
            pairs in prop::collection::vec(any::<(u64, u64)>(), 0..200),
        ) {
            let (a, b): (Vec<u64>, Vec<u64>) = pairs.into_iter().unzip();
            prop_assert_eq!(distance(&a, &b), plainly(&a, &b));
            prop_assert_eq!(distance(&a, &a), 0);
        }
    }

    #[test]
    fn a_library_is_measured_vector_by_vector() {
        let library: Vec<u64> =
            (0..16_u64 * 1500).map(|x| x.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let query: Vec<u64> = (0..16).map(|x| x * 77).collect();
        let expected: Vec<u32> = library.chunks(16).map(|some| plainly(&query, some)).collect();
        assert_eq!(distances(&query, &library), expected);
    }
}
