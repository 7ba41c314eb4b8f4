//! From the text of a configuration to its meaning.

use surefoot::device::memory::Bytes;

use super::section::Section;
use super::{
    CheckpointConfig, ClassWeights, Config, ConfigError, DataConfig, DataKind, Length,
    LoadingConfig, ModelConfig, OnBadSample, OnFault, OptimizerConfig, PretrainedConfig, Task,
    Tune, yaml,
};
use crate::data::Augment;
use crate::optimizer::{Schedule, UpdateRule};

/// The longest run that can be asked for: its steps can be counted without running over.
const MOST_EPOCHS: u64 = 1_000_000_000;
const MOST_STEPS: u64 = 1_000_000_000_000_000;
/// The most samples of a step.
const MOST_SAMPLES: usize = 1 << 30;

impl Config {
    /// Reads a text; see [`Config::read`].
    pub fn parse(text: &str, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        let mut root = yaml::parse(text)?;
        for (path, value) in flags {
            yaml::set(&mut root, path, value)?;
        }
        Self::from_root(root)
    }

    /// Reads what was parsed.
    pub(super) fn from_root(root: yaml::Node) -> Result<Self, ConfigError> {
        let mut root = Section::new("", root)?;
        let positive = |number: usize| number > 0;
        let mut config = Self {
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
            early_stop: root.number(
                "early_stop",
                |epochs: u64| epochs > 0,
                "a number of epochs above 0",
            )?,
            optimizer: optimizer(root.section("optimizer")?)?,
            clip_norm: root.number("clip_norm", |norm: f64| norm > 0.0, "a number above 0")?,
            gradient_checkpointing: root.flag("gradient_checkpointing")?.unwrap_or(false),
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
            loading: loading(&mut root)?,
        };
        root.finish()?;
        if let ModelConfig::Pretrained(model) = &mut config.model {
            model.budget = config.memory;
            config.data.model = Some(model.path.clone());
        }
        config.check()?;
        Ok(config)
    }

    /// Checks values that are wrong only in combination.
    fn check(&self) -> Result<(), ConfigError> {
        if let ModelConfig::Pretrained(model) = &self.model {
            return self.check_pretrained(model);
        }
        if self.data.kind == DataKind::Jsonl {
            return Err(ConfigError::at(
                0,
                "jsonl needs a pretrained model, whose tokenizer reads it",
            )
            .hint("set model.kind to pretrained and model.path to a model folder"));
        }
        self.check_samples()?;
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

    fn check_pretrained(&self, model: &PretrainedConfig) -> Result<(), ConfigError> {
        self.check_samples()?;
        match self.data.kind {
            DataKind::Jsonl | DataKind::Text | DataKind::Csv => {}
            other => {
                let why = format!("a pretrained model takes text, and {} is none", other.as_str());
                return Err(ConfigError::at(0, why)
                    .hint("set data.kind to jsonl or text, or to csv to classify texts"));
            }
        }
        if self.data.tokenizer.is_some() {
            return Err(ConfigError::at(0, "a pretrained model brings its own tokenizer")
                .hint("leave data.tokenizer out"));
        }
        if model.tune != Tune::Lora && (model.adapter.is_some() || !model.targets.is_empty()) {
            return Err(ConfigError::at(0, "model.adapter and model.targets are for tune: lora")
                .hint("leave them out, or set model.tune to lora"));
        }
        Ok(())
    }

    fn check_samples(&self) -> Result<(), ConfigError> {
        let samples = self.batch_size.checked_mul(self.accumulate);
        if samples.is_none_or(|samples| samples > MOST_SAMPLES) {
            let (batch, times) = (self.batch_size, self.accumulate);
            let why = format!(
                "batch_size {batch} times accumulate {times} is more than {MOST_SAMPLES} samples \
                 for one step"
            );
            return Err(ConfigError::at(0, why).hint("make one of them smaller"));
        }
        Ok(())
    }
}

fn loading(root: &mut Section) -> Result<LoadingConfig, ConfigError> {
    let number = |lowest: usize| {
        move |text: &str| match (text, text.parse::<usize>()) {
            ("auto", _) => Ok(None),
            (_, Ok(number)) if (lowest..=256).contains(&number) => Ok(Some(number)),
            _ => Err(format!("'{text}' is neither auto nor a whole number from {lowest} to 256")),
        }
    };
    let staging =
        root.choice("staging", &[("auto", None), ("on", Some(true)), ("off", Some(false))]);
    Ok(LoadingConfig {
        workers: root.read("workers", number(0))?.flatten(),
        prefetch: root.read("prefetch", number(1))?.flatten(),
        staging: staging?.flatten(),
    })
}

fn length(root: &mut Section) -> Result<Length, ConfigError> {
    let mut up_to = |key: &'static str, most: u64| {
        let wanted = format!("a whole number above 0 and up to {most}");
        root.number(key, |n: u64| (1..=most).contains(&n), &wanted)
    };
    let epochs = up_to("epochs", MOST_EPOCHS)?;
    let steps = up_to("steps", MOST_STEPS)?;
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
        ignore: section.texts("ignore")?.unwrap_or_default(),
        task: section.choice("task", &Task::WORDS)?.unwrap_or_default(),
        class_weights: class_weights(&mut section)?,
        tokenizer: section.parsed("tokenizer")?,
        length: section
            .number("length", |n: usize| (2..=65_536).contains(&n), "from 2 to 65536")?
            .unwrap_or(128),
        pack: section.flag("pack")?.unwrap_or(true),
        template: section.parsed("template")?,
        text: section.parsed("text")?,
        model: None,
    };
    augment.finish()?;
    section.finish()?;
    Ok(config)
}

