//! The model that a configuration names.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use surefoot::place::Autocast;

use super::gpt::Sizes;
use super::{Cnn, Gpt, Mlp, Predictive};
use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::data::Form;

/// One of the models that are built in.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Builtin {
    /// Layers of neurons.
    Mlp(Mlp),
    /// A residual network for images.
    Cnn(Cnn),
    /// A decoder for text.
    Gpt(Gpt),
}

impl Builtin {
    /// The model of a configuration, for samples of this form.
    pub fn new(config: &ModelConfig, form: Form, seed: u64, device: &Device) -> Self {
        let (outputs, length) = (form.outputs(), form.size());
        match config {
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
        }
    }
}

impl Predictive for Builtin {
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2> {
        match self {
            Self::Mlp(model) => model.outputs(batch, cast),
            Self::Cnn(model) => model.outputs(batch, cast),
            Self::Gpt(model) => model.outputs(batch, cast),
        }
    }
}
