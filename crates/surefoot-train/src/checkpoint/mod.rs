//! Checkpoints: one safetensors file each, with the run's manifest as JSON in its metadata.
//!
//! A checkpoint is written to a temporary file beside its place, synced, and renamed, and the
//! folder is synced after that. So at any moment each file in the folder that has a checkpoint's
//! name is whole. One file holds all that is needed to go on with the run, to test the model and
//! to use it: weights, optimizer state, the resolved configuration, and what the data means.
//!
//! Tensors: `model.PATH`, `first.PATH` and `second.PATH` (the optimizer's moments). Metadata:
//! `surefoot`, a JSON object, see [`Manifest`], and `blake3`, a digest of the whole file.

mod file;
mod folder;
mod lock;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Entries;
use crate::data::{DataDescription, Form};
use crate::report::{EpochReport, FaultReport};
use crate::scale::LossScale;

pub use file::{read, read_manifest, write};
pub use folder::{CheckpointFolder, fresh_folder, has_run, latest_folder};

/// The version of what is in the metadata.
pub const VERSION: u32 = 2;

/// Everything about a run at one step that isn't a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
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
    /// Steps with inf or NaN since the last good one.
    pub bad_in_a_row: u32,
    /// The epoch that is under way.
    pub running: Running,
    /// Epochs that are done.
    pub epochs: Vec<EpochReport>,
    /// The best checkpoint so far.
    pub best: Option<Best>,
    /// What a budget led to; none without one.
    pub fitted: Option<Fitted>,
    /// Seconds of training so far.
    pub seconds: f64,
    /// The resolved configuration, defaults included.
    pub config: Entries,
    /// The keys of it that flags set, not the configuration file.
    pub flags: Vec<(String, String)>,
    /// What the data means: classes, columns, vocabulary, normalisation.
    pub data: DataDescription,
    /// Faults that the run met so far.
    pub faults: Vec<FaultReport>,
    /// Samples that could not be read so far, by name.
    pub unreadable: BTreeSet<String>,
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
    /// The better of this and another test. Classifiers are compared by their accuracy, then by
    /// their loss; models for text and numbers by their loss. A test whose loss is not finite is
    /// never the best.
    #[must_use]
    pub fn or_better(best: Option<Self>, other: Self, form: Form) -> Option<Self> {
        if !other.test_loss.is_finite() {
            return best;
        }
        let by_accuracy = form.classes().is_some();
        let rank = |one: &Self| (if by_accuracy { one.test_accuracy } else { 0.0 }, -one.test_loss);
        match best {
            Some(best) if rank(&best) >= rank(&other) => Some(best),
            _ => Some(other),
        }
    }
}

/// A checkpoint that can't be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// Its content is not what was written.
    #[error("{}: it is damaged: its digest is not that of its content", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
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

impl CheckpointError {
    /// Whether it could be written if there were room on the disk.
    pub fn is_full_disk(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}

fn named(process: Option<u32>) -> String {
    process.map(|process| format!(", in process {process}")).unwrap_or_default()
}
