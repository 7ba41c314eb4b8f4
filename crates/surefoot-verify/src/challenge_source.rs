//! Which challenges a model is given: made from a key, or someone's own prompts.

use std::path::{Path, PathBuf};

use surefoot_models::Opened;
use surefoot_models::generate::text::Texts;

use crate::challenge::{self, ChallengeSet};
use crate::error::VerifyError;
use crate::fingerprint::SketchPolicy;
use crate::hex;

/// The key that challenges are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKey {
    /// Everyone's, so that fingerprints can be compared.
    Public,
    /// A new one that nobody knows, so that no model can be prepared for it.
    Fresh,
    /// A key of the caller's own.
    Own([u8; 32]),
}

impl ChallengeKey {
    /// Reads a key of 64 hexadecimal digits.
    pub fn read(file: &Path) -> Result<Self, VerifyError> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| VerifyError::file(file, format!("can't be read: {error}")))?;
        hex::decode32(text.trim()).map(Self::Own).map_err(|_| {
            VerifyError::file(
                file,
                format!(
                    "holds no key: it must be 64 hexadecimal digits, 0-9 and a-f, as \
                     `openssl rand -hex 32 > {}` writes them",
                    file.display()
                ),
            )
        })
    }
}

/// Where challenges come from.
#[derive(Clone, Debug)]
pub enum ChallengeSource {
    /// Made from a key and a run id.
    Keyed {
        /// The key.
        key: ChallengeKey,
        /// Another run id, other challenges.
        run_id: String,
        /// How many.
        count: usize,
        /// The tokens of each, at most: never more than the model takes.
        tokens: usize,
    },
    /// The lines of a file.
    Prompts(PathBuf),
}

/// The challenges of a fingerprint, and what is kept of the model's answers.
#[derive(Clone, Debug)]
pub struct ChallengeOptions {
    /// Where challenges come from.
    pub source: ChallengeSource,
    /// What is kept.
    pub policy: SketchPolicy,
}

impl ChallengeOptions {
    /// The challenges for a model.
    pub fn set(&self, opened: &Opened) -> Result<ChallengeSet, VerifyError> {
        let blueprint = &opened.blueprint;
        match &self.source {
            ChallengeSource::Prompts(file) => prompts(file, opened),
            ChallengeSource::Keyed { key, run_id, count, tokens } => {
                let key = match key {
                    ChallengeKey::Public => challenge::public_key(),
                    ChallengeKey::Fresh => challenge::fresh_key()?,
                    ChallengeKey::Own(key) => *key,
                };
                let tokens = (*tokens).min(blueprint.max_positions);
                Ok(ChallengeSet::keyed(key, run_id, blueprint.vocab, *count, tokens)?)
            }
        }
    }
}

/// The lines of `file` that are not blank, as tokens.
fn prompts(file: &Path, opened: &Opened) -> Result<ChallengeSet, VerifyError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| VerifyError::file(file, format!("can't be read: {error}")))?;
    let mut texts = Texts::open(&opened.folder, opened.blueprint.vocab)?;
    texts.truncate(opened.blueprint.max_positions)?;
    let mut sequences = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let ids = texts.encode(line)?;
        if ids.is_empty() {
            return Err(VerifyError::file(file, format!("line {} has no tokens", number + 1)));
        }
        sequences.push(ids);
    }
    Ok(ChallengeSet::prompts(sequences)?)
}
