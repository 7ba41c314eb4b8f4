//! What a training run reports: events while it runs, and a summary at the end.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use surefoot::Fault;

use crate::checkpoint::number_or_nan;
use crate::evaluate::Confusion;
use crate::loader::Loading;
use crate::ranks::RankReport;

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The rank that met it, where several train together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
}

impl FaultReport {
    /// A fault as the report shows it; `step` is the step that was under way, from 1.
    pub(crate) fn of(fault: &Fault, step: u64) -> Self {
        Self {
            step,
            kind: fault.kind.to_string(),
            device: fault.device.clone().unwrap_or_default(),
            message: fault.chain.join(": "),
            recovery: fault.response.as_ref().map(|response| response.rung.to_string()),
            rank: None,
        }
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TrainReport {
    /// What `accuracy` is: the share of right answers (`accuracy`), or in regression the share of
    /// the variance that is explained (`r2`).
    pub metric: &'static str,
    /// The share of right answers on the test samples, of the last weights; see `metric`.
    pub test_accuracy: f64,
    /// The mean loss on the test samples, of the last weights.
    pub test_loss: f64,
    /// Steps done.
    pub steps: u64,
    /// Seconds of training, over all parts of a resumed run.
    pub seconds: f64,
    /// The device at the end.
    pub device: String,
    /// How many faults were met, over all parts of a resumed run.
    pub faults: usize,
    /// The last weights.
    pub checkpoint: PathBuf,
    /// The weights that tested best.
    pub best_checkpoint: PathBuf,
    /// Their step; none if nothing was tested, or no test gave a finite loss.
    pub best_step: Option<u64>,
    /// Their share of right answers.
    pub best_test_accuracy: f64,
    /// Whether Ctrl-C ended it early.
    pub interrupted: bool,
    /// Whether it ended before its length because tests got no better.
    pub stopped_early: bool,
    /// How often each class was predicted for each, in the last test of a classifier.
    pub confusion: Option<Confusion>,
    /// The precision of heavy operations.
    pub precision: String,
    /// The numbers in the model.
    pub parameters: usize,
    /// The most bytes that were in use.
    pub peak_memory: u64,
    /// Steps left out for inf or NaN.
    pub skipped_steps: u64,
    /// Samples, in training and in tests, that were left out because they can't be read.
    pub skipped_samples: u64,
    /// The step that the run went on from.
    pub resumed_from: Option<u64>,
    /// The faults.
    pub fault_log: Vec<FaultReport>,
    /// The ranks that trained together; none if one process trained alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankReport>,
    /// Every epoch.
    pub epochs: Vec<EpochReport>,
    /// The curves, if they could be drawn.
    pub curves: Option<PathBuf>,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TrainEvent {
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
    /// An epoch is done: how each of several ranks is.
    Ranks(Vec<RankReport>),
    /// Ranks that lost their state with its device were given that of another rank.
    Restored {
        /// The rank that gave its state.
        from: usize,
    },
    /// A step was left out for inf or NaN.
    SkippedStep {
        /// Which.
        step: u64,
    },
    /// A sample can't be read and is left out: told once for each sample.
    SkippedSample {
        /// Which, and why.
        what: String,
    },
    /// Checkpoints of steps that are done again were moved aside.
    SetAside {
        /// The step that the run goes on from.
        after: u64,
        /// Where they are now.
        folder: PathBuf,
    },
    /// There is no room for a checkpoint; the run waits until there is.
    DiskFull {
        /// Where it should go.
        path: PathBuf,
        /// How long it has waited.
        waited_seconds: u64,
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
