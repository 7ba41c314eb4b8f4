//! Two fingerprints of the same challenges, compared: from sketches to a verdict.

use surefoot_stats::comparison::{self, Side};
pub use surefoot_stats::comparison::{Comparison, SiteResult};

use crate::decision::DecisionRule;
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::noise::{Noise, NoiseClass};
use crate::sketch::Sketch;
use crate::weight_form::{self, WeightForm};

/// Compares `candidate` with `reference`, whose noise counts.
pub fn compare(
    reference: &Fingerprint,
    candidate: &Fingerprint,
    rule: &DecisionRule,
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
    rule: &DecisionRule,
) -> Result<Comparison, VerifyError> {
    check_sites(reference, candidate)?;
    let class = class(reference, candidate, noise);
    let (ours, theirs) = (reference.site_list(), candidate.site_list());
    let reference = Side { sites: &ours, sketches };
    let candidate = Side { sites: &theirs, sketches: &candidate.sketches };
    Ok(comparison::compare(reference, noise, class, candidate, rule)?)
}

/// What noise is allowed for: rounding, unless both store their weights in the same dtypes and
/// were run in the same precision, on a device whose noise is known.
pub fn class(reference: &Fingerprint, candidate: &Fingerprint, noise: &Noise) -> NoiseClass {
    let (ours, theirs) = (&reference.run, &candidate.run);
    let alike = reference.model.dtypes == candidate.model.dtypes && ours.weights == theirs.weights;
    let formats = WeightForm::RoundedTo(candidate.model.dtypes.clone());
    let rounded = ours.weights == Some(formats)
        && theirs.weights.is_none()
        && !weight_form::is_ambiguous(candidate.model.dtypes.iter());
    let same = (alike || rounded)
        && ours.precision == theirs.precision
        && (ours.device == theirs.device || noise.covers_device(&theirs.device));
    if same { NoiseClass::Arithmetic } else { NoiseClass::Rounding }
}

/// Checks what must be equal for a comparison to mean anything. That two models are built
/// differently is a finding, not an error: then the sites that both have are compared.
fn check_sites(reference: &Fingerprint, candidate: &Fingerprint) -> Result<(), VerifyError> {
    if reference.policy.bits != candidate.policy.bits {
        return Err(VerifyError::incomparable(format!(
            "the sketches have {} and {} bits",
            reference.policy.bits, candidate.policy.bits
        )));
    }
    let theirs = candidate.site_list();
    let built_alike = reference.model.sites() == candidate.model.sites();
    let missing = reference.site_list().into_iter().find(|site| !theirs.contains(site));
    match missing {
        Some(site) if built_alike => Err(VerifyError::incomparable(format!(
            "the candidate's fingerprint lacks the site '{site}'"
        ))),
        _ => Ok(()),
    }
}

/// Refuses models whose tokens are not the same.
pub(crate) fn check_tokenizers(
    reference: &Fingerprint,
    candidate: &Fingerprint,
) -> Result<(), VerifyError> {
    let (ours, theirs) = (&reference.model, &candidate.model);
    // A GGUF file has its tokenizer in another form than a folder, so their digests can't be compared.
    let is_gguf = |model: &Identity| model.files.iter().any(|file| file.name.ends_with(".gguf"));
    if let (Some(one), Some(other)) = (&ours.tokenizer, &theirs.tokenizer)
        && is_gguf(ours) == is_gguf(theirs)
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
