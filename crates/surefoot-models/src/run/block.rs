//! One block: attention and feed-forward over the rows of all sequences of a batch.
//!
//! Inside attention and feed-forward, activations are `[features, rows]`: a matrix as files store it
//! then multiplies from the left, which is fast for one row and for many.
//!
//! Attention, the growth of the cache and the feed-forward are points where a drill can strike.

use std::cell::OnceCell;

use burn::tensor::{Device, Tensor, TensorData};
use surefoot::recover::Point;
use surefoot::recover::drill::point;

use super::attention::{self, AttentionMask, Scores};
use super::cache::{Queries, Store};
use super::experts::ExpertsRunner;
use super::norm::{self, Norm};
use super::rotary::Rotation;
use super::tuning::Tuning;
use crate::arch::blueprint::{Blueprint, NormKind, QkvSplit, Residual, Rotary};
use crate::error::ModelError;
use crate::stream::store::Session;
use crate::weights::binding::{BoundBlock, BoundNorm, BoundProjection};
use crate::weights::format::is_host;

/// A projection whose bias is on the device.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) matrix: usize,
    /// Its name in the file, and `[outputs, 1]`.
    pub(super) bias: Option<(String, Tensor<2>)>,
    /// The same as `[outputs]`.
    flat_bias: Option<Tensor<1>>,
}

impl Linear {
    pub(super) fn load(bound: &BoundProjection, device: &Device) -> Result<Self, ModelError> {
        let flat_bias = bound.bias.as_ref().map(|bias| norm::vector(bias, device)).transpose()?;
        let named = bound.bias.as_ref().map(|bias| bias.name.clone()).zip(flat_bias.clone());
        let bias = named.map(|(name, bias)| (name, bias.unsqueeze_dim(1)));
        Ok(Self { matrix: bound.matrix, bias, flat_bias })
    }

    /// The bias as it is without a tuning, `[outputs]`.
    pub(super) fn plain_bias(&self) -> Option<&Tensor<1>> {
        self.flat_bias.as_ref()
    }

    pub(super) fn apply(
        &self,
        session: &mut Session<'_>,
        tuning: Option<&Tuning>,
        x: Tensor<2>,
    ) -> Result<Tensor<2>, ModelError> {
        let y = session.apply_tuned(self.matrix, tuning, x)?;
        Ok(match &self.bias {
            Some((name, own)) => {
                let tuned = tuning.and_then(|tuning| tuning.vector(name));
                y + tuned.map_or_else(|| own.clone(), |bias| bias.clone().unsqueeze_dim(1))
            }
            None => y,
        })
    }
}

/// A block with its vectors on the device.
#[derive(Debug)]
pub(crate) struct BlockRunner {
    pub(super) number: usize,
    pub(super) attention_norm: Option<Norm>,
    pub(super) qkv: Vec<Linear>,
    /// The biases of queries, keys and values one after another.
    pub(super) qkv_bias: Option<Tensor<1>>,
    pub(super) qk_norm: Option<(Norm, Norm)>,
    pub(super) out: Linear,
    pub(super) mlp_norm: Option<Norm>,
    post_norms: Option<(Norm, Norm)>,
    pub(super) up: Vec<Linear>,
    pub(super) down: Option<Linear>,
    pub(super) experts: Option<ExpertsRunner>,
}

/// What all blocks of one pass share.
pub(crate) struct Pass<'a> {
    pub(crate) blueprint: &'a Blueprint,
    pub(crate) rotation: Option<Rotation>,
    pub(crate) local_rotation: Option<Rotation>,
    pub(crate) mask: AttentionMask<'a>,
    pub(crate) batch: usize,
    pub(crate) width: usize,
    pub(crate) tuning: Option<&'a Tuning>,
    /// See [`Self::places`]; the same for all blocks.
    pub(crate) places: OnceCell<Tensor<1>>,
}

