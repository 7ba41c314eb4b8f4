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

    /// Multiplications and additions of the products of one training step on samples of `length` tokens: each product of the
    /// forward pass, and two of the same size for its gradients. `None` for a pretrained model, where it depends on
    /// which weights are trained.
    pub fn step_flops(&self, samples: usize, length: usize) -> Option<f64> {
        let forward = match self {
            Self::Mlp(model) => model.forward_flops(),
            Self::Cnn(model) => model.forward_flops(),
            Self::Gpt(model) => model.forward_flops(length),
            Self::Pretrained(_) => return None,
        };
        Some(3.0 * samples as f64 * forward)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Target;

    fn flops(config: &ModelConfig, form: Form, samples: usize, length: usize) -> Option<f64> {
        let model = Builtin::new(config, form, 1, &Device::flex()).unwrap();
        model.step_flops(samples, length)
    }

    #[test]
    fn a_step_counts_its_products_three_times() {
        let form = Form::Dense { channels: 1, height: 2, width: 3, target: Target::Classes(4) };
        // 6 × 5 + 5 × 4 weights, 2 operations each, 7 samples, forward and two gradients.
        let mlp = ModelConfig::Mlp { hidden: vec![5] };
        assert_eq!(flops(&mlp, form, 7, 1), Some(2.0 * 50.0 * 7.0 * 3.0));

        // The stem and the first block on 4 × 4, the second block on 2 × 2, the head once.
        let form = Form::Dense { channels: 3, height: 4, width: 4, target: Target::Classes(10) };
        let cnn = ModelConfig::Cnn { width: 8, stages: 2 };
        let (stem, first) = (9 * 3 * 8 * 16, 2 * 9 * 8 * 8 * 16);
        let second = (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16) * 4;
        let all = f64::from(stem + first + second + 16 * 10);
        assert_eq!(flops(&cnn, form, 1, 1), Some(2.0 * all * 3.0));
    }

    #[test]
    fn tables_of_a_decoder_are_not_products() {
        let form = Form::Text { vocabulary: 11, length: 4 };
        let gpt = ModelConfig::Gpt { layers: 2, heads: 2, width: 8 };
        // 3 + 1 + 4 + 4 squares of the width for each token; attention over half of 4 × 4.
        let block = 2 * 12 * 64 * 4 + 2 * 16 * 8;
        let all = f64::from(2 * block + 2 * 8 * 11 * 4);
        assert_eq!(flops(&gpt, form, 5, 4), Some(all * 5.0 * 3.0));
    }
}
