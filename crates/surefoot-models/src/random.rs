//! Random numbers that depend on nothing but what they are for: the seed, the epoch, the
//! sample. So they are the same on every machine, whatever the number of threads, and a resumed
//! run needs no generator's state.
//!
//! Written by hand, not taken from `rand`: a checkpoint must be resumed bit for bit by later
//! versions of this program, and `rand` does not promise the same numbers across its versions.

/// SplitMix64, started from the numbers that name what it is for.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// A stream of its own for each list of numbers.
    pub fn of(purpose: &[u64]) -> Self {
        let mut random = Self(0x05ee_d0f5);
        for number in purpose {
            random.0 ^= number.wrapping_mul(0xff51_afd7_ed55_8ccd);
            random.0 = random.number();
        }
        random
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number from 0 to below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high bits of a product: no remainder's bias worth noticing, and no loop.
        ((u128::from(self.number()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number of the normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// The numbers from 0 to below `count`, shuffled.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_purpose_has_its_own_stream() {
        let draw = |purpose: &[u64]| SeededRandom::of(purpose).number();
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_ne!(draw(&[1]), draw(&[1, 0]));
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut random = SeededRandom::of(&[7]);
        let drawn: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    proptest! {
        #[test]
        fn a_permutation_holds_each_number_once(seed: u64, count in 0usize..300) {
            let mut order = SeededRandom::of(&[seed]).permutation(count);
            order.sort_unstable();
            prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn numbers_stay_below_their_bound(seed: u64, bound in 1usize..1000) {
            prop_assert!(SeededRandom::of(&[seed]).below(bound) < bound);
        }
    }
}
