//! Whether several ranks would train the same model on the same data: checked before the first step.

use std::collections::BTreeMap;

use super::run_state::RunState;
use super::{Run, TrainError};
use crate::data::{Sample, Source, read_caught};
use crate::model::Trainable;
use crate::parameters::Shape;
use crate::ranks;

/// Keys of a configuration that may differ between ranks.
const FREE_KEYS: [&str; 8] = [
    "device",
    "memory",
    "workers",
    "loading",
    "checkpoint.folder",
    "checkpoint.keep",
    "data.path",
    "model.path",
];

/// How many samples, spread evenly, are read to compare the data.
const COMPARED_SAMPLES: usize = 64;

impl Run<'_> {
    /// Refuses to start if configuration, data or version differ between ranks.
    pub(super) fn check_ranks_agree(&self, shapes: &[Shape]) -> Result<(), TrainError> {
        if self.ranks.is_none() {
            return Ok(());
        }
        let mut facts: BTreeMap<String, String> = self.config.entries().into_iter().collect();
        facts.retain(|key, _| !FREE_KEYS.contains(&key.as_str()));
        let mut fact = |name: &str, value: String| facts.insert(name.to_owned(), value);
        fact("the version of surefoot", env!("CARGO_PKG_VERSION").to_owned());
        let (train, test) = (&self.data.train, &self.data.test);
        fact("the number of training samples", train.len().to_string());
        fact("the number of test samples", test.len().to_string());
        fact("the digest of training samples", digest_of_samples(&**train));
        fact("the digest of test samples", digest_of_samples(&**test));
        let described = serde_json::to_vec(&self.data.description).unwrap_or_default();
        fact("the digest of the data's description", short_digest(&described));
        fact(
            "the digest of the parameters' shapes",
            short_digest(format!("{shapes:?}").as_bytes()),
        );
        self.check_facts(&facts, 0)
    }

    /// Refuses to start from different weights.
    pub(super) fn check_states_agree<M: Trainable>(
        &self,
        run: &RunState<M>,
    ) -> Result<(), TrainError> {
        if self.ranks.is_none() {
            return Ok(());
        }
        let step = run.state.step;
        let held = run.state.hold().map_err(|fault| self.stopped(fault, step, None))?;
        let mut hasher = blake3::Hasher::new();
        for value in held.values.iter().flatten() {
            hasher.update(&value.to_le_bytes());
        }
        let weights = hasher.finalize().to_hex()[..16].to_owned();
        let facts = BTreeMap::from([
            ("the step to start from".to_owned(), step.to_string()),
            ("the digest of the weights".to_owned(), weights),
        ]);
        self.check_facts(&facts, step)
    }

    fn check_facts(&self, facts: &BTreeMap<String, String>, step: u64) -> Result<(), TrainError> {
        let Some(ranks) = self.ranks else { return Ok(()) };
        let differences =
            ranks::differences(ranks, facts).map_err(|fault| self.stopped(fault, step, None))?;
        match differences.is_empty() {
            true => Ok(()),
            false => Err(TrainError::RanksDiffer { differences }),
        }
    }
}

fn short_digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// A digest of samples spread evenly over a source: where they differ, the data is not the same.
fn digest_of_samples(source: &dyn Source) -> String {
    let mut hasher = blake3::Hasher::new();
    let count = source.len().min(COMPARED_SAMPLES);
    for at in (0..count).map(|at| at * source.len() / count) {
        match read_caught(source, at) {
            Ok(Sample::Dense { values, label }) => {
                for value in values {
                    hasher.update(&value.to_le_bytes());
                }
                hasher.update(format!("{label:?}").as_bytes());
            }
            Ok(other) => {
                hasher.update(format!("{other:?}").as_bytes());
            }
            Err(_) => {
                hasher.update(b"unreadable");
            }
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}
