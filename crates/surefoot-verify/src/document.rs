//! The two kinds of files that verification writes: fingerprints, and transcripts of comparisons.
//! Reading one checks everything that its own contents show; [`Verifier::recheck`] also runs the
//! model again.

use std::path::Path;

use serde::Serialize;
use surefoot_models::Opened;

use crate::compare::Comparison;
use crate::decision::DecisionRule;
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::recheck;
use crate::seal::{self, Seal};
use crate::transcript::{self, Candidate, Transcript};
use crate::verifier::Verifier;

/// The start of a file, in which its kind is named.
const START: usize = 200;

/// A fingerprint or a transcript.
#[derive(Debug)]
pub enum Document {
    /// A fingerprint.
    Fingerprint(Box<Fingerprint>),
    /// The transcript of a comparison.
    Comparison(Box<Transcript>),
}

/// A sample of a document's challenges, run again.
#[derive(Clone, Debug, Serialize)]
pub struct Recheck {
    /// Which side was run: `fingerprint`, `reference` or `candidate`.
    pub side: &'static str,
    /// Whether the folder has the very files that the document is of.
    pub same_files: bool,
    /// The challenges that were run again.
    pub challenges: Vec<usize>,
    /// What was found.
    pub comparison: Comparison,
}

impl Document {
    /// Reads a file and checks it.
    pub fn read(path: &Path) -> Result<(Self, Seal), VerifyError> {
        let bytes = seal::read(path)?;
        let named = |error: VerifyError| error.of_file(path);
        // The file says which kind it is; reading it checks that.
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(START)]).into_owned();
        if start.contains(transcript::FORMAT) {
            let (transcript, seal) = Transcript::open(&bytes).map_err(named)?;
            Ok((Self::Comparison(Box::new(transcript)), seal))
        } else {
            let (fingerprint, seal) = Fingerprint::open(&bytes).map_err(named)?;
            Ok((Self::Fingerprint(Box::new(fingerprint)), seal))
        }
    }

    /// The fingerprint, or that of the reference.
    pub fn reference(&self) -> &Fingerprint {
        match self {
            Self::Fingerprint(fingerprint) => fingerprint,
            Self::Comparison(transcript) => &transcript.reference,
        }
    }
}

impl Verifier<'_> {
    /// Runs `sample` challenges of `document`, drawn at random, again on the model in `folder`. For
    /// a transcript that is the side whose files the folder has, else the candidate.
    pub fn recheck(
        &self,
        document: &Document,
        folder: &Path,
        sample: usize,
    ) -> Result<Recheck, VerifyError> {
        let files = Identity::read(&Opened::new(folder)?)?.files;
        let (side, claimed, calibrated) = match document {
            Document::Fingerprint(it) => ("fingerprint", it.as_ref(), it.as_ref()),
            Document::Comparison(transcript) => match &transcript.candidate {
                Candidate::Model(candidate) if files != transcript.reference.model.files => {
                    ("candidate", candidate.as_ref(), &transcript.reference)
                }
                _ => ("reference", &transcript.reference, &transcript.reference),
            },
        };
        let challenges = recheck::sample(claimed.sketches.len(), sample)?;
        let set = recheck::subset(&claimed.challenges, &challenges)?;
        let again = self.candidate(folder, &set, recheck::all_sites(claimed.policy))?;
        let rule = DecisionRule::default();
        let comparison = recheck::compare(claimed, calibrated, &challenges, &again, &rule)?;
        Ok(Recheck { side, same_files: files == claimed.model.files, challenges, comparison })
    }
}
