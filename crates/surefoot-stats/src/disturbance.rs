//! Disturbances of activations: what other hardware or fewer digits would do to them. Applied at
//! every site of a pass, they show how far a model deviates from itself under such noise.

use crate::keyed_stream::{self, KeyedStream};

/// What is done to the activations at every site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    /// Nothing.
    None,
    /// Every number moves by this share of its own size, or of its row's scale if that is larger,
    /// as another order of summation moves it.
    Jitter {
        /// The share.
        share: f32,
        /// The random seed of the directions.
        seed: u64,
    },
    /// Every number is rounded to bf16: to the nearest with seed 0, otherwise up or down at random.
    Bf16 {
        /// The random seed.
        seed: u64,
    },
}

impl Disturbance {
    /// The jitter that another order of summation gives to sums of `longest` terms in f32: the
    /// error of such a sum grows with the square root of its length.
    pub fn summation_order(longest: usize, seed: u64) -> Self {
        Self::Jitter { share: (longest as f32).sqrt() / (1_u32 << 24) as f32, seed }
    }

    /// Disturbs `numbers`, the rows of one challenge with `columns` each. `number` counts the sites
    /// of a pass from 1 and `challenge` is the challenge's place in its set, so that each has its
    /// own random numbers, the same in whatever batch it is run. Returns whether anything was changed.
    pub fn apply(&self, numbers: &mut [f32], columns: usize, number: u64, challenge: u64) -> bool {
        let stream = |seed: u64| {
            let key = keyed_stream::public_key("surefoot disturbances");
            let parts = [seed, number, challenge].map(u64::to_le_bytes);
            KeyedStream::new(&key, &parts.each_ref().map(|part| part.as_slice()))
        };
        match *self {
            Self::None => return false,
            Self::Bf16 { seed: 0 } => numbers.iter_mut().for_each(|x| {
                *x = half::bf16::from_f32(*x).to_f32();
            }),
            Self::Bf16 { seed } => {
                let mut stream = stream(seed);
                for numbers in numbers.chunks_mut(4) {
                    let random = stream.next_u64();
                    for (at, x) in numbers.iter_mut().enumerate() {
                        // Sixteen random bits are added to the sixteen bits that are dropped: a
                        // carry rounds up.
                        let dither = (random >> (16 * at)) as u32 & 0xffff;
                        *x = f32::from_bits(x.to_bits().wrapping_add(dither) & 0xffff_0000);
                    }
                }
            }
            Self::Jitter { share, seed } => {
                let mut stream = stream(seed);
                for row in numbers.chunks_exact_mut(columns) {
                    let root = row.iter().map(|x| x.abs().sqrt()).sum::<f32>() / row.len() as f32;
                    let scale = root * root;
                    let signs = stream.signs(row.len());
                    let step = |x: f32| share * x.abs().max(scale);
                    row.iter_mut().zip(signs).for_each(|(x, sign)| *x += sign * step(*x));
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disturbed(disturbance: Disturbance, number: u64) -> (Vec<f32>, Vec<f32>, bool) {
        let plain: Vec<f32> = (1..=64).map(|x| (x as f32 * 0.37).sin()).collect();
        let mut numbers = plain.clone();
        let changed = disturbance.apply(&mut numbers, 16, number, 0);
        (plain, numbers, changed)
    }

    #[test]
    fn nothing_is_changed_without_a_disturbance() {
        let (plain, numbers, changed) = disturbed(Disturbance::None, 1);
        assert_eq!((plain, false), (numbers, changed));
    }

    #[test]
    fn rounding_leaves_sixteen_zero_bits_and_is_within_one_step() {
        for seed in [0, 1] {
            let (plain, numbers, changed) = disturbed(Disturbance::Bf16 { seed }, 1);
            assert!(changed);
            for (a, b) in plain.iter().zip(&numbers) {
                assert_eq!(b.to_bits() & 0xffff, 0);
                assert!((a - b).abs() <= a.abs() / 128.0, "{a} {b}");
            }
        }
    }

    #[test]
    fn jitter_follows_the_seed_and_the_number_of_the_site() {
        let jitter = |seed, number| disturbed(Disturbance::summation_order(4096, seed), number).1;
        assert_eq!(jitter(1, 1), jitter(1, 1));
        assert_ne!(jitter(1, 1), jitter(2, 1));
        assert_ne!(jitter(1, 1), jitter(1, 2));
        let mut other = disturbed(Disturbance::None, 1).0;
        Disturbance::summation_order(4096, 1).apply(&mut other, 16, 1, 1);
        assert_ne!(jitter(1, 1), other, "another challenge");
        let (plain, numbers, _) = disturbed(Disturbance::summation_order(4096, 1), 1);
        let share = 64.0 / (1_u32 << 24) as f32;
        assert!(plain.iter().zip(&numbers).all(|(a, b)| (a - b).abs() <= 1.5 * share + 1e-7));
    }
}
