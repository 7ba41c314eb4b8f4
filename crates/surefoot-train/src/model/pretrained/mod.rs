//! A published model that is fine-tuned.
//!
//! The model of `surefoot-models` runs the forward pass with its weights as they are stored; they get no gradients and
//! are not copied. What is trained are parameters of this module, handed to the pass as a
//! [`Tuning`]: low-rank pairs (`tune: lora`), or tensors that take the place of the model's own (`tune: full`, `tune: head`).
//! The loss is computed at the positions that are predicted only, so the head runs for those alone.
//!
//! With gradient checkpointing only the inputs of the blocks are kept, and each block is run again, with autodiff, when its
//! gradients are needed.

mod classifier;
mod frozen;
mod load;

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use surefoot::fault::raise;
use surefoot::place::Autocast;
use surefoot::{BoxError, Fault, FaultKind};
use surefoot_models::ModelError;
use surefoot_models::run::dropout::Dropout;
use surefoot_models::run::training::TrainingPass;
use surefoot_models::run::tuning::{LowRank, Tuning};

use super::{Learned, Predictive, Score, Trainable};
use crate::batch::{Batch, Input};
use crate::parameters;
use classifier::Classifier;
pub use frozen::Frozen;
pub use load::PretrainedError;

/// A low-rank pair.
#[derive(Module, Debug)]
pub(crate) struct Pair {
    /// `[rank, inputs]`.
    pub(crate) a: Param<Tensor<2>>,
    /// `[outputs, rank]`.
    pub(crate) b: Param<Tensor<2>>,
}

/// A published model, and what of it is trained.
#[derive(Module, Debug)]
pub struct Pretrained {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) matrices: Vec<Param<Tensor<2>>>,
    pub(crate) vectors: Vec<Param<Tensor<1>>>,
    classifier: Option<Classifier>,
    #[module(skip)]
    pub(crate) frozen: Frozen,
}

/// The strategy that graphs are recorded with; tensors of one graph must agree on it.
type Strategy = burn::tensor::GradientCheckpointingStrategy;

impl Pretrained {
    /// What the model itself is run with; with dropout if `rows` have seeds for it.
    fn tuning(&self, rows: &Arc<[u64]>) -> Tuning {
        let mut tuning = Tuning::default();
        let share = self.frozen.dropout();
        for (number, (pair, (target, scale))) in
            self.pairs.iter().zip(self.frozen.targets()).enumerate()
        {
            let dropout = (share > 0.0 && !rows.is_empty()).then(|| Dropout {
                share,
                rows: Arc::clone(rows),
                projection: number as u64,
            });
            let pair = LowRank { a: pair.a.val(), b: pair.b.val(), scale: *scale, dropout };
            tuning.add(target.tensor.clone(), pair);
        }
        for (matrix, name) in self.matrices.iter().zip(self.frozen.matrices()) {
            tuning.replace_matrix(name.clone(), matrix.val());
        }
        for (vector, name) in self.vectors.iter().zip(self.frozen.vectors()) {
            tuning.replace_vector(name.clone(), vector.val());
        }
        tuning
    }

    /// The outputs at the predicted positions, from the last hidden state of all.
    fn outputs_of(
        &self,
        pass: &mut TrainingPass<'_>,
        x: Tensor<2>,
        predicted: Tensor<1, Int>,
    ) -> Result<Tensor<2>, ModelError> {
        let x = pass.normed(x.select(0, predicted));
        match &self.classifier {
            Some(classifier) => Ok(classifier.outputs(x)),
            None => pass.logits(x),
        }
    }

    fn forward(
        &self,
        batch: &Batch,
        cast: Autocast,
        seeds: &Arc<[u64]>,
    ) -> Result<Tensor<2>, ModelError> {
        let (sequences, predicted) = sequences(batch);
        let model = self.frozen.loaded(&predicted.device(), cast)?;
        let tuning = self.tuning(seeds);
        let mut pass = model.training_pass(sequences, &tuning)?;
        let mut x = pass.embed()?;
        for block in 0..pass.blocks() {
            x = pass.block(block, x)?;
        }
        self.outputs_of(&mut pass, x, predicted)
    }