impl Pass<'_> {
    /// The columns of a cache that the tokens of this pass are written to and see, as [`column_numbers`] gives them.
    pub(super) fn places(&self, start: usize, filled: usize, device: &Device) -> Tensor<1> {
        let made = || {
            let numbers = column_numbers(start, filled, self.mask.pads);
            let count = numbers.len();
            Tensor::from_data(TensorData::new(numbers, [count]), device)
        };
        self.places.get_or_init(made).clone()
    }
}

/// What [`surefoot_ops::AppendedTensors::places`] takes for sequences that have `pads` columns of padding in a cache whose columns from `start`
/// to `filled` are in use.
pub(super) fn column_numbers(start: usize, filled: usize, pads: &[usize]) -> Vec<f32> {
    let mut numbers = vec![filled as f32, start as f32];
    if pads.iter().any(|pad| *pad > 0) {
        numbers.extend(pads.iter().map(|pad| (start + pad) as f32));
    }
    numbers
}

impl BlockRunner {
    pub(crate) fn load(
        number: usize,
        blueprint: &Blueprint,
        bound: &BoundBlock,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let linears = |bound: &[BoundProjection]| {
            bound.iter().map(|bound| Linear::load(bound, device)).collect::<Result<Vec<_>, _>>()
        };
        let numbers = (blueprint.eps, blueprint.norm_offset);
        let load = |kind, bound: &BoundNorm| Norm::load(kind, bound, numbers, device);
        let load_if_any = |bound: &Option<BoundNorm>| {
            bound.as_ref().map(|bound| load(blueprint.norm, bound)).transpose()
        };
        let qkv = linears(&bound.qkv)?;
        let biases: Vec<_> = qkv.iter().filter_map(|linear| linear.plain_bias().cloned()).collect();
        let qkv_bias = (!is_host(device) && !biases.is_empty() && biases.len() == qkv.len())
            .then(|| Tensor::cat(biases, 0));
        Ok(Self {
            number,
            attention_norm: load_if_any(&bound.attention_norm)?,
            qkv,
            qkv_bias,
            qk_norm: match &bound.qk_norm {
                Some((q, k)) => Some((load(NormKind::Rms, q)?, load(NormKind::Rms, k)?)),
                None => None,
            },
            out: Linear::load(&bound.out, device)?,
            mlp_norm: load_if_any(&bound.mlp_norm)?,
            post_norms: match &bound.post_norms {
                Some((attention, mlp)) => {
                    Some((load(blueprint.norm, attention)?, load(blueprint.norm, mlp)?))
                }
                None => None,
            },
            up: linears(&bound.up)?,
            down: match &bound.down {
                Some(down) => Some(Linear::load(down, device)?),
                None => None,
            },
            experts: match &bound.experts {
                Some(experts) => Some(ExpertsRunner::load(experts, device)?),
                None => None,
            },
        })
    }

