//! The configuration of a run: a YAML file, overridden by flags.
//!
//! Every key has a default but `data.kind`, `model.kind` and the length of the run. A key that
//! isn't known, or a value that can't be, is an error with its line.

mod entries;
mod error;
mod read;
mod resume;
mod section;
#[cfg(test)]
mod tests;
mod yaml;

use std::path::{Path, PathBuf};

use surefoot::device::Selector;
use surefoot::place::Precision;
use surefoot::recover::Policy;

use crate::data::Augment;
use crate::optimizer::{Schedule, UpdateRule};

pub use entries::Entries;
pub use error::ConfigError;
pub use resume::{Difference, ResumeError, Resumed, resume};

/// A whole run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which devices, in which order.
    pub device: Selector,
    /// The precision of heavy operations.
    pub precision: Precision,
    /// A budget in bytes.
    pub memory: Option<u64>,
    /// The random seed.
    pub seed: u64,
    /// The samples.
    pub data: DataConfig,
    /// The model.
    pub model: ModelConfig,
    /// Samples of a step, before `accumulate`.
    pub batch_size: usize,
    /// How long to train.
    pub length: Length,
    /// Ends the run once so many epochs in a row did not test better than the best.
    pub early_stop: Option<u64>,
    /// How weights are changed.
    pub optimizer: OptimizerConfig,
    /// Gradients together are never longer than this.
    pub clip_norm: Option<f64>,
    /// Whether activations are computed again in the backward pass instead of being kept.
    pub gradient_checkpointing: bool,
    /// Batches whose gradients are added up for one step.
    pub accumulate: usize,
    /// What is kept.
    pub checkpoint: CheckpointConfig,
    /// What recovery may do.
    pub on_fault: OnFault,
    /// How batches are loaded.
    pub loading: LoadingConfig,
}

/// How batches are loaded; what is left out is chosen by the device and by measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadingConfig {
    /// Threads that load.
    pub workers: Option<usize>,
    /// Batches that these threads may have loaded ahead.
    pub prefetch: Option<usize>,
    /// Whether the next batch is brought to the device while a step runs.
    pub staging: Option<bool>,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Passes over the data.
    Epochs(u64),
    /// Changes of the weights.
    Steps(u64),
}

/// Where samples come from.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// The kind of data.
    pub kind: DataKind,
    /// Its file or folder.
    pub path: Option<PathBuf>,
    /// The share held out to test on, where the data has no test set.
    pub test: f64,
    /// Whether each channel is brought to mean 0 and deviation 1.
    pub normalise: bool,
    /// Changes to images that are trained on.
    pub augment: Augment,
    /// What a bad sample does.
    pub on_bad_sample: OnBadSample,
    /// The side of images from a folder, in pixels.
    pub size: usize,
    /// 1 for grey, 3 for colour, for images from a folder.
    pub channels: usize,
    /// A table's column with what is predicted.
    pub label: Option<String>,
    /// A table's columns that are left out.
    pub ignore: Vec<String>,
    /// Whether a table's classes or numbers are predicted.
    pub task: Task,
    /// How much each class counts in the loss.
    pub class_weights: ClassWeights,
    /// A `tokenizer.json` for a text; character by character if none.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a piece of text, or of a row of chats.
    pub length: usize,
    /// Whether several chats share a row.
    pub pack: bool,
    /// The chat template to use instead of the model's own: `chatml`, `plain` or a file.
    pub template: Option<String>,
    /// A table's column with the text to classify.
    pub text: Option<String>,
    /// The pretrained model whose tokenizer and template are used: `model.path`, not a key of its own.
    pub model: Option<PathBuf>,
}

/// The kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// The handwritten digits that are built in.
    Digits,
    /// MNIST and its like in idx files.
    Mnist,
    /// CIFAR-10 in its binary form.
    Cifar10,
    /// A folder of images per class.
    Folder,
    /// A table with a class in each line.
    Csv,
    /// A text, character by character or by a tokenizer.
    Text,
    /// A file with a chat, a prompt with its completion or a text in each line, as JSON.
    Jsonl,
}

