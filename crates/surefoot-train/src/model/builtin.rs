//! The model that a configuration names.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use surefoot::BoxError;
use surefoot::place::Autocast;

use super::gpt::Sizes;
use super::{Cnn, Gpt, Learned, Mlp, Predictive, Pretrained, PretrainedError, Score, Trainable};
use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::data::Form;

/// One of the models that a configuration can name.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Builtin {
    /// A multi-layer perceptron.
    Mlp(Mlp),
    /// A residual network for images.
    Cnn(Cnn),
    /// A decoder for text.
    Gpt(Gpt),
    /// A published model that is fine-tuned.
    Pretrained(Pretrained),
}

/// Why there is no model: only a pretrained one can be missing or unsuited.
pub type BuiltinError = PretrainedError;

impl Builtin {
    /// The model of a configuration, for samples of this form.
    pub fn new(
        config: &ModelConfig,
        form: Form,
        seed: u64,
        device: &Device,
    ) -> Result<Self, BuiltinError> {
        let (outputs, length) = (form.outputs(), form.size());
        Ok(match config {
            ModelConfig::Mlp { hidden } => {
                Self::Mlp(Mlp::new(form.size(), hidden, outputs, seed, device))
            }
            ModelConfig::Cnn { width, stages } => {
                Self::Cnn(Cnn::new(form, *width, *stages, seed, device))
            }
            ModelConfig::Gpt { layers, heads, width } => {
                let (layers, heads, width) = (*layers, *heads, *width);
                let sizes = Sizes { vocabulary: outputs, length, layers, heads, width };
                Self::Gpt(Gpt::new(sizes, seed, device))
            }
            ModelConfig::Pretrained(config) => {
                Self::Pretrained(Pretrained::open(config, form, seed, device)?)
            }
        })
    }
}

impl Trainable for Builtin {
    fn score(&self, batch: &Batch, cast: Autocast) -> Score {
        match self {
            Self::Mlp(model) => model.score(batch, cast),
            Self::Cnn(model) => model.score(batch, cast),
            Self::Gpt(model) => model.score(batch, cast),
            Self::Pretrained(model) => model.score(batch, cast),
        }
    }

    fn learn(
        &self,
        batch: &Batch,
        cast: Autocast,
        share: f64,
        checkpointing: bool,
    ) -> Result<Learned, BoxError> {
        match self {
            Self::Mlp(model) => model.learn(batch, cast, share, checkpointing),
            Self::Cnn(model) => model.learn(batch, cast, share, checkpointing),
            Self::Gpt(model) => model.learn(batch, cast, share, checkpointing),
            Self::Pretrained(model) => model.learn(batch, cast, share, checkpointing),
        }
    }
}

impl Predictive for Builtin {
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2> {
        match self {
            Self::Mlp(model) => model.outputs(batch, cast),
            Self::Cnn(model) => model.outputs(batch, cast),
            Self::Gpt(model) => model.outputs(batch, cast),
            Self::Pretrained(model) => model.outputs(batch, cast),
        }
    }
}
