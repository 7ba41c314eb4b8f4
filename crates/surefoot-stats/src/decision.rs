//! From deviations to a verdict.
//!
//! For each challenge and site there is an *excess* between 0 and 1: 0 where the deviation is
//! within the tolerance, 1 where it is twice the tolerance or more, on a logarithmic scale
//! between. Two hypotheses about its mean are bet against at every site:
//!
//! - *same within tolerance*: at every site the mean excess is at most `slack`. The evidence
//!   against it is the mean of the sites' e-values, which is an e-value if all of them are.
//! - *different by at least δ*: at some site, nobody says which, the mean excess is at least `δ`.
//!   The evidence against it is the smallest of the sites' e-values: whichever site it is, its
//!   own e-value is no smaller.
//!
//! Challenges are looked at one after the other. DIFFERENT as soon as the first evidence reaches
//! `1/α`, SAME as soon as the second reaches `1/β`, UNDECIDED if the challenges run out before.
//! A false DIFFERENT has a probability of at most `α`, a false SAME of at most `β`, at whatever
//! challenge it stops.
//!
//! Which site diverges first is read from all challenges: the first, by depth, whose own e-value
//! reaches (number of sites)/α, so that a site is named wrongly with a probability of at most `α`.

use serde::{Deserialize, Serialize};

use crate::betting::{Bets, ln_mean_exp};
use crate::error::StatsError;
use crate::site::Site;

/// The error rates and what counts as same and different.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRule {
    /// The largest probability of a false DIFFERENT.
    pub alpha: f64,
    /// The largest probability of a false SAME.
    pub beta: f64,
    /// The mean excess up to which models are the same.
    pub slack: f64,
    /// The mean excess from which they are different.
    pub delta: f64,
}

impl Default for DecisionRule {
    fn default() -> Self {
        Self { alpha: 0.01, beta: 0.01, slack: 0.05, delta: 0.3 }
    }
}

impl DecisionRule {
    /// Whether the numbers make sense together.
    pub fn check(&self) -> Result<(), StatsError> {
        let wrong = |what: &str| Err(StatsError::request(what.to_owned()));
        let rate = |x: f64| x > 0.0 && x <= 0.5;
        if !rate(self.alpha) || !rate(self.beta) {
            return wrong("alpha and beta must be above 0 and at most 0.5");
        }
        if !(self.slack > 0.0 && self.slack < self.delta && self.delta < 1.0) {
            return wrong("delta must be above the slack of 0.05 and below 1");
        }
        Ok(())
    }
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The same model within tolerance.
    Same,
    /// Another model.
    Different,
    /// The evidence doesn't decide.
    Undecided,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Same => "SAME",
            Self::Different => "DIFFERENT",
            Self::Undecided => "UNDECIDED",
        })
    }
}

/// The evidence after a challenge, as natural logarithms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Against "same within tolerance".
    pub ln_e_different: f64,
    /// Against "different by at least δ".
    pub ln_e_same: f64,
}

/// A verdict with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The answer.
    pub verdict: Verdict,
    /// The evidence where it stopped.
    pub evidence: Evidence,
    /// The challenges it took.
    pub challenges_used: usize,
    /// The first site that diverges, if one does beyond doubt.
    pub first_diverging: Option<Site>,
    /// The evidence after each challenge, those after the verdict included.
    pub curve: Vec<Evidence>,
    /// The mean excess at each site, over all challenges.
    pub excess: Vec<f64>,
}

/// How far a deviation is beyond its tolerance: 0 up to it, 1 from twice as much.
pub fn excess(deviation: f64, tolerance: f64) -> f64 {
    (deviation / tolerance).log2().clamp(0.0, 1.0)
}

