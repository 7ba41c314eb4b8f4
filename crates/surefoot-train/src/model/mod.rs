//! Models: the trait that the training loop needs, and the models that are built in.

mod builtin;
mod cnn;
mod gpt;
mod init;
mod mlp;
mod pretrained;

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};
use surefoot::BoxError;
use surefoot::place::{Autocast, Dtype, float_dtype};
use surefoot_ops::{cross_entropy, half_linear, linear};

use crate::batch::{Batch, Targets};
use crate::parameters;

pub use builtin::{Builtin, BuiltinError};
pub use cnn::Cnn;
pub use gpt::{Gpt, Sizes};
pub use init::redraw;
pub use mlp::Mlp;
pub use pretrained::{Frozen, Pretrained, PretrainedError};

/// How well a model did on a batch: sums, so that parts of a batch add up to the whole.
#[derive(Clone, Debug)]
pub struct Score {
    /// The loss, summed over all predictions.
    pub loss: Tensor<1>,
    /// How many predictions are right; in regression, one less the squared error of each, so that
    /// the mean is the share of the variance that is explained (R²).
    pub correct: Tensor<1>,
    /// The predicted class of each row; none in regression.
    pub guesses: Option<Tensor<1, Int>>,
}

/// A Burn module that the loop can train.
///
/// Implement it for a module of your own: run it on the batch and score the result, for
/// instance with [`Score::of`].
///
/// Layers whose result for one sample depends on the others in the batch (batch normalisation)
/// make a batch in parts differ from the whole one, and their running statistics are changed once
/// for each part; prefer group or layer normalisation. Dropout draws from the device's generator,
/// not from the run's seed: a step that is done again, or a resumed run, drops other numbers. Both
/// know that they are trained by what they are given, so a layer with weights has to come first.
pub trait Trainable: Module {
    /// Scores a batch. Heavy operations should go through `cast`, which makes them run in the
    /// run's precision.
    fn score(&self, batch: &Batch, cast: Autocast) -> Score;

    /// Scores a batch and gives the gradients of `share` times its loss, in the order of the parameters. A model
    /// that saves memory in a way of its own when `checkpointing` is asked for does so here.
    fn learn(
        &self,
        batch: &Batch,
        cast: Autocast,
        share: f64,
        checkpointing: bool,
    ) -> Result<Learned, BoxError> {
        // The operations themselves recompute what the strategy of the parameters says.
        let _ = checkpointing;
        let score = self.score(batch, cast);
        let mut tape = score.loss.clone().mul_scalar(share).backward();
        let gradients = parameters::gradients(self, &mut tape);
        Ok((score, gradients))
    }
}

/// A score, and the gradient of each parameter that has one.
pub type Learned = (Score, Vec<Option<Tensor<1>>>);

/// A model whose outputs can be read: a row for each prediction. It is scored by them.
pub trait Predictive: Trainable {
    /// The outputs for a batch: logits of classes or tokens, or numbers.
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2>;
}

/// Scores a model by its outputs.
macro_rules! scored_by_outputs {
    ($($model:ty),*) => {$(
        impl Trainable for $model {
            fn score(&self, batch: &Batch, cast: Autocast) -> Score {
                Score::of(self.outputs(batch, cast), batch)
            }
        }
    )*};
}

scored_by_outputs!(Mlp, Cnn, Gpt);

impl Score {
    /// Scores a model's outputs (a row for each prediction) by what is right: cross entropy for
    /// classes and tokens, squared error for numbers.
    pub fn of(outputs: Tensor<2>, batch: &Batch) -> Self {
        match &batch.targets {
            Targets::Classes(classes) => match &batch.weights {
                None => Self::of_classes(outputs, classes.clone()),
                Some(weights) => {
                    Self::of_weighted_classes(outputs, classes.clone(), weights.clone())
                }
            },
            Targets::Numbers(numbers) => Self::of_numbers(outputs, numbers.clone()),
        }
    }

    /// The squared error of `outputs` (a row for each sample) from the numbers that are right.
    pub fn of_numbers(outputs: Tensor<2>, numbers: Tensor<2>) -> Self {
        let [rows, _] = outputs.dims();
        let error = outputs - numbers;
        let loss = (error.clone() * error).sum();
        let correct = loss.clone().inner().neg().add_scalar(rows as f64);
        Self { loss, correct, guesses: None }
    }

    /// Like [`of_classes`](Self::of_classes), with the loss of each row multiplied by its weight.
    pub fn of_weighted_classes(
        logits: Tensor<2>,
        targets: Tensor<2, Int>,
        weights: Tensor<1>,
    ) -> Self {
        let [rows, _] = logits.dims();
        let right = log_softmax(logits.clone(), 1).gather(1, targets.clone().reshape([rows, 1]));
        let loss = (right.reshape([rows]) * weights).sum().neg();
        Self { loss, ..Self::of_classes(logits.inner(), targets) }
    }

    /// Cross entropy of `logits` (a row for each prediction) and the classes that are right.
    pub fn of_classes(logits: Tensor<2>, targets: Tensor<2, Int>) -> Self {
        let [rows, _] = logits.dims();
        let targets = targets.reshape([rows, 1]);
        let guesses = logits.clone().inner().argmax(1);
        let correct = guesses.clone().equal(targets.clone()).float().sum();
        let loss = cross_entropy(logits, targets.reshape([rows]));
        Self { loss, correct, guesses: Some(guesses.reshape([rows])) }
    }
}

/// A linear layer, with a residual added in fp32.
fn applied(layer: &Linear, x: Tensor<2>, around: Option<Tensor<2>>, cast: Autocast) -> Tensor<2> {
    let weight = layer.weight.val();
    let bias = match &layer.bias {
        Some(bias) => bias.val(),
        None => Tensor::zeros([weight.dims()[1]], &x.device()),
    };
    match cast.compute() {
        Dtype::F32 => linear(x, weight, bias, around),
        other => half_linear(x, weight, bias, around, float_dtype(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn weights_multiply_the_losses_and_leave_the_hits_alone() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[2.0, 0.0], [0.0, 1.0]], &device);
        let targets = Tensor::<2, Int>::from_data([[0], [0]], &device);
        let weights = Tensor::<1>::from_floats([3.0, 0.5], &device);
        let score = Score::of_weighted_classes(logits, targets, weights);
        let missed = |lead: f32| (1.0 + (-lead).exp()).ln();
        let by_hand = 3.0 * missed(2.0) + 0.5 * missed(-1.0);
        assert!((score.loss.into_scalar::<f32>() - by_hand).abs() < 1e-5);
        assert_eq!(score.correct.into_scalar::<f32>(), 1.0);
    }

    #[test]
    fn a_score_sums_losses_and_counts_hits() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[2.0, 0.0], [0.0, 1.0], [5.0, 0.0]], &device);
        let targets = Tensor::<2, Int>::from_data([[0], [0], [0]], &device);
        let score = Score::of_classes(logits, targets);
        let by_hand: f32 = [2.0f32, -1.0, 5.0].iter().map(|lead| (1.0 + (-lead).exp()).ln()).sum();
        assert!((score.loss.into_scalar::<f32>() - by_hand).abs() < 1e-5);
        assert_eq!(score.correct.into_scalar::<f32>(), 2.0);
    }
}