    /// Runs the block over `[rows, hidden]`.
    pub(crate) fn run(
        &self,
        x: Tensor<2>,
        pass: &Pass<'_>,
        session: &mut Session<'_>,
        mut cache: Option<&mut Store>,
    ) -> Result<Tensor<2>, ModelError> {
        if let Some(cache) = cache.as_deref_mut()
            && let Some(decoded) = self.decode(&x, pass, session, cache)
        {
            return Ok(decoded);
        }
        let normed = |norm: Option<&Norm>, x: Tensor<2>| match norm {
            Some(norm) => norm.apply(x, pass.tuning),
            None => x,
        };
        let attention_norm = |x: Tensor<2>| normed(self.attention_norm.as_ref(), x);
        let mlp_norm = |x: Tensor<2>| normed(self.mlp_norm.as_ref(), x);
        let behind_attention = self.post_norms.as_ref().map(|norms| &norms.0);
        let behind_mlp = self.post_norms.as_ref().map(|norms| &norms.1);
        // Most families add what a half gives as it is.
        let factor = pass.blueprint.scales.residual;
        let scaled = |y: Tensor<2>| if factor == 1.0 { y } else { y * factor };
        match pass.blueprint.residual {
            Residual::Serial => {
                let attended = self.attend(attention_norm(x.clone()), pass, session, cache)?;
                let x = x + scaled(attended);
                let fed = self.feed(pass, mlp_norm(x.clone()), session)?;
                Ok(x + scaled(fed))
            }
            Residual::Parallel => {
                let before = attention_norm(x.clone());
                let attended = self.attend(before.clone(), pass, session, cache)?;
                let before = match &self.mlp_norm {
                    Some(norm) => norm.apply(x.clone(), pass.tuning),
                    None => before,
                };
                let fed = self.feed(pass, before, session)?;
                Ok(x + scaled(attended) + scaled(fed))
            }
            Residual::PostNorm => {
                let attended = self.attend(x.clone(), pass, session, cache)?;
                let x = attention_norm(x + attended);
                let fed = self.feed(pass, x.clone(), session)?;
                Ok(mlp_norm(x + fed))
            }
            Residual::NormedHalves => {
                let attended = self.attend(x.clone(), pass, session, cache)?;
                let x = x + scaled(attention_norm(attended));
                let fed = self.feed(pass, x.clone(), session)?;
                Ok(x + scaled(mlp_norm(fed)))
            }
            Residual::Sandwich => {
                let attended = self.attend(attention_norm(x.clone()), pass, session, cache)?;
                let x = x + scaled(normed(behind_attention, attended));
                let fed = self.feed(pass, mlp_norm(x.clone()), session)?;
                Ok(x + scaled(normed(behind_mlp, fed)))
            }
        }
    }

    fn attend(
        &self,
        x: Tensor<2>,
        pass: &Pass<'_>,
        session: &mut Session<'_>,
        cache: Option<&mut Store>,
    ) -> Result<Tensor<2>, ModelError> {
        point(Point::Operation);
        let block = &pass.blueprint.blocks[self.number];
        let (mut q, mut k, v) = self.queries_keys_values(x.transpose(), pass, session)?;
        if let Some((q_norm, k_norm)) = &self.qk_norm
            && !pass.blueprint.qk_norm_over_all
        {
            q = q_norm.apply(q, pass.tuning);
            k = k_norm.apply(k, pass.tuning);
        }
        let rotation = match block.rotary {
            Rotary::None => None,
            Rotary::Global => pass.rotation.as_ref(),
            Rotary::Local => pass.local_rotation.as_ref(),
        };
        if let Some(rotation) = rotation {
            q = rotation.apply(q);
            k = rotation.apply(k);
        }
        point(Point::Allocation);
        let scores = Scores {
            scale: block.scale,
            cap: pass.blueprint.scales.attention_cap,
            window: block.window,
        };
        let mask = &pass.mask;
        let seen = match cache {
            Some(cache) => cache.attend(self.number, Queries { q, scores, mask }, k, v)?,
            None => attention::attend(q, &k, &v, scores, mask),
        };
        let [batch, heads, width, dim] = seen.dims();
        let seen = match is_host(&seen.device()) {
            // Columns one after the other, as the kernels of the processor take them.
            true => seen.swap_dims(1, 2).reshape([batch * width, heads * dim]).transpose(),
            false => seen.permute([1, 3, 0, 2]).reshape([heads * dim, batch * width]),
        };
        Ok(self.out.apply(session, pass.tuning, seen)?.transpose())
    }

