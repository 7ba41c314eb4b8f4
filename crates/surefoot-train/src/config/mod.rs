//! The configuration of a run: a YAML file, overridden by flags.
//!
//! Every key has a default but `data.kind`, `model.kind` and the length of the run. A key that
//! isn't known, or a value that can't be, is an error with its line.

mod section;
mod yaml;

use std::path::{Path, PathBuf};

use surefoot::device::Selector;
use surefoot::device::memory::Bytes;
use surefoot::place::Precision;
use surefoot::recover::Policy;

use crate::data::Augment;
use crate::optimizer::{Rule, Schedule};
use section::Section;

/// What is wrong with a configuration, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", place(self))]
pub struct ConfigError {
    /// The file, once it is known.
    pub file: Option<String>,
    /// The line from 1; 0 if the value came from a flag.
    pub line: usize,
    /// What is wrong.
    pub why: String,
    /// What would be right.
    pub hint: Option<String>,
}

fn place(error: &ConfigError) -> String {
    match (&error.file, error.line) {
        (Some(file), 0) => format!("{file}, changed by a flag: "),
        (Some(file), line) => format!("{file}:{line}: "),
        (None, 0) => String::new(),
        (None, line) => format!("line {line}: "),
    }
}

impl ConfigError {
    fn at(line: usize, why: impl Into<String>) -> Self {
        Self { file: None, line, why: why.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn in_flag(mut self, path: &str) -> Self {
        self.line = 0;
        self.why = format!("the value for {path}: {}", self.why);
        self
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which devices, in which order.
    pub device: Selector,
    /// The precision of heavy operations.
    pub precision: Precision,
    /// A budget in bytes.
    pub memory: Option<u64>,
    /// What all chance comes from.
    pub seed: u64,
    /// The samples.
    pub data: DataConfig,
    /// The model.
    pub model: ModelConfig,
    /// Samples of a step, before `accumulate`.
    pub batch_size: usize,
    /// How long to train.
    pub length: Length,
    /// How weights are changed.
    pub optimizer: OptimizerConfig,
    /// Gradients together are never longer than this.
    pub clip_norm: Option<f64>,
    /// Batches whose gradients are added up for one step.
    pub accumulate: usize,
    /// What is kept.
    pub checkpoint: CheckpointConfig,
    /// What recovery may do.
    pub on_fault: OnFault,
    /// Threads that load; chosen by measurement if none.
    pub workers: Option<usize>,
    /// Batches that may be loaded ahead.
    pub prefetch: usize,
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
    /// What sort of data.
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
    /// A table's column with the class.
    pub label: Option<String>,
    /// A `tokenizer.json` for a text; character by character if none.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a piece of text.
    pub length: usize,
}

/// Sorts of data.
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
}

impl DataKind {
    const WORDS: [(&'static str, Self); 6] = [
        ("digits", Self::Digits),
        ("mnist", Self::Mnist),
        ("cifar10", Self::Cifar10),
        ("folder", Self::Folder),
        ("csv", Self::Csv),
        ("text", Self::Text),
    ];

    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelConfig {
    /// Layers of neurons.
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
}

/// How weights are changed.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// The rule.
    pub rule: Rule,
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

    /// Reads a text; see [`Config::read`].
    pub fn parse(text: &str, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        let mut root = yaml::parse(text)?;
        for (path, value) in flags {
            yaml::set(&mut root, path, value)?;
        }
        let mut root = Section::new("", root)?;
        let positive = |number: usize| number > 0;
        let config = Self {
            device: root.parsed("device")?.unwrap_or_default(),
            precision: root.parsed("precision")?.unwrap_or_default(),
            memory: root.parsed::<Bytes>("memory")?.map(|bytes| bytes.0),
            seed: root.number("seed", |_: u64| true, "a whole number")?.unwrap_or(42),
            data: data(root.section("data")?)?,
            model: model(root.section("model")?)?,
            batch_size: root
                .number("batch_size", positive, "a whole number above 0")?
                .unwrap_or(64),
            length: length(&mut root)?,
            optimizer: optimizer(root.section("optimizer")?)?,
            clip_norm: root.number("clip_norm", |norm: f64| norm > 0.0, "a number above 0")?,
            accumulate: root.number("accumulate", positive, "a whole number above 0")?.unwrap_or(1),
            checkpoint: checkpoint(root.section("checkpoint")?)?,
            on_fault: root
                .choice(
                    "on_fault",
                    &[
                        ("recover", OnFault::Recover),
                        ("stay", OnFault::Stay),
                        ("fail", OnFault::Fail),
                    ],
                )?
                .unwrap_or(OnFault::Recover),
            workers: workers(&mut root)?,
            prefetch: root.number("prefetch", positive, "a whole number above 0")?.unwrap_or(4),
        };
        root.finish()?;
        config.check()?;
        Ok(config)
    }

    /// What is wrong only together.
    fn check(&self) -> Result<(), ConfigError> {
        let text = self.data.kind == DataKind::Text;
        let gpt = matches!(self.model, ModelConfig::Gpt { .. });
        if text != gpt {
            return Err(ConfigError::at(0, "text needs the model gpt, and gpt needs text")
                .hint("set data.kind to text and model.kind to gpt, or neither"));
        }
        if self.data.kind == DataKind::Csv && matches!(self.model, ModelConfig::Cnn { .. }) {
            return Err(ConfigError::at(0, "a table has no pixels for the model cnn")
                .hint("set model.kind to mlp"));
        }
        Ok(())
    }
}

fn workers(root: &mut Section) -> Result<Option<usize>, ConfigError> {
    let read = root.read("workers", |text| match text {
        "auto" => Ok(None),
        number => match number.parse::<usize>() {
            Ok(number) if number <= 256 => Ok(Some(number)),
            _ => Err(format!("'{text}' is neither auto nor a whole number up to 256")),
        },
    })?;
    Ok(read.flatten())
}

fn length(root: &mut Section) -> Result<Length, ConfigError> {
    let wanted = "a whole number above 0";
    let epochs = root.number("epochs", |n: u64| n > 0, wanted)?;
    let steps = root.number("steps", |n: u64| n > 0, wanted)?;
    match (epochs, steps) {
        // A flag `--steps` cuts a run short whose file says epochs.
        (_, Some(steps)) => Ok(Length::Steps(steps)),
        (Some(epochs), None) => Ok(Length::Epochs(epochs)),
        (None, None) => Err(root.missing("epochs", "10").hint("or `steps: 1000`")),
    }
}

fn data(mut section: Section) -> Result<DataConfig, ConfigError> {
    let kind = section
        .choice("kind", &DataKind::WORDS)?
        .ok_or_else(|| section.missing("kind", "digits"))?;
    let mut augment = section.section("augment")?;
    let config = DataConfig {
        kind,
        path: section.parsed("path")?,
        test: section
            .number("test", |share: f64| share > 0.0 && share < 1.0, "between 0 and 1")?
            .unwrap_or(0.2),
        normalise: section.flag("normalise")?.unwrap_or(true),
        augment: Augment {
            flip: augment.flag("flip")?.unwrap_or(false),
            crop: augment
                .number("crop", |pixels: usize| pixels <= 64, "a number of pixels up to 64")?
                .unwrap_or(0),
        },
        on_bad_sample: section
            .choice("on_bad_sample", &[("fail", OnBadSample::Fail), ("skip", OnBadSample::Skip)])?
            .unwrap_or(OnBadSample::Fail),
        size: section
            .number("size", |side: usize| (4..=1024).contains(&side), "a side from 4 to 1024")?
            .unwrap_or(32),
        channels: section
            .number("channels", |n: usize| n == 1 || n == 3, "1 (grey) or 3 (colour)")?
            .unwrap_or(3),
        label: section.parsed("label")?,
        tokenizer: section.parsed("tokenizer")?,
        length: section
            .number("length", |n: usize| (2..=65_536).contains(&n), "from 2 to 65536")?
            .unwrap_or(128),
    };
    augment.finish()?;
    section.finish()?;
    Ok(config)
}

#[derive(Clone, Copy)]
enum ModelKind {
    Mlp,
    Cnn,
    Gpt,
}

fn model(mut section: Section) -> Result<ModelConfig, ConfigError> {
    let kinds = [("mlp", ModelKind::Mlp), ("cnn", ModelKind::Cnn), ("gpt", ModelKind::Gpt)];
    let kind = section.choice("kind", &kinds)?.ok_or_else(|| section.missing("kind", "cnn"))?;
    let above_0 = "a whole number above 0";
    let positive = |number: usize| number > 0;
    let config = match kind {
        ModelKind::Mlp => {
            ModelConfig::Mlp { hidden: section.sizes("hidden")?.unwrap_or_else(|| vec![128]) }
        }
        ModelKind::Cnn => ModelConfig::Cnn {
            width: section
                .number("width", |n: usize| n > 0 && n.is_multiple_of(8), "a multiple of 8")?
                .unwrap_or(32),
            stages: section
                .number("stages", |n: usize| (1..=5).contains(&n), "from 1 to 5")?
                .unwrap_or(2),
        },
        ModelKind::Gpt => {
            let heads = section.number("heads", positive, above_0)?.unwrap_or(4);
            ModelConfig::Gpt {
                layers: section.number("layers", positive, above_0)?.unwrap_or(4),
                heads,
                width: section
                    .number(
                        "width",
                        |n: usize| n > 0 && n.is_multiple_of(heads),
                        &format!("a multiple of the {heads} heads"),
                    )?
                    .unwrap_or(heads * 32),
            }
        }
    };
    section.finish()?;
    Ok(config)
}

#[derive(Clone, Copy)]
enum RuleKind {
    AdamW,
    Sgd,
}

fn optimizer(mut section: Section) -> Result<OptimizerConfig, ConfigError> {
    let kind = section
        .choice("kind", &[("adamw", RuleKind::AdamW), ("sgd", RuleKind::Sgd)])?
        .unwrap_or(RuleKind::AdamW);
    let share = |number: f64| (0.0..1.0).contains(&number);
    let below_1 = "from 0 to below 1";
    let decay = |section: &mut Section, usual: f64| {
        section
            .number("weight_decay", |n: f64| n >= 0.0 && n.is_finite(), "a number from 0")
            .map(|decay| decay.unwrap_or(usual))
    };
    let (rule, usual_lr) = match kind {
        RuleKind::AdamW => {
            let weight_decay = decay(&mut section, 0.01)?;
            let beta1 = section.number("beta1", share, below_1)?.unwrap_or(0.9);
            let beta2 = section.number("beta2", share, below_1)?.unwrap_or(0.999);
            (Rule::AdamW { beta1, beta2, epsilon: 1e-8, weight_decay }, 1e-3)
        }
        RuleKind::Sgd => {
            let weight_decay = decay(&mut section, 0.0)?;
            let momentum = section.number("momentum", share, below_1)?.unwrap_or(0.9);
            (Rule::Sgd { momentum, weight_decay }, 0.05)
        }
    };
    let config = OptimizerConfig {
        rule,
        lr: section
            .number("lr", |n: f64| n > 0.0 && n.is_finite(), "a number above 0")?
            .unwrap_or(usual_lr),
        schedule: section
            .choice(
                "schedule",
                &[
                    ("constant", Schedule::Constant),
                    ("linear", Schedule::Linear),
                    ("cosine", Schedule::Cosine),
                ],
            )?
            .unwrap_or(Schedule::Cosine),
        warmup: section.number("warmup", |_: u64| true, "a number of steps")?.unwrap_or(0),
    };
    section.finish()?;
    Ok(config)
}

fn checkpoint(mut section: Section) -> Result<CheckpointConfig, ConfigError> {
    let config = CheckpointConfig {
        folder: section.parsed("folder")?,
        every: section.number("every", |n: u64| n > 0, "a number of steps above 0")?,
        keep: section.number("keep", |n: usize| n > 0, "a whole number above 0")?.unwrap_or(2),
    };
    section.finish()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: &str = "data: {kind: digits}\nmodel:\n  kind: mlp\nepochs: 3\n";

    fn wrong(text: &str) -> ConfigError {
        Config::parse(text, &[]).unwrap_err()
    }

    #[test]
    fn a_small_configuration_has_defaults_for_the_rest() {
        let config = Config::parse(SMALL, &[]).unwrap();
        assert_eq!(config.length, Length::Epochs(3));
        assert_eq!(config.model, ModelConfig::Mlp { hidden: vec![128] });
        assert_eq!((config.batch_size, config.seed), (64, 42));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_right_one() {
        let error = wrong(&format!("{SMALL}batchsize: 32\n"));
        assert_eq!(error.line, 5);
        assert!(error.to_string().contains("'batchsize'"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("did you mean 'batch_size'?"));
        let error = wrong("data:\n  kind: digits\n  pth: x\nmodel: {kind: mlp}\nepochs: 1\n");
        assert_eq!((error.line, error.why.as_str()), (3, "there is no key 'data.pth'"));
        let error = wrong(&format!("{SMALL}zzz: 1\n"));
        assert!(error.hint.unwrap().contains("accumulate"), "the keys are listed");
    }

    #[test]
    fn a_wrong_value_says_what_would_be_right() {
        for (text, line, why) in [
            ("data: {kind: digit}\nmodel: {kind: mlp}\nepochs: 1", 1, "did you mean 'digits'"),
            ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 0", 3, "above 0"),
            ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 1\ndevice: tpu", 4, "'tpu'"),
            ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: [1]", 3, "single value"),
            ("data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 1\nepochs: 2", 4, "twice"),
            ("data: {kind: digits}\nmodel: {kind: cnn, width: 9}\nepochs: 1", 2, "multiple of 8"),
            ("data: digits", 1, "keys with values"),
            ("a: [1", 1, "YAML"),
        ] {
            let error = wrong(text);
            assert!(error.to_string().contains(why), "{text}: {error}");
            assert!(error.line == line || why == "YAML", "{text}: {error}");
        }
        assert!(wrong("data: {kind: digits}\nmodel: {kind: gpt}\nepochs: 1").why.contains("text"));
    }

    #[test]
    fn flags_override_keys_and_their_mistakes_are_told_as_theirs() {
        let flag = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        let config = Config::parse(SMALL, &flag("optimizer.lr", "0.5")).unwrap();
        assert_eq!(config.optimizer.lr, 0.5);
        let config = Config::parse(SMALL, &flag("steps", "7")).unwrap();
        assert_eq!(config.length, Length::Steps(7));
        let config = Config::parse(SMALL, &flag("model.hidden", "[3, 4]")).unwrap();
        assert_eq!(config.model, ModelConfig::Mlp { hidden: vec![3, 4] });
        let error = Config::parse(SMALL, &flag("optimizer.lrr", "1")).unwrap_err();
        assert_eq!(error.line, 0);
        assert_eq!(error.hint.as_deref(), Some("did you mean 'lr'?"));
    }

    #[test]
    fn the_configurations_that_come_along_are_right() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
            .collect();
        assert!(files.len() >= 6);
        for file in files {
            Config::read(&file, &[]).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_configuration_or_an_error(text in "[a-z0-9:,\\[\\]{}\\- \n'\"&*!|>%@`#]{0,80}") {
            let _ = Config::parse(&text, &[]);
        }

        #[test]
        fn any_flag_is_taken_or_an_error(key in "[a-z.]{0,12}", value in ".{0,12}") {
            let _ = Config::parse(SMALL, &[(key, value)]);
        }
    }
}