/// Decides by the excess of each challenge at each site. Every challenge has all sites.
pub fn decide(rule: &DecisionRule, sites: &[Site], excess: &[Vec<f64>]) -> Decision {
    let mut against_same = vec![Bets::against_at_most(rule.slack); sites.len()];
    let mut against_different = vec![Bets::against_at_least(rule.delta); sites.len()];
    let (need_different, need_same) = (-rule.alpha.ln(), -rule.beta.ln());
    let mut curve = Vec::with_capacity(excess.len());
    let mut stopped = None;
    for of_challenge in excess {
        let bets = against_same.iter_mut().zip(&mut against_different);
        for ((same, different), x) in bets.zip(of_challenge) {
            same.see(*x);
            different.see(*x);
        }
        let of_sites: Vec<f64> = against_same.iter().map(Bets::ln_e).collect();
        let evidence = Evidence {
            ln_e_different: ln_mean_exp(&of_sites),
            ln_e_same: against_different.iter().map(Bets::ln_e).fold(f64::INFINITY, f64::min),
        };
        curve.push(evidence);
        if stopped.is_none() {
            let verdict = if evidence.ln_e_different >= need_different {
                Some(Verdict::Different)
            } else if evidence.ln_e_same >= need_same {
                Some(Verdict::Same)
            } else {
                None
            };
            stopped = verdict.map(|verdict| (verdict, evidence, curve.len()));
        }
    }
    let nothing = Evidence { ln_e_different: 0.0, ln_e_same: 0.0 };
    let (verdict, evidence, challenges_used) = stopped.unwrap_or((
        Verdict::Undecided,
        curve.last().copied().unwrap_or(nothing),
        excess.len(),
    ));
    let need_site = need_different + (sites.len() as f64).ln();
    let first_diverging = sites
        .iter()
        .zip(&against_same)
        .find(|(_, bets)| bets.ln_e() >= need_site)
        .map(|(site, _)| *site)
        .filter(|_| verdict == Verdict::Different);
    let mean = |site: usize| {
        excess.iter().map(|of_challenge| of_challenge[site]).sum::<f64>()
            / excess.len().max(1) as f64
    };
    Decision {
        verdict,
        evidence,
        challenges_used,
        first_diverging,
        curve,
        excess: (0..sites.len()).map(mean).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed_stream::KeyedStream;

    fn sites(count: usize) -> Vec<Site> {
        (0..count).map(Site::Block).collect()
    }

    /// The share of `runs` runs that end with `verdict`, at challenges drawn by `draw`.
    fn share(
        verdict: Verdict,
        runs: u32,
        sites_: usize,
        draw: impl Fn(&mut dyn FnMut() -> f64, usize) -> f64,
    ) -> f64 {
        let sites = sites(sites_);
        let ends = (0..runs).filter(|run| {
            let mut chance = KeyedStream::new(&[5; 32], &[&run.to_le_bytes()]);
            let mut uniform = || (chance.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let excess: Vec<Vec<f64>> = (0..64)
                .map(|_| (0..sites_).map(|site| draw(&mut uniform, site)).collect())
                .collect();
            decide(&DecisionRule::default(), &sites, &excess).verdict == verdict
        });
        ends.count() as f64 / f64::from(runs)
    }

    fn coin(uniform: f64, mean: f64) -> f64 {
        f64::from(u8::from(uniform < mean))
    }

    #[test]
    fn false_verdicts_are_no_more_frequent_than_allowed() {
        // All sites exactly at the border of "same": the worst case of that hypothesis.
        let false_different = share(Verdict::Different, 10_000, 5, |u, _| coin(u(), 0.05));
        assert!(false_different <= 0.01, "{false_different}");
        // One site exactly at δ, the others equal: the worst case of "different".
        let false_same =
            share(Verdict::Same, 10_000, 5, |u, site| if site == 3 { coin(u(), 0.3) } else { 0.0 });
        assert!(false_same <= 0.01, "{false_same}");
        let spread =
            share(Verdict::Same, 10_000, 3, |u, site| if site == 0 { 0.6 * u() } else { 0.0 });
        assert!(spread <= 0.01, "{spread}");
    }

    #[test]
    fn what_is_clear_is_decided_rightly() {
        assert!(share(Verdict::Same, 500, 30, |u, _| coin(u(), 0.001)) > 0.99);
        let one_site = |u: &mut dyn FnMut() -> f64, site: usize| {
            if site == 7 { 0.5 + u() / 2.0 } else { 0.0 }
        };
        assert!(share(Verdict::Different, 500, 30, one_site) > 0.99);
        // As often as not beyond tolerance at the border of both: not decided by a few.
        assert!(share(Verdict::Same, 500, 1, |u, _| coin(u(), 0.28)) < 0.1);
    }

    #[test]
    fn the_first_site_that_diverges_is_named() {
        let excess: Vec<Vec<f64>> = (0..32).map(|_| vec![0.0, 0.0, 0.8, 1.0, 1.0]).collect();
        let decision = decide(&DecisionRule::default(), &sites(5), &excess);
        assert_eq!(decision.verdict, Verdict::Different);
        assert_eq!(decision.first_diverging, Some(Site::Block(2)));
        assert!(decision.challenges_used <= 4);
        assert_eq!(decision.curve.len(), 32);
        assert!((decision.excess[2] - 0.8).abs() < 1e-12);
    }

    #[test]
    fn no_challenges_decide_nothing() {
        let decision = decide(&DecisionRule::default(), &sites(2), &[]);
        assert_eq!(decision.verdict, Verdict::Undecided);
        assert_eq!(decision.challenges_used, 0);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut DecisionRule)| {
            let mut rule = DecisionRule::default();
            change(&mut rule);
            rule.check()
        };
        assert!(with(|_| {}).is_ok());
        assert!(with(|rule| rule.alpha = 0.0).is_err());
        assert!(with(|rule| rule.beta = f64::NAN).is_err());
        assert!(with(|rule| rule.delta = 0.05).is_err());
        assert!(with(|rule| rule.delta = 1.0).is_err());
    }

    #[test]
    fn excess_is_zero_within_tolerance_and_one_from_twice_of_it() {
        assert_eq!(excess(0.0, 1.0), 0.0);
        assert_eq!(excess(1.0, 1.0), 0.0);
        assert!((excess(2_f64.sqrt(), 1.0) - 0.5).abs() < 1e-12);
        assert_eq!(excess(5.0, 1.0), 1.0);
        assert_eq!(excess(f64::MAX, 1e-300), 1.0);
    }
}
