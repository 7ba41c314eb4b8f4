//! Checkpoints: one safetensors file each, with the run's story as JSON in its metadata.
//!
//! A checkpoint is written to a temporary file beside its place, synced, and renamed, and the
//! folder is synced after that. So at any moment each file in the folder that has a checkpoint's
//! name is whole. One file holds all there is, so weights and story can't come apart.
//!
//! Tensors: `model.PATH`, `first.PATH` and `second.PATH` (the optimizer's moments). Metadata:
//! `surefoot`, a JSON object, see [`Story`].

mod file;
mod shelf;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::report::EpochReport;
use crate::scale::LossScale;

pub use file::{read, read_story, write};
pub use shelf::{Shelf, fresh_folder, latest_folder};

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
    /// The epoch that is under way.
    pub running: Running,
    /// Epochs that are done.
    pub epochs: Vec<EpochReport>,
    /// The best checkpoint so far.
    pub best: Option<Best>,
    /// Seconds of training so far.
    pub seconds: f64,
    /// The configuration as it was read, so that a checkpoint explains itself.
    pub config: String,
    /// Keys that flags overrode.
    pub flags: Vec<(String, String)>,
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

/// The checkpoint that tested best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its step.
    pub step: u64,
    /// Its loss on the test samples.
    pub test_loss: f64,
    /// Its share of right answers on the test samples.
    pub test_accuracy: f64,
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
    /// It is no checkpoint of this program.
    #[error("{}: {why}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
