//! A block over the tokens of prompts or one token of each sequence, on a device of its own, with its products, attention and cache in few
//! launches. Up to eight tokens that are decoded take five: queries, keys and values of the
//! normalised token; attention, which adds to the cache; the way out of attention and the residual; gate and value; the way down
//! and the residual. More tokens take up to eight in a step and nine to fourteen in prompts, where a norm, products and what is behind them are
//! launches of their own, and attention of prompts is two or more.
//!
//! [`BlockRunner::decode`] is for the block that most decoders have: root-mean-square norms before both halves, a gated SiLU, weights
//! that stay on the device as plain tensors ([`BlockRunner::fused`]). It gives none for any other, and [`BlockRunner::run`] then does the
//! same in more launches; what was written into the cache by then is written again.

use burn::tensor::{DType, Device, Tensor};
use surefoot::recover::Point;
use surefoot::recover::drill::point;
use surefoot_ops::{
    AppendedAttention, AppendedPromptTensors, AppendedPrompts, AppendedTensors, DecodeProducts,
    MOST_DECODED,
};

use super::block::{BlockRunner, Pass};
use super::cache::{DeviceCache, Store};
use crate::arch::activation::Activation;
use crate::arch::blueprint::{Blueprint, QkvSplit, Residual, Rotary};
use crate::stream::store::Session;
use crate::weights::format::is_host;

/// How often the inner state of the feed-forward is planned beside what attention of prompts holds: its scores may take as much.
const ROOM_FOR_SCORES: usize = 6;

/// The factors of a norm, and what is added to the mean square.
pub(super) type NormParts<'b> = (&'b Tensor<1>, f64);

/// The state of tokens between two norms.
pub(super) struct Tokens {
    /// `[tokens, hidden]`.
    pub(super) x: Tensor<2>,
    /// What the next norm gives of it, where that was made with it ([`DecodeProducts::then_norm`]).
    normed: Option<Tensor<2>>,
}

impl Tokens {
    pub(super) fn plain(x: Tensor<2>) -> Self {
        Self { x, normed: None }
    }

    /// What `products` give behind `x`, and what the norm behind them gives if that is made with them.
    fn behind(
        products: &DecodeProducts<'_>,
        x: &Tensor<2>,
        next: Option<NormParts<'_>>,
    ) -> Option<Self> {
        if let Some((x, normed)) = next.and_then(|next| products.then_norm(x, next)) {
            return Some(Self { x, normed: Some(normed) });
        }
        products.of(x).map(Self::plain)
    }

    /// The norm before products with `weight`, and the tokens that it is for: none where it was made already.
    pub(super) fn before<'t>(
        &'t self,
        weight: Option<&Tensor<2>>,
        norm: Option<NormParts<'t>>,
    ) -> (Option<NormParts<'t>>, &'t Tensor<2>) {
        let is_for = |normed: &&Tensor<2>| {
            normed.dtype() == DType::F32
                || weight.is_some_and(|weight| weight.dtype() == normed.dtype())
        };
        match self.normed.as_ref().filter(is_for) {
            Some(normed) => (None, normed),
            None => (norm, &self.x),
        }
    }
}

/// What the kernels take of a block.
pub(super) struct FusedBlock<'b> {
    attention_norm: NormParts<'b>,
    mlp_norm: NormParts<'b>,
    head_norms: Option<(NormParts<'b>, NormParts<'b>)>,
    qkv: Vec<Tensor<2>>,
    out: Tensor<2>,
    gate: Tensor<2>,
    value: Tensor<2>,
    down: Tensor<2>,
    down_bias: Option<&'b Tensor<1>>,
}

