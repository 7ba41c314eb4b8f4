//! A pass whose gradients are wanted, piece by piece: embeddings, each block, the last norm, the head.
//!
//! The caller strings the pieces together. It may run a block twice, once without autodiff and once with it when its
//! gradients are needed, so that only the inputs of the blocks are kept in between (gradient checkpointing).
//! The model's own weights get no gradients and are not copied; what is trained is in the [`Tuning`].

use std::cell::OnceCell;

use burn::tensor::{Device, Tensor};

use super::attention::{AttentionMask, LastMask};
use super::block::Pass;
use super::model::Model;
use super::opened::Opened;
use super::rotary::Rotation;
use super::sequences::SequenceBatch;
use super::tuning::Tuning;
use crate::error::ModelError;
use crate::folder::checkpoint::{Checkpoint, Stored};
use crate::stream::store::Session;
use crate::weights::binding::BoundNorm;

/// A pass over one batch.
pub struct TrainingPass<'m> {
    model: &'m Model,
    session: Session<'m>,
    batch: &'m SequenceBatch,
    tuning: &'m Tuning,
    positions: Vec<usize>,
    pass: Pass<'m>,
}

impl Model {
    /// Begins a pass over `batch` with `tuning`. The model's own tuning is not used.
    pub fn training_pass<'m>(
        &'m self,
        batch: &'m SequenceBatch,
        tuning: &'m Tuning,
    ) -> Result<TrainingPass<'m>, ModelError> {
        let positions = batch.positions();
        let longest = positions.iter().max().map_or(0, |last| last + 1);
        let limit = self.blueprint.max_positions;
        if self.binding.positions.is_some() && longest > limit {
            return Err(ModelError::request(format!(
                "a sequence has {longest} tokens, the model has learned {limit} positions"
            )));
        }
        let rotation = |rope| Rotation::new(rope, &positions, batch.rows(), &self.device);
        let pass = Pass {
            blueprint: &self.blueprint,
            rotation: self.blueprint.rope.as_ref().map(rotation),
            local_rotation: self.blueprint.local_rope.as_ref().map(rotation),
            mask: AttentionMask {
                past: 0,
                pads: &batch.pads,
                causal: self.blueprint.causal,
                segments: Some(&batch.segments),
                last: LastMask::default(),
                device_pads: OnceCell::new(),
            },
            batch: batch.rows(),
            width: batch.width,
            tuning: Some(tuning),
            places: OnceCell::new(),
        };
        let session = self.store.open_on_demand();
        Ok(TrainingPass { model: self, session, batch, tuning, positions, pass })
    }

    /// The device that the model is on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl TrainingPass<'_> {
    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.model.blocks.len()
    }

    /// The first hidden state: `[tokens, hidden]`.
    pub fn embed(&self) -> Result<Tensor<2>, ModelError> {
        self.model.first_state(&self.batch.ids, &self.positions, &[], Some(self.tuning))
    }

    /// The hidden state behind a block.
    pub fn block(&mut self, number: usize, x: Tensor<2>) -> Result<Tensor<2>, ModelError> {
        let x = self.model.blocks[number].run(x, &self.pass, &mut self.session, None)?;
        Ok(self.model.format.between_blocks(x))
    }

    /// The last hidden state behind its norm, if the model has one.
    pub fn normed(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.model.final_norm {
            Some(norm) => norm.apply(x, Some(self.tuning)),
            None => x,
        }
    }

    /// The logits of some rows of the normed hidden state: `[rows, vocabulary]`.
    pub fn logits(&mut self, x: Tensor<2>) -> Result<Tensor<2>, ModelError> {
        let head = self.model.binding.head.ok_or_else(|| {
            ModelError::request("the model has no head, so it can't predict tokens")
        })?;
        let y = self.session.apply_tuned(head, Some(self.tuning), x.transpose())?;
        Ok(self.model.scaled_logits(y.transpose()))
    }
}

impl Opened {
    /// Every tensor that a pass uses, each once, in the order in which it is used: tables, vectors and matrices.
    pub fn tensors(&self) -> Vec<Stored> {
        let binding = &self.binding;
        let mut found: Vec<Stored> = Vec::new();
        let mut add = |stored: &Stored| {
            if !found.iter().any(|known| known.name == stored.name) {
                found.push(stored.clone());
            }
        };
        let tables = [&binding.positions, &binding.segments];
        [&binding.tokens].into_iter().chain(tables.into_iter().flatten()).for_each(&mut add);
        let of_norm = |norm: &BoundNorm, add: &mut dyn FnMut(&Stored)| {
            add(&norm.scale);
            norm.shift.iter().for_each(add);
        };
        binding.embedding_norm.iter().for_each(|norm| of_norm(norm, &mut add));
        for block in &binding.blocks {
            block.attention_norm.iter().for_each(|norm| of_norm(norm, &mut add));
            if let Some((q, k)) = &block.qk_norm {
                of_norm(q, &mut add);
                of_norm(k, &mut add);
            }
            block.mlp_norm.iter().for_each(|norm| of_norm(norm, &mut add));
            if let Some((attention, mlp)) = &block.post_norms {
                of_norm(attention, &mut add);
                of_norm(mlp, &mut add);
            }
            let single = [&block.out].into_iter().chain(&block.down);
            for bound in block.qkv.iter().chain(&block.up).chain(single) {
                add(&binding.matrices[bound.matrix].stored);
                bound.bias.iter().for_each(&mut add);
            }
        }
        binding.final_norm.iter().for_each(|norm| of_norm(norm, &mut add));
        self.head().iter().for_each(add);
        found
    }

    /// The matrix that gives logits; a tied one is the token table.
    pub fn head(&self) -> Option<Stored> {
        self.binding.head.map(|head| self.binding.matrices[head].stored.clone())
    }

    /// A tensor that the checkpoint has beside what a pass uses, with or without the family's prefix.
    pub fn beside(&self, name: &str) -> Result<Option<Stored>, ModelError> {
        let checkpoint = Checkpoint::open(&self.folder)?;
        let prefixed = format!("{}{name}", self.blueprint.prefix);
        Ok(checkpoint.tensor(&prefixed).or_else(|| checkpoint.tensor(name)).cloned())
    }
}
