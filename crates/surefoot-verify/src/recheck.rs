//! Running some challenges of a fingerprint again, to see whether a model gives what it says.

use crate::challenge::{ChallengeSet, fresh_key};
use crate::compare::{self, Comparison};
use crate::decision::DecisionRule;
use crate::error::VerifyError;
use crate::fingerprint::{Fingerprint, SketchPolicy};
use crate::site::SiteSelection;
use crate::sketch::Sketch;
use surefoot_stats::keyed_stream::KeyedStream;

/// `count` of `all` challenges, drawn by chance that nobody knows beforehand; in order.
pub fn sample(all: usize, count: usize) -> Result<Vec<usize>, VerifyError> {
    if count == 0 {
        return Err(VerifyError::request("no challenge is to be run again: the sample is 0"));
    }
    let mut stream = KeyedStream::new(&fresh_key()?, &[b"sample"]);
    let mut left: Vec<usize> = (0..all).collect();
    let mut chosen = Vec::new();
    while chosen.len() < count && !left.is_empty() {
        chosen.push(left.swap_remove(stream.below(left.len() as u64) as usize));
    }
    chosen.sort_unstable();
    Ok(chosen)
}

/// Only these challenges.
pub fn subset(set: &ChallengeSet, chosen: &[usize]) -> Result<ChallengeSet, VerifyError> {
    Ok(ChallengeSet::prompts(chosen.iter().map(|at| set.sequences[*at].clone()).collect())?)
}

/// The same policy, with every site kept: a run can't know which were chosen.
pub fn all_sites(policy: SketchPolicy) -> SketchPolicy {
    SketchPolicy { sites: SiteSelection::All, ..policy }
}

/// Compares what a fingerprint says of the `chosen` challenges with a run of them, by the noise of
/// `calibrated`: the fingerprint itself, or the one it was compared with.
pub fn compare(
    claimed: &Fingerprint,
    calibrated: &Fingerprint,
    chosen: &[usize],
    again: &Fingerprint,
    rule: &DecisionRule,
) -> Result<Comparison, VerifyError> {
    compare::check_tokenizers(claimed, again)?;
    // The sites that both have: only there the noise is known.
    let known = calibrated.site_list();
    let (mut places, mut of_noise) = (Vec::new(), Vec::new());
    for (place, site) in claimed.site_list().iter().enumerate() {
        if let Some(at) = known.iter().position(|other| other == site) {
            places.push(place);
            of_noise.push(at);
        }
    }
    let mut noise = calibrated.noise.clone();
    noise.select_sites(&of_noise);
    noise.select_challenges(chosen);
    let mut claimed = claimed.clone();
    claimed.sites = places.iter().map(|place| claimed.sites[*place].clone()).collect();
    let of_challenge = |at: &usize| -> Vec<Sketch> {
        places.iter().map(|place| claimed.sketches[*at][*place].clone()).collect()
    };
    let sketches: Vec<Vec<Sketch>> = chosen.iter().map(of_challenge).collect();
    compare::compare_sketches(&claimed, &sketches, &noise, again, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_no_challenge_twice_and_no_more_than_there_are() {
        let some = sample(32, 12).unwrap();
        assert_eq!(some.len(), 12);
        assert!(some.is_sorted_by(|a, b| a < b) && some[11] < 32);
        assert_eq!(sample(5, 12).unwrap(), [0, 1, 2, 3, 4]);
        assert!(sample(5, 0).is_err());
        // By chance: the same twice would be one in hundreds of millions.
        assert_ne!(sample(1000, 12).unwrap(), sample(1000, 12).unwrap());
    }
}
