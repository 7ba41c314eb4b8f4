//! How long something took, over any number of samples in bounded memory.
//!
//! Quantiles are exact (nearest rank) up to [`EXACT`] samples. Beyond, samples are counted in
//! buckets whose width is 1/128 of their value, and a quantile is the middle of its bucket: off by
//! at most 0.4 %. Count, mean, smallest and largest are always exact.
//!
//! Written by hand: `hdrhistogram` counts in buckets from the first sample on, so that the quantiles of
//! short runs would not be samples, and reserves memory for the whole range of values.

use std::collections::BTreeMap;

use serde::Serialize;

/// How many samples are kept as they are.
const EXACT: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Durations {
    count: u64,
    total: u128,
    least: u64,
    most: u64,
    samples: Samples,
}

#[derive(Clone, Debug)]
enum Samples {
    Kept(Vec<u64>),
    Counted(BTreeMap<u16, u64>),
}

/// What durations come to, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// How many were timed.
    pub count: u64,
    /// All together.
    pub total_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// Half took at most this.
    pub median_ns: u64,
    /// 95 % took at most this.
    pub p95_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Whether median and p95 are exact; else they are within 0.4 %.
    pub exact: bool,
}

impl Default for Durations {
    fn default() -> Self {
        let samples = Samples::Kept(Vec::new());
        Self { count: 0, total: 0, least: u64::MAX, most: 0, samples }
    }
}

impl Durations {
    pub(super) fn add(&mut self, ns: u64) {
        self.count += 1;
        self.total += u128::from(ns);
        self.least = self.least.min(ns);
        self.most = self.most.max(ns);
        match &mut self.samples {
            Samples::Kept(kept) if kept.len() < EXACT => kept.push(ns),
            Samples::Kept(kept) => {
                let mut counted = BTreeMap::new();
                for ns in kept.drain(..).chain([ns]) {
                    *counted.entry(bucket(ns)).or_default() += 1;
                }
                self.samples = Samples::Counted(counted);
            }
            Samples::Counted(counted) => *counted.entry(bucket(ns)).or_default() += 1,
        }
    }

    pub(super) fn timing(&self) -> Option<Timing> {
        let mean = self.total.checked_div(u128::from(self.count))?;
        let fits = |ns: u128| u64::try_from(ns).unwrap_or(u64::MAX);
        let [median_ns, p95_ns] = self.quantiles([50, 95]);
        Some(Timing {
            count: self.count,
            total_ns: fits(self.total),
            mean_ns: fits(mean),
            median_ns,
            p95_ns,
            max_ns: self.most,
            exact: matches!(self.samples, Samples::Kept(_)),
        })
    }

    fn quantiles(&self, percents: [u64; 2]) -> [u64; 2] {
        match &self.samples {
            Samples::Kept(kept) => {
                let mut sorted = kept.clone();
                sorted.sort_unstable();
                percents.map(|percent| {
                    let rank = usize::try_from(self.rank(percent)).unwrap_or(usize::MAX);
                    sorted.get(rank - 1).copied().unwrap_or(self.most)
                })
            }
            Samples::Counted(counted) => percents.map(|percent| {
                let mut left = self.rank(percent);
                for (bucket, count) in counted {
                    if left <= *count {
                        return middle(*bucket).clamp(self.least, self.most);
                    }
                    left -= count;
                }
                self.most
            }),
        }
    }

    /// The nearest rank, from 1.
    fn rank(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        u64::try_from(rank).unwrap_or(u64::MAX).max(1)
    }
}

/// Values below 128 have a bucket each; above, each power of two has 128 buckets.
fn bucket(ns: u64) -> u16 {
    let Some(shift) = (u64::BITS - ns.leading_zeros()).checked_sub(8) else {
        return ns as u16;
    };
    ((shift + 1) * 128) as u16 + ((ns >> shift) & 127) as u16
}

fn middle(bucket: u16) -> u64 {
    let Some(shift) = (bucket / 128).checked_sub(1) else {
        return bucket.into();
    };
    let low = (128 + u64::from(bucket % 128)) << shift;
    low + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timing(samples: &[u64]) -> Timing {
        let mut durations = Durations::default();
        samples.iter().for_each(|ns| durations.add(*ns));
        durations.timing().unwrap()
    }

    #[test]
    fn nothing_timed_has_no_timing() {
        assert_eq!(Durations::default().timing(), None);
    }

    #[test]
    fn few_samples_are_exact() {
        let hundred: Vec<u64> = (1..=100).rev().map(|n| n * 1_000_003).collect();
        let found = timing(&hundred);
        assert_eq!(found.median_ns, 50 * 1_000_003);
        assert_eq!(found.p95_ns, 95 * 1_000_003);
        assert_eq!(found.max_ns, 100 * 1_000_003);
        assert_eq!(found.mean_ns, 101 * 1_000_003 / 2);
        assert!(found.exact);
        assert_eq!(timing(&[7]).median_ns, 7);
    }

    proptest! {
        #[test]
        fn a_bucket_is_within_its_error(ns in any::<u64>(), bits in 0u32..64) {
            let ns = ns >> bits;
            prop_assert!(middle(bucket(ns)).abs_diff(ns) <= ns / 256 + 1);
        }

        #[test]
        fn buckets_keep_the_order(a in any::<u64>(), b in any::<u64>(), bits in 0u32..64) {
            let (low, high) = ((a >> bits).min(b), (a >> bits).max(b));
            prop_assert!(bucket(low) <= bucket(high));
        }

        #[test]
        fn many_samples_are_within_half_a_percent(seed in any::<u64>()) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut samples: Vec<u64> =
                (0..EXACT + 999).map(|_| random.u64(..) >> random.u32(20..50)).collect();
            let found = timing(&samples);
            samples.sort_unstable();
            let near = |found: u64, right: u64| found.abs_diff(right) <= right / 200 + 1;
            prop_assert!(!found.exact);
            let n = samples.len();
            prop_assert!(near(found.median_ns, samples[n.div_ceil(2) - 1]));
            prop_assert!(near(found.p95_ns, samples[(n * 95).div_ceil(100) - 1]));
            prop_assert_eq!(found.max_ns, samples[n - 1]);
        }
    }
}
