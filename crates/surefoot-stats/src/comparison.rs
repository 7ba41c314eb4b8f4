//! Two passes over the same challenges, compared: from sketches to a verdict.

use serde::{Deserialize, Serialize};

use crate::decision::{self, Decision, DecisionRule, excess};
use crate::error::StatsError;
use crate::noise::{Noise, NoiseClass};
use crate::site::Site;
use crate::sketch::{Sketch, SketchDistance};

/// What was found at a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteResult {
    /// The site.
    pub site: Site,
    /// The mean distance over all challenges.
    #[serde(rename = "apart")]
    pub distance: SketchDistance,
    /// The mean tolerance of the projections.
    pub tolerance: f64,
    /// The mean excess.
    pub excess: f64,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What noise was allowed for.
    pub class: NoiseClass,
    /// The verdict.
    pub decision: Decision,
    /// What was found at each site.
    pub sites: Vec<SiteResult>,
}

/// One side of a comparison: its sites, and its sketches as `[challenge][site]`.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The sites, by depth.
    pub sites: &'a [Site],
    /// `[challenge][site]`.
    pub sketches: &'a [Vec<Sketch>],
}

/// Compares `candidate` with `reference` at the sites that both have, allowing for the noise of
/// the reference: `noise` has all challenges and sites of the reference.
pub fn compare(
    reference: Side<'_>,
    noise: &Noise,
    class: NoiseClass,
    candidate: Side<'_>,
    rule: &DecisionRule,
) -> Result<Comparison, StatsError> {
    rule.check()?;
    let challenges = reference.sketches.len();
    if candidate.sketches.len() != challenges {
        return Err(StatsError::incomparable(format!(
            "the two sides have {challenges} and {} challenges",
            candidate.sketches.len()
        )));
    }
    let pairs = common_sites(reference.sites, candidate.sites);
    if pairs.is_empty() {
        return Err(StatsError::incomparable("the two sides have no site in common"));
    }
    let tolerances = noise.tolerances(class, challenges, reference.sites.len())?;
    let mut excesses = Vec::with_capacity(challenges);
    let mut sums = vec![(SketchDistance::default(), 0.0); pairs.len()];
    let sketches = reference.sketches.iter().zip(candidate.sketches);
    for ((ours, theirs), fine) in sketches.zip(&tolerances.fine) {
        let mut of_challenge = Vec::with_capacity(pairs.len());
        for ((_, one, other), (sum, tolerance)) in pairs.iter().zip(&mut sums) {
            let distance = ours[*one].distance(&theirs[*other]);
            let beyond = excess(distance.fine, fine[*one]);
            of_challenge.push(beyond.max(excess(distance.profile, tolerances.profile[*one])));
            sum.fine += distance.fine / challenges as f64;
            sum.profile += distance.profile.min(1e6) / challenges as f64;
            sum.hamming += distance.hamming / challenges as f64;
            *tolerance += fine[*one] / challenges as f64;
        }
        excesses.push(of_challenge);
    }
    let sites: Vec<Site> = pairs.iter().map(|(site, ..)| *site).collect();
    let decision = decision::decide(rule, &sites, &excesses);
    let results = sites.iter().zip(sums).zip(&decision.excess);
    let sites = results
        .map(|((site, (distance, tolerance)), excess)| SiteResult {
            site: *site,
            distance,
            tolerance,
            excess: *excess,
        })
        .collect();
    Ok(Comparison { class, decision, sites })
}

/// The sites that both lists have, with their positions in each.
pub fn common_sites(reference: &[Site], candidate: &[Site]) -> Vec<(Site, usize, usize)> {
    let in_candidate = |site: &Site| candidate.iter().position(|other| other == site);
    let pair = |(at, site): (usize, &Site)| in_candidate(site).map(|other| (*site, at, other));
    reference.iter().enumerate().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Captures, Recorder};
    use crate::decision::Verdict;
    use crate::disturbance::Disturbance;
    use crate::noise::{Deviations, RunVariant};

    const COLUMNS: usize = 64;
    const CHALLENGES: usize = 32;

    /// A "model" of two sites with waves as activations; those of the second change by `change`.
    fn captures(change: f32, disturbance: Disturbance) -> Captures {
        let mut recorder = Recorder::new(1024, &[1; CHALLENGES]).unwrap();
        for block in 0..2 {
            let number = |x: usize| {
                let plain = (x as f32 * (0.37 + block as f32)).sin();
                plain + if block == 1 { change * (x as f32 * 1.7).cos() } else { 0.0 }
            };
            let mut numbers: Vec<f32> = (0..CHALLENGES * COLUMNS).map(number).collect();
            disturbance.apply(&mut numbers, COLUMNS, block + 1, 0);
            recorder.record(Site::Block(block as usize), &numbers, COLUMNS).unwrap();
        }
        recorder.finish()
    }

    fn noise(plain: &Captures) -> Noise {
        let run = |seed| {
            let other = captures(0.0, Disturbance::summation_order(64, seed));
            Deviations::between(plain, &other)
        };
        let name = "another order of summation".into();
        let class = NoiseClass::Arithmetic;
        Noise { variants: vec![RunVariant { name, class, runs: vec![run(1), run(2)] }] }
    }

    fn compared(change: f32, disturbance: Disturbance) -> Comparison {
        let plain = captures(0.0, Disturbance::None);
        let other = captures(change, disturbance);
        let side = |of: &'_ Captures| (of.sites.clone(), of.sketches.clone());
        let ((a_sites, a), (b_sites, b)) = (side(&plain), side(&other));
        compare(
            Side { sites: &a_sites, sketches: &a },
            &noise(&plain),
            NoiseClass::Arithmetic,
            Side { sites: &b_sites, sketches: &b },
            &DecisionRule::default(),
        )
        .unwrap()
    }

    #[test]
    fn noise_of_the_known_size_is_the_same_and_a_change_is_found_where_it_is() {
        let same = compared(0.0, Disturbance::summation_order(64, 7));
        assert_eq!(same.decision.verdict, Verdict::Same);
        let different = compared(1e-3, Disturbance::None);
        assert_eq!(different.decision.verdict, Verdict::Different);
        assert_eq!(different.decision.first_diverging, Some(Site::Block(1)));
        assert_eq!(different.sites[0].distance.fine, 0.0);
    }

    #[test]
    fn sides_without_a_common_site_or_with_other_challenges_are_refused() {
        let plain = captures(0.0, Disturbance::None);
        let compare_with = |sites: &[Site], sketches: &[Vec<Sketch>]| {
            compare(
                Side { sites: &plain.sites, sketches: &plain.sketches },
                &noise(&plain),
                NoiseClass::Arithmetic,
                Side { sites, sketches },
                &DecisionRule::default(),
            )
        };
        let elsewhere = [Site::Norm, Site::Head];
        assert!(compare_with(&elsewhere, &plain.sketches).is_err());
        assert!(compare_with(&plain.sites, &plain.sketches[1..]).is_err());
        assert!(compare_with(&plain.sites, &plain.sketches).is_ok());
    }
}
