//! One training step as `surefoot train` does it: forward, backward, update, and reading the loss.

use std::path::Path;
use std::sync::Arc;

use burn::module::Module;
use surefoot::device::{OpenDevice, Selector};
use surefoot::place::{Dtype, Precision};
use surefoot::recover::Policy;
use surefoot::{Fault, FaultKind, Footing};
use surefoot_train::batch::HostBatch;
use surefoot_train::config::{Config, ConfigError, ModelConfig};
use surefoot_train::data::{self, DataError, Form, Label, Sample, Target};
use surefoot_train::loader::Recipe;
use surefoot_train::model::Builtin;
use surefoot_train::optimizer::UpdateRule;
use surefoot_train::parameters::{self, Shape};
use surefoot_train::state::State;
use surefoot_train::step::{StepOrder, StepSettings, step};

use super::{Amount, Job};

const RULE: UpdateRule =
    UpdateRule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

/// One training step of a configuration file, or of a built-in model.
pub struct TrainingSetup {
    /// Its name: that of the file.
    pub name: String,
    model: ModelConfig,
    form: Form,
    batch: HostBatch,
    rule: UpdateRule,
    clip_norm: Option<f64>,
    seed: u64,
}

/// Why a configuration can't be measured.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Its data can't be read.
    #[error("{0}")]
    Data(#[from] DataError),
    /// A sample of the data can't be read.
    #[error("{0}")]
    Sample(#[from] Fault),
}

impl TrainingSetup {
    /// Reads a configuration and the samples of its first step.
    pub fn read(path: &Path) -> Result<Self, OwnError> {
        let config = Config::read(path, &[])?;
        let data = data::open(&config.data, config.seed)?;
        let recipe = Recipe {
            source: data.train.clone(),
            transform: data.transform.clone(),
            on_bad_sample: config.data.on_bad_sample,
            seed: Some(config.seed),
            class_weights: data.class_weights.clone(),
        };
        let samples = (config.batch_size * config.accumulate).min(data.train.len());
        let batch = recipe.make(&(0..samples).collect::<Vec<_>>(), 0)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self {
            name,
            form: data.form(),
            model: config.model,
            batch,
            rule: config.optimizer.rule,
            clip_norm: config.clip_norm,
            seed: config.seed,
        })
    }
}

/// A step of training, ready to run.
pub(super) struct TrainingStep {
    footing: Footing,
    settings: StepSettings,
    state: State<Builtin>,
    shapes: Vec<Shape>,
    batch: HostBatch,
    form: Form,
    what: String,
}

impl TrainingStep {
    fn new(
        setup: &TrainingSetup,
        what: impl FnOnce(usize) -> String,
        device: &OpenDevice,
        precision: Dtype,
    ) -> Result<Self, Fault> {
        let footing = Footing::builder()
            .devices(Selector::only(device.name()))
            .precision(match precision {
                Dtype::F16 => Precision::Fp16,
                Dtype::BF16 => Precision::Bf16,
                _ => Precision::Fp32,
            })
            // A step that had to be recovered would not be the same work.
            .policy(Policy::fail())
            .build()?;
        let model =
            Builtin::new(&setup.model, setup.form, setup.seed, device.burn()).map_err(|error| {
                Fault::new(FaultKind::ModelLoading, "open the model", error.to_string())
            })?;
        let shapes = parameters::shapes(&model);
        let numbers = shapes.iter().map(|shape| shape.dims.iter().product::<usize>()).sum();
        let plain = model.valid();
        Ok(Self {
            footing,
            settings: StepSettings {
                rule: setup.rule,
                clip_norm: setup.clip_norm,
                micro_batch: setup.batch.samples(),
            },
            state: State::new(plain, device.name()),
            shapes,
            batch: setup.batch.clone(),
            form: setup.form,
            what: what(numbers),
        })
    }
}

impl Job for TrainingStep {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        let order = StepOrder { lr: 1e-4, checkpointing: false, name_bad: false };
        for _ in 0..repeats.max(1) {
            let done =
                step(&self.footing, &self.settings, order, &self.state, &self.shapes, &self.batch)?
                    .value;
            if !done.finite && done.compute == Dtype::F32 {
                return Err(Fault::new(FaultKind::Numeric, "step", "the loss is not finite"));
            }
            self.state = done.state;
        }
        Ok(())
    }

    fn amount(&self) -> Amount {
        let (count, unit) = match self.form {
            Form::Dense { .. } => (self.batch.samples(), "samples/s"),
            Form::Text { .. } | Form::Sequences { .. } => (self.batch.items(), "tokens/s"),
        };
        let samples = self.batch.samples();
        let length = self.batch.items() / samples.max(1);
        let flops = self.state.model.step_flops(samples, length);
        Amount { count: count as f64, unit, flops, bytes: None }
    }

    fn what(&self) -> String {
        self.what.clone()
    }
}

/// Random samples with labels: their values don't change how long a step takes.
fn noise(form: Form, samples: usize) -> Result<HostBatch, Fault> {
    let mut batch = HostBatch::new(form, samples);
    let mut random = fastrand::Rng::with_seed(1);
    for at in 0..samples {
        let values = (0..form.size()).map(|_| random.f32() - 0.5).collect();
        batch
            .push(Sample::Dense { values, label: Label::Class(at % 10) })
            .map_err(|why| Fault::new(FaultKind::DataLoading, "noise", why))?;
    }
    Ok(batch)
}

fn built_in(model: ModelConfig, form: Form, samples: usize) -> Result<TrainingSetup, Fault> {
    Ok(TrainingSetup {
        name: String::new(),
        model,
        form,
        batch: noise(form, samples)?,
        rule: RULE,
        clip_norm: None,
        seed: 1,
    })
}

pub(super) fn mlp(device: &OpenDevice, precision: Dtype) -> Result<TrainingStep, Fault> {
    let form = Form::Dense { channels: 1, height: 28, width: 28, target: Target::Classes(10) };
    let setup = built_in(ModelConfig::Mlp { hidden: vec![512, 256] }, form, 256)?;
    let what = |_| "784-512-256-10, 256 samples, AdamW".to_owned();
    TrainingStep::new(&setup, what, device, precision)
}

pub(super) fn cnn(device: &OpenDevice, precision: Dtype) -> Result<TrainingStep, Fault> {
    let form = Form::Dense { channels: 3, height: 32, width: 32, target: Target::Classes(10) };
    let setup = built_in(ModelConfig::Cnn { width: 16, stages: 3 }, form, 16)?;
    let what = |_| "residual, 16 to 64 channels, 16 images of 32×32×3, AdamW".to_owned();
    TrainingStep::new(&setup, what, device, precision)
}

pub(super) fn configured(
    setup: &Arc<TrainingSetup>,
    device: &OpenDevice,
    precision: Dtype,
) -> Result<TrainingStep, Fault> {
    let samples = setup.batch.samples();
    let what = |numbers| format!("{numbers} parameters, {samples} samples a step");
    TrainingStep::new(setup, what, device, precision)
}
