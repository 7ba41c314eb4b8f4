//! A block that decodes one token of each sequence on a device of its own. Up to eight tokens take five launches: queries, keys and values of the
//! normalised token; attention, which adds to the cache; the way out of attention and the residual; gate and value; the way down
//! and the residual.
//!
//! [`BlockRunner::decode`] is for the block that most decoders have: root-mean-square norms before both halves, a gated SiLU, weights
//! that stay on the device as plain tensors. It gives none for any other, and [`BlockRunner::run`] then does the
//! same in more launches; what was written into the cache by then is written again.

use burn::tensor::Tensor;
use surefoot::recover::Point;
use surefoot::recover::drill::point;
use surefoot_ops::{AppendedAttention, AppendedTensors, DecodeProducts, MOST_DECODED};

use super::block::{BlockRunner, Pass};
use super::cache::{DeviceCache, Store};
use crate::arch::activation::Activation;
use crate::arch::blueprint::{QkvSplit, Residual, Rotary};
use crate::stream::store::Session;
use crate::weights::format::is_host;

impl BlockRunner {
    /// Runs the block over one token of each sequence, `[sequences, hidden]`.
    pub(super) fn decode(
        &self,
        x: &Tensor<2>,
        pass: &Pass<'_>,
        session: &Session<'_>,
        cache: &mut Store,
    ) -> Option<Tensor<2>> {
        let blueprint = pass.blueprint;
        let block = &blueprint.blocks[self.number];
        let is_plain = pass.width == 1
            && pass.batch <= MOST_DECODED
            && pass.tuning.is_none()
            && !is_host(&x.device())
            && !x.is_autodiff()
            && blueprint.residual == Residual::Serial
            && blueprint.activation == Activation::Silu
            && blueprint.scales.attention_cap.is_none()
            && blueprint.split != QkvSplit::PerHead
            && !(self.qk_norm.is_some() && blueprint.qk_norm_over_all)
            && pass.mask.causal
            && pass.mask.segments.is_none()
            && self.experts.is_none()
            && self.qkv.iter().all(|qkv| qkv.bias.is_some() == self.qkv_bias.is_some())
            && self.up.iter().all(|up| up.bias.is_none());
        if !is_plain {
            return None;
        }
        let device = x.device();
        let (attention_norm, mlp_norm) =
            (self.attention_norm.as_ref()?.plain_rms()?, self.mlp_norm.as_ref()?.plain_rms()?);
        let head_norms = match &self.qk_norm {
            Some((q, k)) => Some((q.plain_rms()?, k.plain_rms()?)),
            None => None,
        };
        let weight = |matrix: usize| session.resident(matrix, &device);
        let qkv = self.qkv.iter().map(|l| weight(l.matrix)).collect::<Option<Vec<_>>>()?;
        let up = self.up.iter().map(|l| weight(l.matrix)).collect::<Option<Vec<_>>>()?;
        let down = self.down.as_ref()?;
        let (out_weight, down_weight) = (weight(self.out.matrix)?, weight(down.matrix)?);
        // One weight that holds gate and value is cut in two, which copies nothing.
        let [gate, value] = match &up[..] {
            [gate, value] => [gate.clone(), value.clone()],
            [both] if blueprint.fused_gate => {
                let half = both.dims()[0] / 2;
                [both.clone().narrow(0, 0, half), both.clone().narrow(0, half, half)]
            }
            _ => return None,
        };
        let DeviceCache { keys, values, start, filled } = cache.of_device(self.number)?;
        if keys.device() != device {
            return None;
        }
        let rotation = match block.rotary {
            Rotary::None => None,
            Rotary::Global => pass.rotation.as_ref(),
            Rotary::Local => pass.local_rotation.as_ref(),
        };
        let places = pass.places(start, filled, &device);
        let factor = blueprint.scales.residual;

        point(Point::Operation);
        let mixed = DecodeProducts {
            norm: Some(attention_norm),
            weights: qkv.iter().collect(),
            bias: self.qkv_bias.as_ref(),
            ..DecodeProducts::default()
        };
        let mixed = mixed.of(x)?;
        point(Point::Allocation);
        let attention = AppendedAttention {
            heads: blueprint.heads,
            window: block.window,
            filled,
            scale: block.scale,
            interleaved: rotation.is_some_and(|rotation| rotation.interleaved()),
            epsilon: head_norms.map_or(0.0, |((_, epsilon), _)| epsilon),
        };
        let seen = attention.attend(AppendedTensors {
            mixed: &mixed,
            keys,
            values,
            rotation: rotation.map(|rotation| rotation.tables()),
            norms: head_norms.map(|((q, _), (k, _))| (q, k)),
            places: &places,
        })?;
        let attended = DecodeProducts {
            weights: vec![&out_weight],
            bias: self.out.plain_bias(),
            residual: Some((x, factor)),
            ..DecodeProducts::default()
        };
        let x = attended.of(&seen)?;
        point(Point::Operation);
        let inner = DecodeProducts {
            norm: Some(mlp_norm),
            weights: vec![&gate, &value],
            gated: true,
            ..DecodeProducts::default()
        };
        let inner = inner.of(&x)?;
        let fed = DecodeProducts {
            weights: vec![&down_weight],
            bias: down.plain_bias(),
            residual: Some((&x, factor)),
            ..DecodeProducts::default()
        };
        fed.of(&inner)
    }
}
