//! The transcript of a comparison: both sides, the rule and the verdict. Whoever has it can
//! compute the verdict again.

use serde::{Deserialize, Serialize};

use crate::compare::{self, Comparison};
use crate::decision::{Decision, DecisionRule};
use crate::endpoint::{self, Answers, Weakness};
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::seal::{self, Seal, SecretKey};

/// What a transcript's file says it is.
pub const FORMAT: &str = "surefoot-comparison";
/// The version of the format.
pub const VERSION: u32 = 1;

/// What is compared with the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Candidate {
    /// A model that was run here.
    Model(Box<Fingerprint>),
    /// An endpoint, and how much less it shows.
    Endpoint(Answers, Weakness),
}

/// A comparison with all that it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transcript {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`].
    pub version: u32,
    /// The version of the program.
    pub made_by: String,
    /// The error rates and what counts as different.
    pub rule: DecisionRule,
    /// The verdict.
    pub comparison: Comparison,
    /// What was compared with.
    pub reference: Fingerprint,
    /// What was compared.
    pub candidate: Candidate,
}

impl Transcript {
    /// Compares a model.
    pub fn of_models(
        reference: Fingerprint,
        candidate: Fingerprint,
        rule: DecisionRule,
    ) -> Result<Self, VerifyError> {
        let comparison = compare::compare(&reference, &candidate, &rule)?;
        Ok(Self::new(reference, Candidate::Model(Box::new(candidate)), rule, comparison))
    }

    /// Compares an endpoint.
    pub fn of_endpoint(
        reference: Fingerprint,
        answers: Answers,
        rule: DecisionRule,
    ) -> Result<Self, VerifyError> {
        let (comparison, weakness) = endpoint::compare(&reference, &answers, &rule)?;
        Ok(Self::new(reference, Candidate::Endpoint(answers, weakness), rule, comparison))
    }

    fn new(
        reference: Fingerprint,
        candidate: Candidate,
        rule: DecisionRule,
        comparison: Comparison,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            made_by: format!("surefoot {}", env!("CARGO_PKG_VERSION")),
            rule,
            comparison,
            reference,
            candidate,
        }
    }

    /// The bytes of the file, sealed.
    pub fn seal(&self, key: Option<&SecretKey>) -> Result<Vec<u8>, VerifyError> {
        seal::seal(self, key)
    }

    /// Reads the bytes of a file, checks both sides and computes the verdict again.
    pub fn open(bytes: &[u8]) -> Result<(Self, Seal), VerifyError> {
        let (transcript, seal): (Self, Seal) = seal::open(bytes)?;
        if transcript.format != FORMAT {
            return Err(VerifyError::document(format!(
                "is not a transcript but '{}'",
                transcript.format
            )));
        }
        if transcript.version != VERSION {
            return Err(VerifyError::document(format!(
                "is a transcript of version {}, this program reads version {VERSION}",
                transcript.version
            )));
        }
        transcript.check()?;
        Ok((transcript, seal))
    }

    fn check(&self) -> Result<(), VerifyError> {
        self.reference.check()?;
        let again = match &self.candidate {
            Candidate::Model(candidate) => {
                candidate.check()?;
                compare::compare(&self.reference, candidate, &self.rule)?
            }
            Candidate::Endpoint(answers, weakness) => {
                let (comparison, found) = endpoint::compare(&self.reference, answers, &self.rule)?;
                if found != *weakness {
                    return Err(VerifyError::document("the evidence is not of the said strength"));
                }
                comparison
            }
        };
        if self.comparison.class == again.class
            && agree(&self.comparison.decision, &again.decision)
            && self.comparison.sites.len() == again.sites.len()
        {
            Ok(())
        } else {
            Err(VerifyError::document(format!(
                "says {}, but its contents give {}, or the same with other evidence",
                self.comparison.decision.verdict, again.decision.verdict
            )))
        }
    }
}

/// Whether two decisions are the same but for the last digits of logarithms, which differ from
/// system to system.
fn agree(one: &Decision, other: &Decision) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs());
    let evidence = |one: &Decision| -> Vec<f64> {
        let curve = one.curve.iter().chain([&one.evidence]);
        let mut numbers: Vec<f64> = curve.flat_map(|e| [e.ln_e_different, e.ln_e_same]).collect();
        numbers.extend(&one.excess);
        numbers
    };
    let (ours, theirs) = (evidence(one), evidence(other));
    one.verdict == other.verdict
        && one.challenges_used == other.challenges_used
        && one.first_diverging == other.first_diverging
        && ours.len() == theirs.len()
        && ours.iter().zip(&theirs).all(|(a, b)| near(*a, *b))
}