fn class_weights(section: &mut Section) -> Result<ClassWeights, ConfigError> {
    if let Some(given) = section.numbers("class_weights")? {
        return Ok(ClassWeights::Given(given));
    }
    let words = [("equal", ClassWeights::Equal), ("balanced", ClassWeights::Balanced)];
    Ok(section.choice("class_weights", &words)?.unwrap_or_default())
}

#[derive(Clone, Copy)]
enum ModelKind {
    Mlp,
    Cnn,
    Gpt,
    Pretrained,
}

fn model(mut section: Section) -> Result<ModelConfig, ConfigError> {
    let kinds = [
        ("mlp", ModelKind::Mlp),
        ("cnn", ModelKind::Cnn),
        ("gpt", ModelKind::Gpt),
        ("pretrained", ModelKind::Pretrained),
    ];
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
        ModelKind::Pretrained => ModelConfig::Pretrained(pretrained(&mut section)?),
    };
    section.finish()?;
    Ok(config)
}

fn pretrained(section: &mut Section) -> Result<PretrainedConfig, ConfigError> {
    let rank = section
        .number("rank", |rank: usize| (1..=4096).contains(&rank), "from 1 to 4096")?
        .unwrap_or(16);
    Ok(PretrainedConfig {
        path: section
            .parsed("path")?
            .ok_or_else(|| section.missing("path", "models/qwen2-0.5b"))?,
        tune: section.choice("tune", &Tune::WORDS)?.unwrap_or_default(),
        rank,
        alpha: section
            .number("alpha", |n: f64| n > 0.0 && n.is_finite(), "a number above 0")?
            .unwrap_or(2.0 * rank as f64),
        dropout: section
            .number("dropout", |share: f64| (0.0..1.0).contains(&share), "from 0 to below 1")?
            .unwrap_or(0.0),
        targets: section.texts("targets")?.unwrap_or_default(),
        adapter: section.parsed("adapter")?,
        budget: None,
    })
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
            (UpdateRule::AdamW { beta1, beta2, epsilon: 1e-8, weight_decay }, 1e-3)
        }
        RuleKind::Sgd => {
            let weight_decay = decay(&mut section, 0.0)?;
            let momentum = section.number("momentum", share, below_1)?.unwrap_or(0.9);
            (UpdateRule::Sgd { momentum, weight_decay }, 0.05)
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
