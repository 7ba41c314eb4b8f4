//! Checkpoints: one safetensors file each, with the run's story as JSON in its metadata.
//!
//! A checkpoint is written to a temporary file beside its place, synced, and renamed, and the
//! folder is synced after that. So at any moment each file in the folder that has a checkpoint's
//! name is whole. One file holds all there is, so weights and story can't come apart.
//!
//! Tensors: `model.PATH`, `first.PATH` and `second.PATH` (the optimizer's moments). Metadata:
//! `surefoot`, a JSON object, see [`Story`].

mod file;
mod lock;
mod shelf;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::report::EpochReport;
use crate::scale::LossScale;

pub use file::{read, read_story, write};
pub use shelf::{Shelf, fresh_folder, has_run, latest_folder};

/// The version of what is in the metadata.
pub const VERSION: u32 = 1;

/// Everything about a run at one step that isn't a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Story {
    /// The version of this object.
    pub version: u32,
    /// Steps done.
    pub step: u64,
    /// How often weights were changed.
    pub updates: u64,
    /// The factor of the loss.
    pub scale: LossScale,
    /// What the order of the data depends on; a resumed run must have the same.
    pub order: Order,
    /// Steps with inf or NaN since the last good one; 0 in files of earlier versions.
    #[serde(default)]
    pub bad_in_a_row: u32,
    /// The epoch that is under way.
    pub running: Running,
    /// Epochs that are done.
    pub epochs: Vec<EpochReport>,
    /// The best checkpoint so far.
    pub best: Option<Best>,
    /// What a budget led to; none without one, and in files of earlier versions.
    #[serde(default)]
    pub fitted: Option<Fitted>,
    /// Seconds of training so far.
    pub seconds: f64,
    /// The configuration as it was read, so that a checkpoint explains itself.
    pub config: String,
    /// Keys that flags overrode.
    pub flags: Vec<(String, String)>,
}

/// How many samples are run at once to stay within a budget. A resumed run takes it over: in other
/// parts a batch's gradient would be added up in another order, and differ in its last bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fitted {
    /// The device it was tried on.
    pub device: String,
    /// The budget in bytes.
    pub budget: u64,
    /// Samples that are run at once.
    pub micro_batch: usize,
}

/// What decides which sample comes when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The seed.
    pub seed: u64,
    /// Samples of a step.
    pub batch: usize,
    /// Samples to train on.
    pub samples: usize,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, batch, samples } = self;
        write!(f, "seed {seed}, batches of {batch} and {samples} samples")
    }
}

/// Sums over an epoch that is under way. Kept as bits, so that they come back exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    #[serde(with = "bits")]
    pub(crate) loss: f64,
    #[serde(with = "bits")]
    pub(crate) correct: f64,
    pub(crate) items: u64,
    pub(crate) skipped_steps: u64,
    pub(crate) skipped_samples: u64,
}

mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(number.to_bits())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

/// JSON has no NaN and no infinity: `serde_json` writes both as null, which is read as NaN, so
/// that a run whose loss is no number can still be read back.
pub(crate) fn number_or_nan<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|number| number.unwrap_or(f64::NAN))
}

/// The checkpoint that tested best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step.
    pub step: u64,
    /// Its loss on the test samples.
    #[serde(deserialize_with = "number_or_nan")]
    pub test_loss: f64,
    /// Its share of right answers on the test samples.
    #[serde(deserialize_with = "number_or_nan")]
    pub test_accuracy: f64,
}

impl Best {
    /// Whether a test with these results is better: by its accuracy, then by its loss. A loss that
    /// is no number is the worst.
    pub fn is_beaten_by(&self, accuracy: f64, loss: f64) -> bool {
        let rank = |accuracy: f64, loss: f64| {
            let number = |number: f64| if number.is_nan() { f64::NEG_INFINITY } else { number };
            (number(accuracy), number(-loss))
        };
        rank(accuracy, loss) > rank(self.test_accuracy, self.test_loss)
    }
}

/// A checkpoint that can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// Another run is at work in the folder.
    #[error("{}: another run is at work there{}", folder.display(), named(*process))]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The other run's process, if it could be told.
        process: Option<u32>,
    },
    /// It is no checkpoint of this program.
    #[error("{}: {why}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

fn named(process: Option<u32>) -> String {
    process.map(|process| format!(", in process {process}")).unwrap_or_default()
}
