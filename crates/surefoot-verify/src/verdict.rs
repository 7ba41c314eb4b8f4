//! Comparing two subjects with a [`Verifier`]: fingerprints of both, the verdict, and whether their
//! files are the same.

use std::path::Path;

use surefoot::device::DeviceName;
use surefoot_models::Opened;
use surefoot_models::generate::text::Texts;

use crate::challenge_source::ChallengeOptions;
use crate::decision::DecisionRule;
use crate::endpoint::{self, Tokenizer};
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::recheck;
use crate::subject::Subject;
use crate::transcript::{Candidate, Transcript};
use crate::verifier::{Progress, Verifier};
use crate::weights::{self, FileComparison};

/// How two subjects are compared.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// The error rates, and what counts as different.
    pub rule: DecisionRule,
    /// The challenges, unless one side is a fingerprint, which has its own.
    pub challenges: ChallengeOptions,
    /// Another device of the footing's chain to measure noise on.
    pub calibrate_on: Option<DeviceName>,
    /// The model that an endpoint is asked for; the first it names if none.
    pub endpoint_model: Option<String>,
    /// The key that an endpoint wants.
    pub endpoint_key: Option<String>,
}

/// A comparison.
#[derive(Debug)]
pub struct Compared {
    /// Both sides, the rule and the verdict.
    pub transcript: Transcript,
    /// Whether the files are the same; none where the candidate is an endpoint.
    pub files: Option<FileComparison>,
}

impl Verifier<'_> {
    /// Compares `candidate` with `reference`, whose noise counts.
    pub fn compare(
        &self,
        reference: Subject,
        candidate: Subject,
        options: &CompareOptions,
    ) -> Result<Compared, VerifyError> {
        options.rule.check()?;
        let folders = match (&reference, &candidate) {
            (Subject::Folder(one), Subject::Folder(other)) => Some((one.clone(), other.clone())),
            _ => None,
        };
        let tokenizer = match &reference {
            Subject::Folder(folder) => TextTokenizer::open(folder),
            _ => None,
        };
        if let Some((ours, theirs)) = &folders {
            self.round_like(ours, theirs)?;
        }
        let reference = self.reference_of(reference, &candidate, options)?;
        let rule = options.rule;
        let transcript = match candidate {
            Subject::Fingerprint(candidate) => Transcript::of_models(reference, *candidate, rule)?,
            Subject::Folder(folder) => {
                let policy = recheck::all_sites(reference.policy);
                let candidate = self.candidate(&folder, &reference.challenges, policy)?;
                Transcript::of_models(reference, candidate, rule)?
            }
            Subject::Endpoint(url) => {
                self.tell(Progress::Endpoint(&url));
                let answers = endpoint::ask(
                    &url,
                    options.endpoint_model.as_deref(),
                    options.endpoint_key.as_deref(),
                    &reference,
                    tokenizer.as_ref().map(|tokenizer| tokenizer as &dyn Tokenizer),
                )?;
                Transcript::of_endpoint(reference, answers, rule)?
            }
        };
        let files = match &transcript.candidate {
            Candidate::Endpoint(..) => None,
            Candidate::Model(candidate) => {
                let (ours, theirs) = (&transcript.reference.model, &candidate.model);
                let folders = folders.as_ref().map(|(a, b)| (a.as_path(), b.as_path()));
                Some(weights::compare_files(ours, theirs, folders)?)
            }
        };
        Ok(Compared { transcript, files })
    }

    fn reference_of(
        &self,
        reference: Subject,
        candidate: &Subject,
        options: &CompareOptions,
    ) -> Result<Fingerprint, VerifyError> {
        let folder = match reference {
            Subject::Fingerprint(fingerprint) => return Ok(*fingerprint),
            Subject::Folder(folder) => folder,
            Subject::Endpoint(url) => {
                return Err(VerifyError::request(format!(
                    "{url} can't be the reference: an endpoint shows too little to measure its \
                     noise; name the model folder or the fingerprint first, the endpoint second"
                )));
            }
        };
        let (set, policy) = match candidate {
            Subject::Fingerprint(other) => (other.challenges.clone(), other.policy),
            _ => {
                let set = options.challenges.set(self.runner(&folder)?.opened())?;
                (set, options.challenges.policy)
            }
        };
        self.tell(Progress::Challenges(&set));
        self.reference(&folder, &set, policy, options.calibrate_on)
    }
}

/// The reference's tokenizer, for endpoints that take only text.
struct TextTokenizer(Texts);

impl TextTokenizer {
    fn open(folder: &Path) -> Option<Self> {
        let vocab = Opened::new(folder).ok()?.blueprint.vocab;
        Texts::open(folder, vocab).ok().map(Self)
    }
}

impl Tokenizer for TextTokenizer {
    fn text(&self, ids: &[u32]) -> Option<String> {
        let text = self.0.decode(ids).ok()?;
        (self.0.encode(&text).ok()? == ids).then_some(text)
    }

    fn token(&self, id: u32) -> Option<String> {
        self.0.decode(&[id]).ok()
    }
}
