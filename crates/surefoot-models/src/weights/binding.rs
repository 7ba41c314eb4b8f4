//! A blueprint bound to a checkpoint: every tensor that the description names is found and
//! has the right shape and dtype, and nothing is left over.

use std::collections::BTreeMap;

use crate::arch::blueprint::{Blueprint, Experts, Head, Layout, NormKind, Projection};
use crate::error::ModelError;
use crate::folder::checkpoint::{Checkpoint, Stored};
use crate::quantize::TIED_HEAD;
use crate::weights::choice::WeightChoice;
use surefoot_quant::BlockFormat;

/// A matrix in its file.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub(crate) stored: Stored,
    pub(crate) format: BlockFormat,
    /// What its numbers are rounded to while they are loaded: `format`, unless fewer bits were asked for.
    pub(crate) target: BlockFormat,
    pub(crate) layout: Layout,
    /// The block it belongs to; none for the head.
    pub block: Option<usize>,
    pub(crate) role: Role,
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Role {
    /// Every token goes through it.
    Dense,
    /// Chooses experts: small, and never rounded, since a small change may choose another.
    Router,
    /// An expert's.
    Expert {
        /// The share of the tokens that go through it, if all experts are chosen alike.
        used: f64,
    },
}

impl Matrix {
    /// Rows as the file has them.
    pub(crate) fn rows(&self) -> usize {
        self.stored.shape[0]
    }

    pub(crate) fn cols(&self) -> usize {
        self.stored.shape[1]
    }

    /// Whether it is an expert's.
    pub(crate) fn is_expert(&self) -> bool {
        matches!(self.role, Role::Expert { .. })
    }

    /// The share of the passes of one token that need it.
    pub(crate) fn used(&self) -> f64 {
        match self.role {
            Role::Expert { used } => used,
            Role::Dense | Role::Router => 1.0,
        }
    }

    /// Whether its numbers are quantised while they are loaded.
    pub(crate) fn is_rounded(&self) -> bool {
        self.target != self.format
    }

    /// A piece of it has a multiple of so many rows: blocks that go down the rows are not cut.
    pub(crate) fn row_step(&self) -> usize {
        if self.is_rounded() && self.layout == Layout::InOut { self.target.block_len() } else { 1 }
    }

    /// How its numbers are rounded before they are multiplied with.
    pub fn target(&self) -> BlockFormat {
        self.target
    }

    /// Its bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        self.stored.file_bytes()
    }
}

/// A projection: its matrix by number, and its bias.
#[derive(Clone, Debug)]
pub(crate) struct BoundProjection {
    pub(crate) matrix: usize,
    pub(crate) bias: Option<Stored>,
}

/// A norm's scale and shift.
#[derive(Clone, Debug)]
pub(crate) struct BoundNorm {
    pub(crate) scale: Stored,
    pub(crate) shift: Option<Stored>,
}

#[derive(Clone, Debug)]
pub(crate) struct BoundBlock {
    pub(crate) attention_norm: Option<BoundNorm>,
    pub(crate) qkv: Vec<BoundProjection>,
    pub(crate) qk_norm: Option<(BoundNorm, BoundNorm)>,
    pub(crate) out: BoundProjection,
    pub(crate) mlp_norm: Option<BoundNorm>,
    pub(crate) post_norms: Option<(BoundNorm, BoundNorm)>,
    pub(crate) up: Vec<BoundProjection>,
    pub(crate) down: Option<BoundProjection>,
    pub(crate) experts: Option<BoundExperts>,
}

/// Experts and their router, found.
#[derive(Clone, Debug)]
pub(crate) struct BoundExperts {
    pub(crate) router: BoundProjection,
    /// Gate, value and way out of each.
    pub(crate) experts: Vec<[BoundProjection; 3]>,
    pub(crate) shared_gate: Option<BoundProjection>,
}

