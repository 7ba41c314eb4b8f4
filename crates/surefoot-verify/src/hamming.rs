//! Hamming distance, at the speed of memory.
//!
//! Carry-save adders count eight words at a time before any popcount is due, and the lanes make
//! vectors of it on whatever processor the program was built for.

use rayon::prelude::*;

const LANES: usize = 4;
type Lanes = [u64; LANES];

/// The number of bits in which two vectors of equal length differ.
pub fn distance(a: &[u64], b: &[u64]) -> u32 {
    debug_assert_eq!(a.len(), b.len());
    let (a_blocks, a_rest) = a.as_chunks::<{ 8 * LANES }>();
    let (b_blocks, b_rest) = b.as_chunks::<{ 8 * LANES }>();
    let (mut ones, mut twos, mut fours) = ([0; LANES], [0; LANES], [0; LANES]);
    let mut eights = 0;
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        let v = |at: usize| -> Lanes {
            std::array::from_fn(|lane| a[at * LANES + lane] ^ b[at * LANES + lane])
        };
        let two_a = add(&mut ones, v(0), v(1));
        let two_b = add(&mut ones, v(2), v(3));
        let four_a = add(&mut twos, two_a, two_b);
        let two_a = add(&mut ones, v(4), v(5));
        let two_b = add(&mut ones, v(6), v(7));
        let four_b = add(&mut twos, two_a, two_b);
        eights += count(add(&mut fours, four_a, four_b));
    }
    let rest: u32 = a_rest.iter().zip(b_rest).map(|(a, b)| (a ^ b).count_ones()).sum();
    8 * eights + 4 * count(fours) + 2 * count(twos) + count(ones) + rest
}

/// Adds two bits to `sum` in each place and returns the carries.
#[inline(always)]
fn add(sum: &mut Lanes, a: Lanes, b: Lanes) -> Lanes {
    let mut carry = [0; LANES];
    for lane in 0..LANES {
        let half = sum[lane] ^ a[lane];
        carry[lane] = (sum[lane] & a[lane]) | (half & b[lane]);
        sum[lane] = half ^ b[lane];
    }
    carry
}

#[inline(always)]
fn count(lanes: Lanes) -> u32 {
    lanes.iter().map(|word| word.count_ones()).sum()
}

/// The distance of `query` to each vector of `library`, which lie one after the other.
pub fn distances(query: &[u64], library: &[u64]) -> Vec<u32> {
    /// Vectors that one thread takes at a time.
    const SHARE: usize = 512;
    if query.is_empty() {
        return Vec::new();
    }
    library
        .par_chunks(query.len() * SHARE)
        .flat_map_iter(|some| some.chunks_exact(query.len()).map(|vector| distance(query, vector)))
        .collect()
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
