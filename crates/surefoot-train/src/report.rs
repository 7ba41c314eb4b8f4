//! What a run tells: news as it happens, and a report at the end.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::checkpoint::number_or_nan;
use crate::loader::Loading;

/// One epoch, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// From 1.
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// The mean loss while training.
    #[serde(deserialize_with = "number_or_nan")]
    pub train_loss: f64,
    /// The share of right answers while training.
    #[serde(deserialize_with = "number_or_nan")]
    pub train_accuracy: f64,
    /// The mean loss on the test samples.
    #[serde(deserialize_with = "number_or_nan")]
    pub test_loss: f64,
    /// The share of right answers on the test samples.
    #[serde(deserialize_with = "number_or_nan")]
    pub test_accuracy: f64,
    /// Samples trained on in a second.
    #[serde(deserialize_with = "number_or_nan")]
    pub samples_per_second: f64,
    /// Bytes that the device uses.
    pub memory: u64,
    /// The device at the end of the epoch.
    pub device: String,
}

/// A fault that a run met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultReport {
    /// The step that was under way, from 1.
    pub step: u64,
    /// The kind of fault.
    pub kind: String,
    /// Where.
    pub device: String,
    /// What it said.
    pub message: String,
    /// What was done about it; none if nothing could be.
    pub recovery: Option<String>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The share of right answers on the test samples, of the last weights.
    pub test_accuracy: f64,
    /// The mean loss on the test samples, of the last weights.
    pub test_loss: f64,
    /// Steps done.
    pub steps: u64,
    /// Seconds of training, over all parts of a resumed run.
    pub seconds: f64,
    /// The device at the end.
    pub device: String,
    /// How many faults were met.
    pub faults: usize,
    /// The last weights.
    pub checkpoint: PathBuf,
    /// The weights that tested best.
    pub best_checkpoint: PathBuf,
    /// Their share of right answers.
    pub best_test_accuracy: f64,
    /// Whether Ctrl-C ended it early.
    pub interrupted: bool,
    /// The precision of heavy operations.
    pub precision: String,
    /// The numbers in the model.
    pub parameters: usize,
    /// The most bytes that were in use.
    pub peak_memory: u64,
    /// Steps left out for inf or NaN.
    pub skipped_steps: u64,
    /// How often a sample was left out because it can't be read, in training and in tests.
    pub skipped_samples: u64,
    /// The step that the run went on from.
    pub resumed_from: Option<u64>,
    /// The faults.
    pub fault_log: Vec<FaultReport>,
    /// Every epoch.
    pub epochs: Vec<EpochReport>,
    /// The curves, if they could be drawn.
    pub curves: Option<PathBuf>,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The run begins, or goes on.
    Started {
        /// The numbers in the model.
        parameters: usize,
        /// Samples to train and to test on.
        samples: (usize, usize),
        /// Steps in all.
        steps: u64,
        /// The step it goes on from.
        from: u64,
        /// How batches are loaded.
        loading: Loading,
        /// Where checkpoints go.
        folder: PathBuf,
    },
    /// Batches are run in smaller ones, to stay within the budget.
    Fitted {
        /// Samples that are run at once.
        micro_batch: usize,
        /// The budget in bytes.
        budget: u64,
    },
    /// How batches are loaded was chosen anew, now that the time of a step is known.
    Loading {
        /// The choice.
        loading: Loading,
        /// Seconds of a step.
        step_seconds: f64,
    },
    /// A step is done.
    Step {
        /// How many are.
        step: u64,
        /// How many there will be.
        of: u64,
        /// The epoch's mean loss so far.
        loss: f64,
        /// The epoch's share of right answers so far.
        accuracy: f64,
        /// Samples in a second.
        samples_per_second: f64,
    },
    /// An epoch is done and tested.
    Epoch(EpochReport),
    /// Something failed.
    Fault(FaultReport),
    /// A way around it was taken.
    Recovery {
        /// The rung.
        rung: String,
        /// The device it is tried on.
        device: String,
        /// In how many parts a batch is run now.
        parts: u64,
    },
    /// A step was left out for inf or NaN.
    SkippedStep {
        /// Which.
        step: u64,
    },
    /// A sample was left out.
    SkippedSample {
        /// Which, and why.
        what: String,
    },
    /// Checkpoints of a course that is left behind were moved aside.
    SetAside {
        /// The step that the run goes on from.
        after: u64,
        /// Where they are now.
        folder: PathBuf,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Where.
        path: PathBuf,
        /// Whether it tested best.
        best: bool,
    },
    /// The state went with its device: steps since then are done again.
    Rewound {
        /// The step that was held on the host.
        to: u64,
    },
}
