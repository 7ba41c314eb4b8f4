//! Two fingerprints of the same challenges, compared: from sketches to a verdict.

use serde::{Deserialize, Serialize};

use crate::decision::{self, Decision, Rule, excess};
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::noise::{Class, Noise};
use crate::site::Site;
use crate::sketch::{Apart, Sketch};

/// What was found at a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteResult {
    /// The site.
    pub site: Site,
    /// The mean deviation of the challenges.
    pub apart: Apart,
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
    pub class: Class,
    /// The verdict.
    pub decision: Decision,
    /// What was found at each site.
    pub sites: Vec<SiteResult>,
}

/// Compares `candidate` with `reference`, whose noise counts.
pub fn compare(
    reference: &Fingerprint,
    candidate: &Fingerprint,
    rule: &Rule,
) -> Result<Comparison, VerifyError> {
    check_tokenizers(reference, candidate)?;
    if reference.commitment != candidate.commitment {
        return Err(VerifyError::incomparable(format!(
            "the fingerprints are of different challenges ({:.12}… and {:.12}…)",
            reference.commitment, candidate.commitment
        )));
    }
    compare_sketches(reference, &reference.sketches, &reference.noise, candidate, rule)
}

/// Compares `candidate` with `sketches`, which are `reference`'s of the same challenges.
pub(crate) fn compare_sketches(
    reference: &Fingerprint,
    sketches: &[Vec<Sketch>],
    noise: &Noise,
    candidate: &Fingerprint,
    rule: &Rule,
) -> Result<Comparison, VerifyError> {
    rule.check()?;
    let pairs = common_sites(reference, candidate)?;
    let class = class(reference, candidate, noise);
    let challenges = sketches.len();
    let tolerances = noise.tolerances(class, challenges, reference.sites.len())?;
    let mut excesses = Vec::with_capacity(challenges);
    let mut sums = vec![(Apart::default(), 0.0); pairs.len()];
    for ((ours, theirs), fine) in sketches.iter().zip(&candidate.sketches).zip(&tolerances.fine) {
        let mut of_challenge = Vec::with_capacity(pairs.len());
        for ((_, one, other), (sum, tolerance)) in pairs.iter().zip(&mut sums) {
            let apart = ours[*one].apart(&theirs[*other]);
            let beyond = excess(apart.fine, fine[*one]);
            of_challenge.push(beyond.max(excess(apart.profile, tolerances.profile[*one])));
            sum.fine += apart.fine / challenges as f64;
            sum.profile += apart.profile.min(1e6) / challenges as f64;
            sum.hamming += apart.hamming / challenges as f64;
            *tolerance += fine[*one] / challenges as f64;
        }
        excesses.push(of_challenge);
    }
    let sites: Vec<Site> = pairs.iter().map(|(site, ..)| *site).collect();
    let decision = decision::decide(rule, &sites, &excesses);
    let results = sites.iter().zip(sums).zip(&decision.excess);
    let results = results
        .map(|((site, (apart, tolerance)), excess)| SiteResult {
            site: *site,
            apart,
            tolerance,
            excess: *excess,
        })
        .collect();
    Ok(Comparison { class, decision, sites: results })
}

/// What noise is allowed for: rounding, unless both store their weights in the same dtypes and
/// were run in the same precision, on a device whose noise is known.
pub fn class(reference: &Fingerprint, candidate: &Fingerprint, noise: &Noise) -> Class {
    let (ours, theirs) = (&reference.run, &candidate.run);
    let same = reference.model.dtypes == candidate.model.dtypes
        && ours.precision == theirs.precision
        && (ours.device == theirs.device || noise.knows(&theirs.device));
    if same { Class::Arithmetic } else { Class::Rounding }
}

/// The sites that both have, with their places. What must be equal for a comparison to mean
/// anything is checked here; that two models are built differently is a finding, not an error.
fn common_sites(
    reference: &Fingerprint,
    candidate: &Fingerprint,
) -> Result<Vec<(Site, usize, usize)>, VerifyError> {
    let incomparable = |why: String| Err(VerifyError::incomparable(why));
    if reference.policy.bits != candidate.policy.bits {
        return incomparable(format!(
            "the sketches have {} and {} bits",
            reference.policy.bits, candidate.policy.bits
        ));
    }
    let (ours, theirs) = (reference.site_list(), candidate.site_list());
    let built_alike = reference.model.sites() == candidate.model.sites();
    let mut pairs = Vec::new();
    for (place, site) in ours.iter().enumerate() {
        match theirs.iter().position(|other| other == site) {
            Some(other) => pairs.push((*site, place, other)),
            None if built_alike => {
                return incomparable(format!(
                    "the candidate's fingerprint lacks the site '{site}'"
                ));
            }
            // The candidate has no such place.
            None => {}
        }
    }
    if pairs.is_empty() {
        return incomparable("the fingerprints have no site in common".to_owned());
    }
    Ok(pairs)
}

/// Refuses models whose tokens are not the same.
pub(crate) fn check_tokenizers(
    reference: &Fingerprint,
    candidate: &Fingerprint,
) -> Result<(), VerifyError> {
    let (ours, theirs) = (&reference.model, &candidate.model);
    if let (Some(one), Some(other)) = (&ours.tokenizer, &theirs.tokenizer)
        && one != other
    {
        return Err(VerifyError::incomparable(
            "the models have different tokenizers, so the same token ids are different questions",
        ));
    }
    if ours.vocab != theirs.vocab {
        return Err(VerifyError::incomparable(format!(
            "the models have vocabularies of {} and {} tokens",
            ours.vocab, theirs.vocab
        )));
    }
    Ok(())
}
