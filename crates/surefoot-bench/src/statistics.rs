//! Medians and ratios of samples, with confidence intervals that hold for any distribution.

/// The confidence level of all intervals.
pub const CONFIDENCE: f64 = 0.95;

/// The number of bootstrap resamples.
const RESAMPLES: usize = 2000;

/// The median; the mean of the two middle values if the count is even. NaN without samples.
pub fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    match sorted.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}

/// The quantile `share` by nearest rank. NaN without samples.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let sorted = sorted(samples);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// A confidence interval of the true median at level [`CONFIDENCE`], whatever the distribution: two
/// order statistics. Fewer than six samples do not reach that level; then it is their minimum and
/// maximum.
pub fn median_interval(samples: &[f64]) -> (f64, f64) {
    let sorted = sorted(samples);
    let n = sorted.len();
    if n == 0 {
        return (f64::NAN, f64::NAN);
    }
    // P(the median is below the (k+1)-th sample) = P(Binomial(n, ½) ≤ k).
    let mut below = 0.0;
    let mut outside = 0usize;
    for k in 0..n / 2 {
        below += binomial_half(n, k);
        if 2.0 * below > 1.0 - CONFIDENCE {
            break;
        }
        outside = k;
    }
    (sorted[outside], sorted[n - 1 - outside])
}

/// P(Binomial(n, ½) = k).
fn binomial_half(n: usize, k: usize) -> f64 {
    let log: f64 = (0..k).map(|i| ((n - i) as f64).ln() - ((i + 1) as f64).ln()).sum();
    (log - n as f64 * std::f64::consts::LN_2).exp()
}

/// How two sets of samples are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Samples with the same index were taken in the same round.
    Rounds,
    /// The samples come from different runs.
    None,
}

/// The ratio of the medians of `a` and `b`, with a bootstrap interval: whole rounds are resampled if
/// they are shared, else each side on its own. With fewer than six samples, for which a bootstrap
/// interval is too narrow, the interval is that of the extremes.
pub fn ratio(a: &[f64], b: &[f64], pairing: Pairing) -> (f64, f64, f64) {
    let value = median(a) / median(b);
    if a.len() < 6 || b.len() < 6 {
        let least = |samples: &[f64]| samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
        return (value, least(a) / most(b), most(a) / least(b));
    }
    // A fixed seed, so that the same samples always give the same interval.
    let mut random = fastrand::Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let rounds = a.len().min(b.len());
    let mut found: Vec<f64> = (0..RESAMPLES)
        .map(|_| match pairing {
            Pairing::Rounds => {
                let drawn: Vec<usize> = (0..rounds).map(|_| random.usize(..rounds)).collect();
                let of = |samples: &[f64]| {
                    median(&drawn.iter().map(|round| samples[*round]).collect::<Vec<_>>())
                };
                of(a) / of(b)
            }
            Pairing::None => {
                let mut of = |samples: &[f64]| {
                    let drawn: Vec<f64> = (0..samples.len())
                        .map(|_| samples[random.usize(..samples.len())])
                        .collect();
                    median(&drawn)
                };
                of(a) / of(b)
            }
        })
        .collect();
    found.sort_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let at = |share: f64| found[((RESAMPLES - 1) as f64 * share).round() as usize];
    (value, at(tail).min(value), at(1.0 - tail).max(value))
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_and_quantiles_of_few_samples_are_the_textbook_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan() && quantile(&[], 0.5).is_nan());
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.95), 95.0);
        assert_eq!(quantile(&[7.0], 0.95), 7.0);
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_sign_test_tables() {
        let of = |n: u32| median_interval(&(1..=n).map(f64::from).collect::<Vec<_>>());
        // Ranks for 95 %, as tables of the sign test give them.
        assert_eq!(of(6), (1.0, 6.0));
        assert_eq!(of(9), (2.0, 8.0));
        assert_eq!(of(20), (6.0, 15.0));
        assert_eq!(of(3), (1.0, 3.0));
    }

    #[test]
    fn the_interval_covers_the_true_median_as_often_as_it_claims() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut held = 0;
        for _ in 0..4000 {
            // Skewed, as times are: the true median of u³ is 1/8.
            let samples: Vec<f64> = (0..15).map(|_| random.f64().powi(3)).collect();
            let (low, high) = median_interval(&samples);
            held += usize::from((low..=high).contains(&0.125));
        }
        assert!(held >= 3800 - 60, "{held} of 4000");
    }

    #[test]
    fn shared_rounds_cancel_load_that_slows_both_sides() {
        // Each round is slow or fast for both; b takes half of a.
        let slow: Vec<f64> = (0..20).map(|round| 1.0 + f64::from(round % 5)).collect();
        let a: Vec<f64> = slow.iter().map(|s| 2.0 * s).collect();
        let (value, low, high) = ratio(&a, &slow, Pairing::Rounds);
        assert_eq!((value, low, high), (2.0, 2.0, 2.0));
        let (_, low, high) = ratio(&a, &slow, Pairing::None);
        assert!(low < 1.7 && high > 2.3, "{low} {high}");
    }

    proptest! {
        #[test]
        fn an_interval_contains_the_median_of_its_samples(samples in prop::collection::vec(0.1f64..1e9, 1..60)) {
            let (low, high) = median_interval(&samples);
            let middle = median(&samples);
            prop_assert!(low <= middle && middle <= high);
        }

        #[test]
        fn a_ratio_lies_in_its_interval_and_inverts_with_swapped_sides(
            a in prop::collection::vec(0.5f64..2.0, 6..20),
            b in prop::collection::vec(0.5f64..2.0, 6..20),
        ) {
            let (value, low, high) = ratio(&a, &b, Pairing::None);
            prop_assert!(low <= value && value <= high);
            let (inverse, ..) = ratio(&b, &a, Pairing::None);
            prop_assert!((value * inverse - 1.0).abs() < 1e-9);
        }
    }
}