impl DataKind {
    const WORDS: [(&'static str, Self); 7] = [
        ("digits", Self::Digits),
        ("mnist", Self::Mnist),
        ("cifar10", Self::Cifar10),
        ("folder", Self::Folder),
        ("csv", Self::Csv),
        ("text", Self::Text),
        ("jsonl", Self::Jsonl),
    ];

    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }
}

/// How much the samples of each class count in the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassWeights {
    /// All classes count the same.
    #[default]
    Equal,
    /// Each class as much as any other, however many samples it has.
    Balanced,
    /// As given by name; others count 1.
    Given(Vec<(String, f64)>),
}

/// What is predicted from a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Classes, or numbers if the labels are many different numbers.
    #[default]
    Auto,
    /// Classes.
    Classify,
    /// Numbers.
    Regress,
}

impl Task {
    const WORDS: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("classify", Self::Classify), ("regress", Self::Regress)];

    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, task)| *task == self).map_or("", |(word, _)| word)
    }
}

/// What a sample that can't be read does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBadSample {
    /// Ends the run.
    Fail,
    /// Is left out and counted.
    Skip,
}

/// The model and its size.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// A multi-layer perceptron.
    Mlp {
        /// The width of each hidden layer.
        hidden: Vec<usize>,
    },
    /// A small residual network for images.
    Cnn {
        /// Channels of the first stage; each later stage has twice as many.
        width: usize,
        /// Stages; each after the first halves the image.
        stages: usize,
    },
    /// A decoder for text.
    Gpt {
        /// Blocks.
        layers: usize,
        /// Heads of each block's attention.
        heads: usize,
        /// Numbers for each token.
        width: usize,
    },
    /// A published model that is fine-tuned.
    Pretrained(PretrainedConfig),
}

/// A published model, and what of it is trained.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PretrainedConfig {
    /// The model folder.
    pub path: PathBuf,
    /// What is trained.
    pub tune: Tune,
    /// The rank of low-rank pairs.
    pub rank: usize,
    /// The product of a pair is multiplied with `alpha / rank`.
    pub alpha: f64,
    /// The share of the inputs of the pairs that is dropped in training.
    pub dropout: f64,
    /// The projections that get a pair, by the ends of their names; all of the blocks if none is named.
    pub targets: Vec<String>,
    /// An adapter to begin with.
    pub adapter: Option<PathBuf>,
    /// The budget in bytes that weights which are not trained must leave room in: `memory`, not a key of its own.
    pub budget: Option<u64>,
}

/// What of a published model is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tune {
    /// Low-rank pairs beside its projections.
    #[default]
    Lora,
    /// All of its tensors.
    Full,
    /// What gives its outputs: the classes, or the matrix of its logits.
    Head,
}

impl Tune {
    const WORDS: [(&'static str, Self); 3] =
        [("lora", Self::Lora), ("full", Self::Full), ("head", Self::Head)];

    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, tune)| *tune == self).map_or("", |(word, _)| word)
    }
}

/// How weights are changed.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// The rule.
    pub rule: UpdateRule,
    /// The largest learning rate.
    pub lr: f64,
    /// How it changes over the run.
    pub schedule: Schedule,
    /// Steps over which it rises from 0.
    pub warmup: u64,
}

/// What is kept of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Where. `runs/NAME` if none, with a number if that is taken.
    pub folder: Option<PathBuf>,
    /// Steps between checkpoints; the end of each epoch if none.
    pub every: Option<u64>,
    /// How many of the latest are kept, besides the best.
    pub keep: usize,
}

/// What a fault may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFault {
    /// Recover in every way that keeps the result the same.
    Recover,
    /// Recover, but stay on the device.
    Stay,
    /// Stop.
    Fail,
}

impl OnFault {
    /// The policy that says so.
    pub fn policy(self) -> Policy {
        match self {
            Self::Recover => Policy::default(),
            Self::Stay => Policy::default().no_fallback(),
            Self::Fail => Policy::fail(),
        }
    }
}

impl Config {
    /// Reads a file; `flags` are keys (`optimizer.lr`) with values that override it.
    pub fn read(path: &Path, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        let named = |mut error: ConfigError| {
            error.file = Some(path.display().to_string());
            error
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigError::at(0, format!("{} can't be read: {error}", path.display()))
        })?;
        Self::parse(&text, flags).map_err(named)
    }
}