    /// The score and the gradients, with no more than one block's activations in memory at once.
    fn learn_by_blocks(
        &self,
        batch: &Batch,
        cast: Autocast,
        share: f64,
    ) -> Result<Learned, ModelError> {
        let (sequences, predicted) = sequences(batch);
        let device = predicted.device();
        let model = self.frozen.loaded(&device, cast)?;
        let tuning = self.tuning(sequences.seeds());
        let plain = tuning.on(&device.without_autodiff());
        let strategy = self.strategy();
        let mut forward = model.training_pass(sequences, &plain)?;
        let mut inputs = vec![forward.embed()?];
        for block in 0..forward.blocks() {
            let x = forward.block(block, inputs[block].clone())?;
            inputs.push(x);
        }
        drop(forward);
        let mut pass = model.training_pass(sequences, &tuning)?;
        let last = watched(
            inputs.pop().unwrap_or_else(|| unreachable!("at least the embeddings")),
            strategy,
        );
        let score = Score::of(self.outputs_of(&mut pass, last.clone(), predicted)?, batch);
        let mut tape = score.loss.clone().mul_scalar(share).backward();
        let mut gradients = parameters::gradients(self, &mut tape);
        let mut flowing = last.grad_remove(&mut tape);
        drop(tape);
        let trains_embeddings = self.frozen.trains_embeddings();
        if self.pairs.is_empty() && !trains_embeddings {
            // Only what gives the outputs is trained.
            return Ok((score, gradients));
        }
        for block in (0..pass.blocks()).rev() {
            let (Some(x), Some(gradient)) = (inputs.pop(), flowing.take()) else { break };
            // Nothing before the first block wants a gradient, unless the embeddings are trained.
            let wanted = block > 0 || trains_embeddings;
            let x = if wanted { watched(x, strategy) } else { x };
            let y = pass.block(block, x.clone())?;
            if !y.is_autodiff() {
                break;
            }
            let mut tape = (y * gradient.inner()).sum().backward();
            gradients = parameters::added(gradients, parameters::gradients(self, &mut tape));
            flowing = if wanted { x.grad_remove(&mut tape) } else { None };
        }
        if let (true, Some(gradient)) = (trains_embeddings, flowing) {
            let mut tape = (pass.embed()? * gradient.inner()).sum().backward();
            gradients = parameters::added(gradients, parameters::gradients(self, &mut tape));
        }
        Ok((score, gradients))
    }

    fn strategy(&self) -> Strategy {
        let of = |tensor: Option<Strategy>| tensor.unwrap_or_default();
        match (self.pairs.first(), self.matrices.first()) {
            (Some(pair), _) => of(pair.a.val().gradient_checkpointing_strategy()),
            (None, Some(matrix)) => of(matrix.val().gradient_checkpointing_strategy()),
            (None, None) => match &self.classifier {
                Some(classifier) => of(classifier.strategy()),
                None => Strategy::default(),
            },
        }
    }
}

/// A tensor whose gradient is wanted.
fn watched(x: Tensor<2>, strategy: Strategy) -> Tensor<2> {
    x.autodiff().with_gradient_checkpointing_strategy(strategy).require_grad()
}

/// The rows of a batch. Panics on other data, which a pretrained model can't take.
fn sequences(batch: &Batch) -> (&surefoot_models::run::sequences::SequenceBatch, Tensor<1, Int>) {
    match &batch.input {
        Input::Sequences { batch, predicted } => (batch, predicted.clone()),
        _ => panic!("a pretrained model takes text that its own tokenizer read"),
    }
}

fn fault(error: ModelError) -> Fault {
    match error {
        ModelError::Fault(fault) => *fault,
        other => Fault::new(FaultKind::ModelLoading, "run the model", other.to_string()),
    }
}

impl Trainable for Pretrained {
    fn score(&self, batch: &Batch, cast: Autocast) -> Score {
        Score::of(self.outputs(batch, cast), batch)
    }

    fn learn(
        &self,
        batch: &Batch,
        cast: Autocast,
        share: f64,
        checkpointing: bool,
    ) -> Result<Learned, BoxError> {
        if checkpointing {
            return self.learn_by_blocks(batch, cast, share).map_err(|error| fault(error).into());
        }
        let seeds = Arc::clone(sequences(batch).0.seeds());
        let outputs = self.forward(batch, cast, &seeds).map_err(fault)?;
        let score = Score::of(outputs, batch);
        let mut tape = score.loss.clone().mul_scalar(share).backward();
        let gradients = parameters::gradients(self, &mut tape);
        Ok((score, gradients))
    }
}

impl Predictive for Pretrained {
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2> {
        match self.forward(batch, cast, &Arc::default()) {
            Ok(outputs) => outputs,
            Err(error) => raise(fault(error)),
        }
    }
}