    fn queries_keys_values(
        &self,
        x: Tensor<2>,
        pass: &Pass<'_>,
        session: &mut Session<'_>,
    ) -> Result<(Tensor<4>, Tensor<4>, Tensor<4>), ModelError> {
        let blueprint = pass.blueprint;
        let (batch, width, dim) = (pass.batch, pass.width, blueprint.head_dim);
        let on_host = is_host(&x.device());
        let by_head = |y: Tensor<2>, heads: usize| match on_host {
            // The kernels of the processor give columns one after the other.
            true => y.transpose().reshape([batch, width, heads, dim]).swap_dims(1, 2),
            false => y.reshape([heads, dim, batch, width]).permute([2, 0, 3, 1]),
        };
        let mut projected = Vec::with_capacity(3);
        for linear in &self.qkv {
            projected.push(linear.apply(session, pass.tuning, x.clone())?);
        }
        if let (Some((q_norm, k_norm)), [q, k, _]) = (&self.qk_norm, &mut projected[..])
            && blueprint.qk_norm_over_all
        {
            *q = q_norm.apply(q.clone().transpose(), pass.tuning).transpose();
            *k = k_norm.apply(k.clone().transpose(), pass.tuning).transpose();
        }
        let (heads, kv_heads) = (blueprint.heads, blueprint.kv_heads);
        let mut projected = projected.into_iter();
        Ok(match (blueprint.split, projected.next(), projected.next(), projected.next()) {
            (QkvSplit::Separate, Some(q), Some(k), Some(v)) => {
                (by_head(q, heads), by_head(k, kv_heads), by_head(v, kv_heads))
            }
            (QkvSplit::Blocks, Some(y), ..) => {
                let part = |from: usize, heads: usize| {
                    by_head(y.clone().narrow(0, from * dim, heads * dim), heads)
                };
                (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads))
            }
            (QkvSplit::PerHead, Some(y), ..) => {
                let y = y.reshape([heads, 3, dim, batch * width]);
                let part = |which: usize| {
                    by_head(
                        y.clone().narrow(1, which, 1).reshape([heads * dim, batch * width]),
                        heads,
                    )
                };
                (part(0), part(1), part(2))
            }
            (QkvSplit::Separate, ..) | (_, None, ..) => {
                return Err(ModelError::request("the block lacks queries, keys or values"));
            }
        })
    }

    fn feed(
        &self,
        pass: &Pass<'_>,
        x: Tensor<2>,
        session: &mut Session<'_>,
    ) -> Result<Tensor<2>, ModelError> {
        point(Point::Operation);
        let x = x.transpose();
        let activation = pass.blueprint.activation;
        let described = pass.blueprint.blocks[self.number].experts.as_ref();
        let (experts, gate) = match (&self.experts, described) {
            (Some(experts), Some(described)) => {
                let (sum, gate) = experts.run(described, activation, &x, session)?;
                (Some(sum), gate)
            }
            _ => (None, None),
        };
        let mut inner: Option<Tensor<2>> = None;
        let mut gate_before: Option<Tensor<2>> = None;
        for linear in &self.up {
            let y = linear.apply(session, pass.tuning, x.clone())?;
            if pass.blueprint.fused_gate {
                let [both, columns] = y.dims();
                let half = both / 2;
                let gate = y.clone().slice([0..half, 0..columns]);
                inner = Some(activation.gated(gate, y.slice([half..both, 0..columns])));
                continue;
            }
            inner = Some(match (inner.take(), gate_before.take()) {
                // Gate, then value.
                (_, Some(gate)) => activation.gated(gate, y),
                (Some(gate), None) => gate * y,
                (None, None) if self.up.len() == 2 => {
                    gate_before = Some(y);
                    continue;
                }
                (None, None) => activation.apply(y),
            });
        }
        let dense = match (&self.down, inner) {
            (Some(down), Some(inner)) => Some(down.apply(session, pass.tuning, inner)?),
            _ => None,
        };
        let dense = match (dense, gate) {
            (Some(dense), Some(gate)) => Some(dense * gate),
            (dense, _) => dense,
        };
        match (dense, experts) {
            (Some(dense), Some(experts)) => Ok((dense + experts).transpose()),
            (Some(fed), None) | (None, Some(fed)) => Ok(fed.transpose()),
            (None, None) => Err(ModelError::request("the block has no feed-forward")),
        }
    }
}
