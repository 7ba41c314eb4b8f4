//! Predictions of a trained model: from a checkpoint and inputs to labels with probabilities,
//! numbers, or the tokens that come next.
//!
//! A checkpoint holds all that is needed: the model's configuration, what its outputs mean, and
//! how inputs are read and normalised. Each batch is one guarded piece of work, as in training.

mod inputs;

use std::path::{Path, PathBuf};

use burn::tensor::{DType, Tensor};
use surefoot::{BoxError, Fault, Footing, StepExt};
use surefoot_models::generate::text::Texts;

use crate::batch::HostBatch;
use crate::checkpoint::{self, CheckpointError, Manifest};
use crate::config::{Config, ConfigError};
use crate::data::{DataError, Form, Label, Sample, Transform};
use crate::model::{Builtin, BuiltinError, Predictive};
use crate::parameters;
use crate::state::State;
use crate::step::bring;

pub use inputs::{InputKind, Item, Items};

/// The name of the operation in the journal and in drills.
pub const OPERATION: &str = "predict";

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The checkpoint can't be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its configuration can't be read.
    #[error("{}: its configuration can't be read", path.display())]
    Config {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// An input can't be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The pretrained model that was trained can't be opened.
    #[error(transparent)]
    Model(#[from] BuiltinError),
    /// The model writes text.
    #[error("{}: it is a model that writes text: use `surefoot generate`", path.display())]
    Generates {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A device failed, and the policy did not let the work survive it.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What a model predicts for one input.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prediction {
    /// The probability of each class, in the order of their numbers.
    Classes(Vec<f64>),
    /// A number.
    Number(f64),
    /// The probability of each token to come next.
    Tokens(Vec<f64>),
}

impl Prediction {
    /// The classes or tokens with the highest probabilities, highest first.
    pub fn top(&self, count: usize) -> Vec<(usize, f64)> {
        let (Self::Classes(shares) | Self::Tokens(shares)) = self else { return Vec::new() };
        let mut ranked: Vec<(usize, f64)> = shares.iter().copied().enumerate().collect();
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        ranked.truncate(count);
        ranked
    }
}

/// A trained model, ready to predict.
pub struct Predictor<'f> {
    footing: &'f Footing,
    state: State<Builtin>,
    transform: Transform,
    config: Config,
    manifest: Manifest,
    /// The tokenizer of a pretrained model.
    texts: Option<Texts>,
}

impl<'f> Predictor<'f> {
    /// Reads a checkpoint.
    pub fn open(path: &Path, footing: &'f Footing) -> Result<Self, PredictError> {
        let manifest = checkpoint::read_manifest(path)?;
        let config = Config::from_entries(&manifest.config, &[])
            .map_err(|source| PredictError::Config { path: path.to_owned(), source })?;
        let data = &manifest.data;
        let device = footing.device()?;
        let model = Builtin::new(&config.model, data.form, config.seed, device.burn())?;
        let (held, _) = checkpoint::read(path, &parameters::shapes(&model))?;
        let state = State::from_held(held, model, device.name(), device.burn());
        let (normalisation, target) = (data.normalisation.clone(), data.target.clone());
        let transform =
            Transform::known(data.form, normalisation, target, crate::data::Augment::default());
        let texts = match (&config.data.model, data.form) {
            (Some(model), Form::Sequences { vocabulary, length, classes: Some(_) }) => {
                let mut texts = Texts::open(model, vocabulary).map_err(BuiltinError::from)?;
                texts.truncate(length).map_err(BuiltinError::from)?;
                Some(texts)
            }
            (Some(_), _) => return Err(PredictError::Generates { path: path.to_owned() }),
            (None, _) => None,
        };
        Ok(Self { footing, state, transform, config, manifest, texts })
    }

    /// What the checkpoint tells of its run.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The configuration of the run.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What a class or token is called.
    pub fn name(&self, output: usize) -> String {
        let data = &self.manifest.data;
        match &data.vocabulary {
            Some(vocabulary) if data.classes.is_empty() => {
                vocabulary.decode(&[output as u32]).unwrap_or_default()
            }
            _ => data.classes.get(output).cloned().unwrap_or_else(|| output.to_string()),
        }
    }

    /// How many inputs go through the model at once, if memory allows.
    pub fn batch_size(&self) -> usize {
        self.config.batch_size
    }

    /// Predicts for a batch of inputs that could be read.
    pub fn predict(&self, items: &[Item]) -> Result<Vec<Prediction>, PredictError> {
        let form = self.manifest.data.form;
        let mut batch = HostBatch::new(form, items.len());
        for item in items {
            let wrong = |why: String| DataError::new(Path::new(&item.name), why);
            batch.push(self.sample(item)).map_err(wrong)?;
        }
        let task = self.footing.task(OPERATION).starting_on(self.state.device);
        let rows = task.run_in_parts(batch.samples(), |step| {
            let state = bring(&self.state, step)?;
            let mut rows = Vec::with_capacity(items.len());
            for range in step.ranges(batch.samples()) {
                let part = batch.on_device(range.clone(), step.device())?;
                let outputs = state.model.outputs(&part, step.autocast());
                rows.extend(self.read(&outputs, &items[range])?);
            }
            Ok::<_, BoxError>(rows)
        })?;
        Ok(rows.value.into_iter().map(|row| self.interpret(row)).collect())
    }

    /// An input as the model takes it: normalised; texts filled up to the model's length, which
    /// later positions can't see.
    fn sample(&self, item: &Item) -> Sample {
        let form = self.manifest.data.form;
        match (&item.input, form) {
            (inputs::Input::Numbers(values), Form::Dense { target, .. }) => {
                let mut values = values.clone();
                self.transform.apply(&mut values, None);
                let label = match target {
                    crate::data::Target::Classes(_) => Label::Class(0),
                    crate::data::Target::Number => Label::Number(0.0),
                };
                Sample::Dense { values, label }
            }
            (inputs::Input::Numbers(values), Form::Text { .. } | Form::Sequences { .. }) => {
                Sample::Dense { values: values.clone(), label: Label::Class(0) }
            }
            (inputs::Input::Tokens(tokens), Form::Sequences { .. }) => Sample::Sequences {
                segments: vec![0; tokens.len()],
                tokens: tokens.clone(),
                targets: vec![0],
            },
            (inputs::Input::Tokens(tokens), _) => {
                let mut tokens = tokens.clone();
                tokens.resize(form.size() + 1, 0);
                Sample::Tokens(tokens)
            }
        }
    }

    /// The row of outputs that belongs to each input: of a text, that of its last token.
    fn read(&self, outputs: &Tensor<2>, items: &[Item]) -> Result<Vec<Vec<f64>>, BoxError> {
        let [_, width] = outputs.dims();
        let length = self.manifest.data.form.items();
        let data = outputs.clone().try_into_data()?.try_cast(DType::F64)?;
        let numbers = data.try_to_vec::<f64>()?;
        let row = |(at, item): (usize, &Item)| {
            let last = match &item.input {
                inputs::Input::Tokens(tokens) => tokens.len().clamp(1, length) - 1,
                inputs::Input::Numbers(_) => 0,
            };
            let start = (at * length + last) * width;
            numbers[start..start + width].to_vec()
        };
        Ok(items.iter().enumerate().map(row).collect())
    }

    fn interpret(&self, outputs: Vec<f64>) -> Prediction {
        match (self.manifest.data.form, self.transform.target()) {
            (Form::Dense { .. }, Some(target)) => {
                let number = outputs.first().copied().unwrap_or(f64::NAN) as f32;
                Prediction::Number(f64::from(target.undo(0, number)))
            }
            (Form::Dense { .. }, None) => Prediction::Classes(softmax(&outputs)),
            (Form::Sequences { classes: Some(_), .. }, _) => Prediction::Classes(softmax(&outputs)),
            (Form::Text { .. } | Form::Sequences { .. }, _) => {
                Prediction::Tokens(softmax(&outputs))
            }
        }
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = logits.iter().map(|logit| (logit - highest).exp()).collect();
    let sum: f64 = shares.iter().sum();
    shares.into_iter().map(|share| share / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_the_highest_come_first() {
        let shares = softmax(&[1000.0, 1001.0, 999.0]);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let top = Prediction::Classes(shares).top(2);
        assert_eq!((top[0].0, top[1].0), (1, 0));
        assert!((top[0].1 / top[1].1 - std::f64::consts::E).abs() < 1e-9);
        assert!(Prediction::Number(3.0).top(1).is_empty());
    }
}