/// Everything of a blueprint, found.
#[derive(Clone, Debug)]
pub struct Binding {
    pub(crate) tokens: Stored,
    /// What the rows of the token table are rounded to as they are read.
    pub(crate) tokens_target: BlockFormat,
    pub(crate) positions: Option<Stored>,
    pub(crate) segments: Option<Stored>,
    pub(crate) embedding_norm: Option<BoundNorm>,
    pub(crate) blocks: Vec<BoundBlock>,
    pub(crate) final_norm: Option<BoundNorm>,
    pub(crate) head: Option<usize>,
    /// All matrices, in the order in which a pass uses them.
    pub matrices: Vec<Matrix>,
    /// Bytes of norms and biases as f32.
    pub vector_bytes: u64,
}

impl Binding {
    /// Finds everything that `blueprint` names in `checkpoint`.
    pub fn new(blueprint: &Blueprint, checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        Finder::new(blueprint, checkpoint)?.bind()
    }

    /// Has all matrices, and the token table, rounded to the formats in which `other` has them. Whether it is
    /// built alike, so that there are any.
    pub(crate) fn round_like(&mut self, other: &Self) -> bool {
        let outputs_inputs = |matrix: &Matrix| match matrix.layout {
            Layout::OutIn => [matrix.rows(), matrix.cols()],
            Layout::InOut => [matrix.cols(), matrix.rows()],
        };
        let alike = self.matrices.len() == other.matrices.len()
            && self.tokens.shape == other.tokens.shape
            && self
                .matrices
                .iter()
                .zip(&other.matrices)
                .all(|(ours, theirs)| outputs_inputs(ours) == outputs_inputs(theirs));
        if alike {
            for (ours, theirs) in self.matrices.iter_mut().zip(&other.matrices) {
                ours.target = theirs.target;
            }
            self.tokens_target = other.tokens_target;
        }
        alike
    }

    /// Has all matrices loaded in the form of `choice`.
    pub(crate) fn choose(&mut self, choice: WeightChoice) {
        for matrix in &mut self.matrices {
            let shape = [matrix.rows(), matrix.cols()];
            let is_head = matrix.block.is_none();
            let choice = if matrix.role == Role::Router { WeightChoice::AsStored } else { choice };
            matrix.target = choice.format(matrix.format, matrix.layout, shape, is_head);
        }
    }
}

struct Finder<'a> {
    blueprint: &'a Blueprint,
    checkpoint: &'a Checkpoint,
    /// What this checkpoint puts before names; some leave it out.
    prefix: &'static str,
    /// Tensors that nothing has asked for yet.
    left: BTreeMap<&'a str, &'a Stored>,
    matrices: Vec<Matrix>,
    vector_bytes: u64,
}

impl<'a> Finder<'a> {
    fn new(blueprint: &'a Blueprint, checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let tokens = &blueprint.embeddings.tokens;
        let prefixed = format!("{}{tokens}", blueprint.prefix);
        let prefix = if checkpoint.tensors.contains_key(&prefixed) {
            blueprint.prefix
        } else if checkpoint.tensors.contains_key(tokens) {
            ""
        } else {
            return Err(ModelError::tensor(&checkpoint.listing, prefixed, "is missing"));
        };
        let left =
            checkpoint.tensors.iter().map(|(name, stored)| (name.as_str(), stored)).collect();
        Ok(Self { blueprint, checkpoint, prefix, left, matrices: Vec::new(), vector_bytes: 0 })
    }