impl BlockRunner {
    /// What the kernels take of this block on `device`, if it is one for them.
    pub(super) fn fused(
        &self,
        blueprint: &Blueprint,
        session: &Session<'_>,
        device: &Device,
    ) -> Option<FusedBlock<'_>> {
        let is_plain = !is_host(device)
            && blueprint.residual == Residual::Serial
            && blueprint.activation == Activation::Silu
            && blueprint.scales.attention_cap.is_none()
            && blueprint.split != QkvSplit::PerHead
            && !(self.qk_norm.is_some() && blueprint.qk_norm_over_all)
            && blueprint.causal
            && self.experts.is_none()
            && self.qkv.iter().all(|qkv| qkv.bias.is_some() == self.qkv_bias.is_some())
            && self.up.iter().all(|up| up.bias.is_none());
        if !is_plain {
            return None;
        }
        let (attention_norm, mlp_norm) =
            (self.attention_norm.as_ref()?.plain_rms()?, self.mlp_norm.as_ref()?.plain_rms()?);
        let head_norms = match &self.qk_norm {
            Some((q, k)) => Some((q.plain_rms()?, k.plain_rms()?)),
            None => None,
        };
        let weight = |matrix: usize| session.resident(matrix, device);
        let qkv = self.qkv.iter().map(|l| weight(l.matrix)).collect::<Option<Vec<_>>>()?;
        let up = self.up.iter().map(|l| weight(l.matrix)).collect::<Option<Vec<_>>>()?;
        let down = self.down.as_ref()?;
        let (out, down_weight) = (weight(self.out.matrix)?, weight(down.matrix)?);
        // One weight that holds gate and value is cut in two, which copies nothing.
        let [gate, value] = match &up[..] {
            [gate, value] => [gate.clone(), value.clone()],
            [both] if blueprint.fused_gate => {
                let half = both.dims()[0] / 2;
                [both.clone().narrow(0, 0, half), both.clone().narrow(0, half, half)]
            }
            _ => return None,
        };
        let (down, down_bias) = (down_weight, down.plain_bias());
        Some(FusedBlock {
            attention_norm,
            mlp_norm,
            head_norms,
            qkv,
            out,
            gate,
            value,
            down,
            down_bias,
        })
    }

    /// Runs the block over tokens of sequences, `[sequences · width, hidden]`.
    pub(super) fn decode(
        &self,
        x: &Tensor<2>,
        pass: &Pass<'_>,
        session: &Session<'_>,
        cache: &mut Store,
    ) -> Option<Tensor<2>> {
        let tokens = Tokens::plain(x.clone());
        self.decode_tokens(&tokens, pass, session, cache, None).map(|tokens| tokens.x)
    }

    /// [`Self::decode`], with the norm `next` behind the block.
    pub(super) fn decode_tokens(
        &self,
        tokens: &Tokens,
        pass: &Pass<'_>,
        session: &Session<'_>,
        cache: &mut Store,
        next: Option<NormParts<'_>>,
    ) -> Option<Tokens> {
        let device = tokens.x.device();
        let takes = pass.batch * pass.width <= MOST_DECODED
            && pass.tuning.is_none()
            && !tokens.x.is_autodiff()
            && pass.mask.causal
            && pass.mask.segments.is_none();
        if !takes {
            return None;
        }
        let fused = self.fused(pass.blueprint, session, &device)?;
        let cache = cache.of_device(self.number)?;
        if cache.keys.device() != device {
            return None;
        }
        let factor = pass.blueprint.scales.residual;

        point(Point::Operation);
        let (norm, normed) = tokens.before(fused.qkv.first(), Some(fused.attention_norm));
        let mixed = DecodeProducts {
            norm,
            weights: fused.qkv.iter().collect(),
            bias: self.qkv_bias.as_ref(),
            ..DecodeProducts::default()
        };
        let in_parts = if is_step(pass, &cache) { mixed.in_parts(normed) } else { None };
        let (mixed, parts) = match in_parts {
            Some(in_parts) => in_parts,
            None => (mixed.of(normed)?, 1),
        };
        point(Point::Allocation);
        let seen = self.attend_and_append(&mixed, parts, &fused, pass, &cache)?;
        let attended = DecodeProducts {
            weights: vec![&fused.out],
            bias: self.out.plain_bias(),
            residual: Some((&tokens.x, factor)),
            ..DecodeProducts::default()
        };
        let tokens = Tokens::behind(&attended, &seen, Some(fused.mlp_norm))?;
        point(Point::Operation);
        let (norm, normed) = tokens.before(Some(&fused.gate), Some(fused.mlp_norm));
        let inner = DecodeProducts {
            norm,
            weights: vec![&fused.gate, &fused.value],
            gated: true,
            next: Some(&fused.down),
            ..DecodeProducts::default()
        };
        let inner = inner.of(normed)?;
        let fed = DecodeProducts {
            weights: vec![&fused.down],
            bias: fused.down_bias,
            residual: Some((&tokens.x, factor)),
            ..DecodeProducts::default()
        };
        Tokens::behind(&fed, &inner, next)
    }

    /// Attention of the tokens, whose keys and values are written into the cache. Only those of a step may be in parts.
    fn attend_and_append(
        &self,
        mixed: &Tensor<2>,
        parts: usize,
        fused: &FusedBlock<'_>,
        pass: &Pass<'_>,
        cache: &DeviceCache<'_>,
    ) -> Option<Tensor<2>> {
        let (blueprint, block) = (pass.blueprint, &pass.blueprint.blocks[self.number]);
        let DeviceCache { keys, values, start, filled, first_row, stale } = *cache;
        let rotation = match block.rotary {
            Rotary::None => None,
            Rotary::Global => pass.rotation.as_ref(),
            Rotary::Local => pass.local_rotation.as_ref(),
        };
        let norms = fused.head_norms.map(|((q, _), (k, _))| (q, k));
        let epsilon = fused.head_norms.map_or(0.0, |((_, epsilon), _)| epsilon);
        let interleaved = rotation.is_some_and(|rotation| rotation.interleaved());
        let rotation = rotation.map(|rotation| rotation.tables());
        let (heads, window, scale) = (blueprint.heads, block.window, block.scale);
        if is_step(pass, cache) {
            let places = pass.places(start, filled, &keys.device());
            let how =
                AppendedAttention { heads, window, filled, scale, interleaved, epsilon, parts };
            let places = &places;
            return how.attend(AppendedTensors { mixed, keys, values, rotation, norms, places });
        }
        let how = AppendedPrompts {
            heads,
            window,
            scale,
            interleaved,
            epsilon,
            width: pass.width,
            first_row,
            start,
            filled,
            stale,
            compute: fused.out.dtype(),
            most_scores: mixed.dims()[0] * ROOM_FOR_SCORES * blueprint.inner(),
        };
        let pads = pass.mask.pads_on(&keys.device());
        how.attend(AppendedPromptTensors { mixed, keys, values, rotation, norms, pads })
    }
}

/// Whether a pass is a step: one token of each sequence, in the first rows of the cache.
fn is_step(pass: &Pass<'_>, cache: &DeviceCache<'_>) -> bool {
    pass.width == 1 && cache.first_row == 0 && cache.stale == 0
}
