//! Hypervectors: many sketches in one vector of bits.
//!
//! - *Bind*: XOR with a site's key. It keeps distances and undoes itself.
//! - *Permute*: a rotation by the challenge's number, so that order counts.
//! - *Bundle*: the majority of each bit. It is closer to each of its parts than chance.
//!
//! A site's vector bundles its sketches, each rotated by its challenge; the model's vector bundles
//! the sites' vectors, each bound to its site. Unbinding the model's vector with a site's key
//! gives a vector that is near that site's and no other's.

use crate::keyed_stream::{self, KeyedStream};
use crate::site::Site;

/// The key of a site: `words` words.
pub fn site_key(site: Site, words: usize) -> Vec<u64> {
    let key = keyed_stream::public_key("surefoot site keys, first edition");
    let mut stream = KeyedStream::new(&key, &[site.to_string().as_bytes()]);
    (0..words).map(|_| stream.next_u64()).collect()
}

/// Binds, and unbinds what was bound with the same key.
pub fn bind(vector: &[u64], key: &[u64]) -> Vec<u64> {
    vector.iter().zip(key).map(|(word, key)| word ^ key).collect()
}

/// Rotates all bits up by `by` places.
pub fn permute(vector: &[u64], by: usize) -> Vec<u64> {
    let count = vector.len();
    let (words, bits) = (by / 64, by % 64);
    (0..count)
        .map(|at| {
            let from = (at + count - words % count) % count;
            let below = (from + count - 1) % count;
            if bits == 0 {
                vector[from]
            } else {
                vector[from] << bits | vector[below] >> (64 - bits)
            }
        })
        .collect()
}

/// The majority of each bit; where there is none, the first vector decides.
pub fn bundle(vectors: &[Vec<u64>]) -> Vec<u64> {
    let Some(first) = vectors.first() else { return Vec::new() };
    let mut counts = vec![0_u32; first.len() * 64];
    for vector in vectors {
        for (word, counts) in vector.iter().zip(counts.chunks_exact_mut(64)) {
            for (bit, count) in counts.iter_mut().enumerate() {
                *count += (word >> bit & 1) as u32;
            }
        }
    }
    let all = vectors.len() as u32;
    counts
        .chunks_exact(64)
        .zip(first)
        .map(|(counts, tie)| {
            counts.iter().enumerate().fold(0, |word, (bit, &count)| {
                let set = match (2 * count).cmp(&all) {
                    std::cmp::Ordering::Greater => 1,
                    std::cmp::Ordering::Less => 0,
                    std::cmp::Ordering::Equal => tie >> bit & 1,
                };
                word | set << bit
            })
        })
        .collect()
}

/// A site's vector: its sketches in the order of the challenges.
pub fn of_site<'a>(sketches: impl Iterator<Item = &'a [u64]>) -> Vec<u64> {
    let rotated: Vec<Vec<u64>> =
        sketches.enumerate().map(|(number, bits)| permute(bits, number)).collect();
    bundle(&rotated)
}

/// The model's vector.
pub fn of_model(sites: &[(Site, Vec<u64>)]) -> Vec<u64> {
    let bound: Vec<Vec<u64>> =
        sites.iter().map(|(site, vector)| bind(vector, &site_key(*site, vector.len()))).collect();
    bundle(&bound)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hamming::distance;

    fn random(seed: u64, words: usize) -> Vec<u64> {
        let mut stream = KeyedStream::new(&[9; 32], &[&seed.to_le_bytes()]);
        (0..words).map(|_| stream.next_u64()).collect()
    }

    #[test]
    fn unbinding_gives_a_site_back_and_no_other() {
        let sites: Vec<(Site, Vec<u64>)> =
            (0..35).map(|block| (Site::Block(block), random(block as u64, 128))).collect();
        let model = of_model(&sites);
        for (site, _) in &sites {
            let back = bind(&model, &site_key(*site, 128));
            let near: Vec<u32> = sites.iter().map(|(_, vector)| distance(&back, vector)).collect();
            let nearest = (0..near.len()).min_by_key(|at| near[*at]).unwrap();
            assert_eq!(sites[nearest].0, *site);
            assert!(near[nearest] < 3900, "{near:?}");
        }
    }

    #[test]
    fn the_order_of_challenges_counts() {
        let (a, b, c) = (random(1, 16), random(2, 16), random(3, 16));
        let one = of_site([a.as_slice(), &b, &c].into_iter());
        let other = of_site([c.as_slice(), &b, &a].into_iter());
        assert!(distance(&one, &other) > 300);
    }

    #[test]
    fn a_tie_is_broken_the_same_way_every_time() {
        let (a, b) = (random(1, 4), random(2, 4));
        let tied = bundle(&[a.clone(), b.clone()]);
        assert_eq!(tied, a);
        assert_eq!(bundle(&[]), Vec::<u64>::new());
    }

    proptest! {
        #[test]
        fn rotating_moves_every_bit(words in 1_usize..6, by in 0_usize..500, bit in 0_usize..384) {
            let bit = bit % (words * 64);
            let mut vector = vec![0; words];
            vector[bit / 64] = 1 << (bit % 64);
            let rotated = permute(&vector, by);
            let place = (bit + by) % (words * 64);
            let mut expected = vec![0; words];
            expected[place / 64] = 1_u64 << (place % 64);
            prop_assert_eq!(rotated, expected);
        }

        #[test]
        fn binding_undoes_itself(vector in prop::collection::vec(any::<u64>(), 8)) {
            let key = site_key(Site::Head, 8);
            prop_assert_eq!(bind(&bind(&vector, &key), &key), vector);
        }
    }
}