    fn bind(mut self) -> Result<Binding, ModelError> {
        let blueprint = self.blueprint;
        let (hidden, head_dim) = (blueprint.hidden, blueprint.head_dim);
        let over_all = blueprint.qk_norm_over_all;
        let embeddings = &blueprint.embeddings;
        let tokens = self.find(&embeddings.tokens, &[blueprint.vocab, hidden])?;
        let positions = match &embeddings.positions {
            Some(name) => {
                let rows = blueprint.max_positions + embeddings.first_position;
                Some(self.find(name, &[rows, hidden])?)
            }
            None => None,
        };
        let segments = match &embeddings.segments {
            Some((name, rows)) => Some(self.find(name, &[*rows, hidden])?),
            None => None,
        };
        let embedding_norm = self.norm_if_any(embeddings.norm.as_deref())?;
        let mut blocks = Vec::with_capacity(blueprint.blocks.len());
        for (number, block) in blueprint.blocks.iter().enumerate() {
            let at = Some(number);
            blocks.push(BoundBlock {
                attention_norm: self.norm_if_any(block.attention_norm.as_deref())?,
                qkv: self.projections(at, &block.qkv)?,
                qk_norm: match &block.qk_norm {
                    Some((q, k)) => {
                        let mut rms = |name: &str, heads| -> Result<BoundNorm, ModelError> {
                            let size = if over_all { heads * head_dim } else { head_dim };
                            let scale = self.vector(&format!("{name}.weight"), size)?;
                            Ok(BoundNorm { scale, shift: None })
                        };
                        Some((rms(q, blueprint.heads)?, rms(k, blueprint.kv_heads)?))
                    }
                    None => None,
                },
                out: self.projection(at, &block.out)?,
                mlp_norm: self.norm_if_any(block.mlp_norm.as_deref())?,
                post_norms: match &block.post_norms {
                    Some((attention, mlp)) => Some((self.norm(attention)?, self.norm(mlp)?)),
                    None => None,
                },
                // Experts come before the feed-forward of all tokens, as in a pass.
                experts: match &block.experts {
                    Some(experts) => Some(self.experts(at, experts)?),
                    None => None,
                },
                up: self.projections(at, &block.up)?,
                down: match &block.down {
                    Some(down) => Some(self.projection(at, down)?),
                    None => None,
                },
            });
        }
        let final_norm = self.norm_if_any(blueprint.final_norm.as_deref())?;
        let head = self.head(&tokens)?;
        self.refuse_leftovers()?;
        Ok(Binding {
            tokens_target: tokens.format()?,
            tokens,
            positions,
            segments,
            embedding_norm,
            blocks,
            final_norm,
            head,
            matrices: self.matrices,
            vector_bytes: self.vector_bytes,
        })
    }

    /// Takes the tensor `name`, which must have `shape` and be of floats.
    fn take(&mut self, full: &str, shape: &[usize]) -> Result<Option<Stored>, ModelError> {
        let Some(stored) = self.left.remove(full) else { return Ok(None) };
        if stored.shape != shape {
            return Err(stored.problem(format!(
                "has the shape {:?} where the configuration says {shape:?}",
                stored.shape
            )));
        }
        stored.format()?;
        Ok(Some(stored.clone()))
    }

