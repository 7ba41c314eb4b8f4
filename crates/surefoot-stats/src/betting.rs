//! Evidence by betting.
//!
//! Someone doubts a hypothesis about the mean of numbers between 0 and 1 that come one by one,
//! and bets against it with a wealth of 1. If the mean of the next number, given all before it,
//! is at most `m`, then no bet of the form `wealth × (1 + λ (x − m))` with `0 ≤ λ < 1/m` gains on
//! average: the wealth is a non-negative supermartingale. By Ville's inequality it reaches
//! `1/α` with a probability of at most `α`, no matter when one looks or stops. The wealth is the
//! evidence, an *e-value*: how many times one's stake a fair game would have had to pay.
//!
//! How much to stake isn't known beforehand, so the wealth is spread evenly over four stakes,
//! each of which goes its own way. Their mean is again such a process.

/// The shares of the largest possible stake.
const STAKES: [f64; 4] = [0.1, 0.3, 0.6, 0.95];

/// Bets against a hypothesis about a mean.
#[derive(Clone, Debug)]
pub struct Bets {
    bound: f64,
    mirrored: bool,
    /// The logarithms of the wealth on each stake.
    wealth: [f64; STAKES.len()],
}

impl Bets {
    /// Against "the mean is at most `bound`", which is between 0 and 1, both excluded.
    pub fn against_at_most(bound: f64) -> Self {
        Self { bound, mirrored: false, wealth: [0.0; STAKES.len()] }
    }

    /// Against "the mean is at least `bound`".
    pub fn against_at_least(bound: f64) -> Self {
        Self { bound: 1.0 - bound, mirrored: true, wealth: [0.0; STAKES.len()] }
    }

    /// The next number, between 0 and 1.
    pub fn see(&mut self, x: f64) {
        let x = if self.mirrored { 1.0 - x } else { x };
        for (wealth, stake) in self.wealth.iter_mut().zip(STAKES) {
            *wealth += (stake / self.bound * (x - self.bound)).ln_1p();
        }
    }

    /// The logarithm of the e-value.
    pub fn ln_e(&self) -> f64 {
        ln_mean_exp(&self.wealth)
    }
}

/// The logarithm of the mean of numbers that are given by their logarithms.
pub fn ln_mean_exp(logarithms: &[f64]) -> f64 {
    let most = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !most.is_finite() {
        return most;
    }
    let sum: f64 = logarithms.iter().map(|x| (x - most).exp()).sum();
    most + (sum / logarithms.len() as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed_stream::KeyedStream;

    /// Ten thousand runs of two hundred numbers each: how often the wealth ever reaches 100.
    fn ever_reached(bets: &Bets, next: impl Fn(f64, usize, f64) -> f64) -> f64 {
        let runs = 10_000_u32;
        let reached = (0..runs).filter(|run| {
            let mut chance = KeyedStream::new(&[8; 32], &[&run.to_le_bytes()]);
            let mut bets = bets.clone();
            (0..200).any(|at| {
                let uniform = (chance.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let x = next(uniform, at, bets.ln_e());
                bets.see(x);
                bets.ln_e() >= 100_f64.ln()
            })
        });
        reached.count() as f64 / f64::from(runs)
    }

    fn coin(uniform: f64, mean: f64) -> f64 {
        f64::from(u8::from(uniform < mean))
    }

    #[test]
    fn a_true_hypothesis_is_rejected_no_more_often_than_allowed_at_any_time() {
        let most = Bets::against_at_most(0.05);
        let least = Bets::against_at_least(0.5);
        // At the border itself: coins, spread numbers, numbers that follow what was lost, and
        // means that wander.
        for rate in [
            ever_reached(&most, |u, _, _| coin(u, 0.05)),
            ever_reached(&most, |u, _, _| u * 0.1),
            ever_reached(&most, |u, _, wealth| if wealth < 0.0 { coin(u, 0.05) } else { 0.05 }),
            ever_reached(&most, |u, at, _| if at % 2 == 0 { coin(u, 0.05) } else { 0.0 }),
            ever_reached(&least, |u, _, _| coin(u, 0.5)),
            ever_reached(&least, |u, _, _| u),
            ever_reached(&least, |u, at, _| if at < 20 { u } else { coin(u, 0.6) }),
        ] {
            assert!(rate <= 0.01, "{rate}");
        }
    }

    #[test]
    fn a_false_hypothesis_is_rejected() {
        let most = Bets::against_at_most(0.05);
        let least = Bets::against_at_least(0.5);
        assert!(ever_reached(&most, |u, _, _| coin(u, 0.3)) > 0.99);
        assert!(ever_reached(&least, |u, _, _| coin(u, 0.2)) > 0.99);
    }

    #[test]
    fn clear_evidence_needs_few_numbers() {
        let needed = |mut bets: Bets, x: f64| {
            (1..)
                .find(|_| {
                    bets.see(x);
                    bets.ln_e() >= 100_f64.ln()
                })
                .unwrap()
        };
        assert!(needed(Bets::against_at_most(0.05), 1.0) <= 3);
        assert!(needed(Bets::against_at_least(0.5), 0.0) <= 10);
    }

    #[test]
    fn means_of_logarithms_do_not_overflow() {
        assert!((ln_mean_exp(&[1000.0, 1000.0]) - 1000.0).abs() < 1e-9);
        assert!((ln_mean_exp(&[0.0, -5000.0]) + 2_f64.ln()).abs() < 1e-9);
        assert_eq!(ln_mean_exp(&[f64::NEG_INFINITY]), f64::NEG_INFINITY);
    }
}