    fn find(&mut self, name: &str, shape: &[usize]) -> Result<Stored, ModelError> {
        let full = format!("{}{name}", self.prefix);
        self.take(&full, shape)?
            .ok_or_else(|| ModelError::tensor(&self.checkpoint.listing, full, "is missing"))
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<Stored, ModelError> {
        self.vector_bytes += size as u64 * 4;
        self.find(name, &[size])
    }

    fn norm(&mut self, name: &str) -> Result<BoundNorm, ModelError> {
        let hidden = self.blueprint.hidden;
        // Checkpoints that come from TensorFlow say gamma and beta.
        let old = self.left.contains_key(format!("{}{name}.gamma", self.prefix).as_str());
        let (scale, shift) = if old { ("gamma", "beta") } else { ("weight", "bias") };
        Ok(BoundNorm {
            scale: self.vector(&format!("{name}.{scale}"), hidden)?,
            shift: match self.blueprint.norm {
                NormKind::Layer => Some(self.vector(&format!("{name}.{shift}"), hidden)?),
                NormKind::Rms | NormKind::LayerWithoutShift => None,
            },
        })
    }

    fn norm_if_any(&mut self, name: Option<&str>) -> Result<Option<BoundNorm>, ModelError> {
        name.map(|name| self.norm(name)).transpose()
    }

    fn projections(
        &mut self,
        block: Option<usize>,
        projections: &[Projection],
    ) -> Result<Vec<BoundProjection>, ModelError> {
        projections.iter().map(|projection| self.projection(block, projection)).collect()
    }

    fn experts(
        &mut self,
        block: Option<usize>,
        experts: &Experts,
    ) -> Result<BoundExperts, ModelError> {
        let router = self.projection_of(block, &experts.router, Role::Router)?;
        let shared_gate = match &experts.shared_gate {
            Some(gate) => Some(self.projection_of(block, gate, Role::Router)?),
            None => None,
        };
        let used = experts.per_token as f64 / experts.experts.len().max(1) as f64;
        let role = Role::Expert { used };
        let mut bound = Vec::with_capacity(experts.experts.len());
        for expert in &experts.experts {
            bound.push([
                self.projection_of(block, &expert.gate, role)?,
                self.projection_of(block, &expert.up, role)?,
                self.projection_of(block, &expert.down, role)?,
            ]);
        }
        Ok(BoundExperts { router, experts: bound, shared_gate })
    }

    fn projection(
        &mut self,
        block: Option<usize>,
        projection: &Projection,
    ) -> Result<BoundProjection, ModelError> {
        self.projection_of(block, projection, Role::Dense)
    }

    fn projection_of(
        &mut self,
        block: Option<usize>,
        projection: &Projection,
        role: Role,
    ) -> Result<BoundProjection, ModelError> {
        // Matrices in blocks have outputs as rows, whatever the family's own way is.
        let full = format!("{}{}", self.prefix, projection.weight);
        let stored = self.left.get(full.as_str());
        let packed = stored.is_some_and(|it| it.format().is_ok_and(BlockFormat::is_quantized));
        let layout = if packed { Layout::OutIn } else { projection.layout };
        let shape = match layout {
            Layout::OutIn => [projection.outputs, projection.inputs],
            Layout::InOut => [projection.inputs, projection.outputs],
        };
        let stored = self.find(&projection.weight, &shape)?;
        let matrix = self.matrix(stored, layout, block, role)?;
        let bias = match &projection.bias {
            Some(name) => Some(self.vector(name, projection.outputs)?),
            None => None,
        };
        Ok(BoundProjection { matrix, bias })
    }

    fn matrix(
        &mut self,
        stored: Stored,
        layout: Layout,
        block: Option<usize>,
        role: Role,
    ) -> Result<usize, ModelError> {
        let format = stored.format()?;
        self.matrices.push(Matrix { stored, format, target: format, layout, block, role });
        Ok(self.matrices.len() - 1)
    }

    fn head(&mut self, tokens: &Stored) -> Result<Option<usize>, ModelError> {
        let shape = [self.blueprint.vocab, self.blueprint.hidden];
        match &self.blueprint.head {
            Head::None => Ok(None),
            Head::Tied => {
                // One in blocks stands for the token table, which is then needed for its rows alone.
                let own = self.left.get(TIED_HEAD);
                let packed = own.is_some_and(|it| it.format().is_ok_and(BlockFormat::is_quantized));
                let own = if packed { self.take(TIED_HEAD, &shape)? } else { None };
                let head = own.unwrap_or_else(|| tokens.clone());
                self.matrix(head, Layout::OutIn, None, Role::Dense).map(Some)
            }
            Head::Own(name) => match self.take(name, &shape)? {
                Some(stored) => self.matrix(stored, Layout::OutIn, None, Role::Dense).map(Some),
                // Saved without a head: a base model has hidden states, but no logits.
                None if self.prefix.is_empty() => Ok(None),
                None => Err(ModelError::tensor(&self.checkpoint.listing, name, "is missing")),
            },
        }
    }

    fn refuse_leftovers(&self) -> Result<(), ModelError> {
        let blueprint = self.blueprint;
        let stray = self.left.iter().find(|(name, _)| {
            let needless = blueprint.ignored_endings.iter().any(|end| name.ends_with(end))
                || blueprint.ignored_beginnings.iter().any(|start| name.starts_with(start))
                // A tied head may be stored all the same.
                || (blueprint.head == Head::Tied
                    && matches!(**name, "lm_head.weight" | "embed_out.weight"));
            !needless
        });
        match stray {
            None => Ok(()),
            Some((_, stored)) => Err(stored.problem(format!(
                "is unexpected: a {} of {} blocks has no place for it",
                blueprint.family,
                blueprint.blocks.len()
            ))),
        }
    }
}
