//! Attention with grouped heads, masks and a cache, by plain matrix products so that it is the
//! same on every device. Plain prompts on the processor go through the kernel that serves from pages instead.
//!
//! Queries are taken in runs whose scores stay small, so a long prompt needs no memory that
//! grows with its square.

use std::cell::{OnceCell, RefCell};

use burn::tensor::{DType, Device, Tensor, TensorData, activation};
use rayon::prelude::*;
use surefoot_ops::{PAGE_TOKENS, PageLayout, PagedAttention, PromptAttention, QueryRun};

use crate::weights::format::is_host;

/// The scores of one run of queries hold at most this many numbers.
pub(crate) const MAX_SCORES: usize = 1 << 20;
/// With fewer queries, putting keys and values into pages takes longer than it saves.
const WORTH_PAGES: usize = 16;
/// Added to a score that is masked: it underflows in softmax, and a row where everything is
/// masked (padding) stays finite.
const MASKED: f32 = -1e30;

/// Who may look at whom in one pass.
pub(crate) struct AttentionMask<'a> {
    /// Positions that are in the cache already.
    pub(crate) past: usize,
    /// Positions at the start of each sequence that are padding.
    pub(crate) pads: &'a [usize],
    pub(crate) causal: bool,
    /// The segment of each position of a pass without a cache: none sees another segment.
    pub(crate) segments: Option<&'a [u32]>,
    /// The mask that was made last: blocks mostly need the same one.
    pub(crate) last: LastMask,
    /// The padding on the device, where some sequence has any.
    pub(crate) device_pads: OnceCell<Option<Tensor<1>>>,
}

/// A mask, and what it was made for: queries from where and how many, keys, window.
pub(crate) type LastMask =
    RefCell<Option<((usize, usize, usize, Option<usize>), Option<Tensor<4>>)>>;

impl AttentionMask<'_> {
    /// The padding of each sequence on the device of the pass, if any has some.
    pub(super) fn pads_on(&self, device: &Device) -> Option<&Tensor<1>> {
        let made = || {
            self.pads.iter().any(|pad| *pad > 0).then(|| {
                let pads: Vec<f32> = self.pads.iter().map(|pad| *pad as f32).collect();
                Tensor::from_data(TensorData::new(pads, [self.pads.len()]), device)
            })
        };
        self.device_pads.get_or_init(made).as_ref()
    }

    /// [`AttentionMask::made`], made anew only if the last one was another.
    fn mask(
        &self,
        from: usize,
        count: usize,
        keys: usize,
        window: Option<usize>,
        device: &Device,
    ) -> Option<Tensor<4>> {
        let which = (from, count, keys, window);
        let mut last = self.last.borrow_mut();
        if let Some((made, mask)) = &*last
            && *made == which
        {
            return mask.clone();
        }
        // The old one goes first: two at once would take more than was planned.
        *last = None;
        let mask = self.made(from, count, keys, window, device);
        *last = Some((which, mask.clone()));
        mask
    }

    /// The mask for queries `from..from + count` of the pass and all `keys`:
    /// `[batch or 1, 1, count, keys]`, or nothing if all may see all.
    fn made(
        &self,
        from: usize,
        count: usize,
        keys: usize,
        window: Option<usize>,
        device: &Device,
    ) -> Option<Tensor<4>> {
        if let Some(segments) = self.segments {
            let mask = self.of_segments(segments, from..from + count, keys, window);
            let rows = mask.len() / (count * keys);
            return Some(Tensor::from_data(TensorData::new(mask, [rows, 1, count, keys]), device));
        }
        let padded = self.pads.iter().any(|&pad| pad > 0);
        let pads = if padded { self.pads } else { &self.pads[..1] };
        let mut any = false;
        let mut mask = vec![0.0_f32; pads.len() * count * keys];
        for (row, numbers) in mask.chunks_exact_mut(keys).enumerate() {
            let pad = pads[row / count].min(keys);
            let query = self.past + from + row % count;
            numbers[..pad].fill(MASKED);
            any |= pad > 0;
            if self.causal && query + 1 < keys {
                numbers[query + 1..].fill(MASKED);
                any = true;
            }
            if let Some(window) = window
                && query >= window
            {
                numbers[..(query + 1 - window).min(keys)].fill(MASKED);
                any = true;
            }
            // Where a position sees what follows it, the window reaches as far ahead.
            if let Some(window) = window
                && !self.causal
                && query + window < keys
            {
                numbers[query + window..].fill(MASKED);
                any = true;
            }
        }
        any.then(|| Tensor::from_data(TensorData::new(mask, [pads.len(), 1, count, keys]), device))
    }

    /// The mask of `queries` and the first `keys` positions of rows in segments; one for all rows if they
    /// are divided in the same way.
    fn of_segments(
        &self,
        segments: &[u32],
        queries: std::ops::Range<usize>,
        keys: usize,
        window: Option<usize>,
    ) -> Vec<f32> {
        let width = segments.len() / self.pads.len().max(1);
        let mut rows = segments.chunks_exact(width.max(1));
        let first = rows.next().unwrap_or_default();
        let all = if rows.all(|row| row == first) { first } else { segments };
        let mut mask = Vec::with_capacity(all.len() / width.max(1) * queries.len() * keys);
        for row in all.chunks_exact(width.max(1)) {
            for query in queries.clone() {
                mask.extend((0..keys).map(|key| {
                    let far = window.is_some_and(|window| key.abs_diff(query) >= window);
                    let seen = row[key] == row[query] && !(self.causal && key > query) && !far;
                    if seen { 0.0 } else { MASKED }
                }));
            }
        }
        mask
    }
}

/// How scores are made of queries and keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scores {
    /// What their products are multiplied with.
    pub(crate) scale: f64,
    /// No score gets beyond it: `cap · tanh(score / cap)`.
    pub(crate) cap: Option<f64>,
    /// How far a position may look.
    pub(crate) window: Option<usize>,
}

/// Attends from `q` `[batch, heads, width, dim]` to `k` and `v` `[batch, kv_heads, keys, dim]`.
pub(crate) fn attend(
    q: Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    scores: Scores,
    mask: &AttentionMask<'_>,
) -> Tensor<4> {
    let [batch, heads, width, _] = q.dims();
    let keys = k.dims()[2];
    // A token that is decoded mostly sees all keys.
    if width <= surefoot_ops::MOST_QUERIES
        && scores.cap.is_none()
        && mask.mask(0, width, keys, scores.window, &q.device()).is_none()
        && (!mask.causal || mask.past + width >= keys)
        && let Some(seen) = surefoot_ops::attend_to_all(&q, k, v, scores.scale)
    {
        return seen;
    }
    if let Some(seen) = attend_on_device(&q, k, v, scores, mask) {
        return seen;
    }
    if let Some(seen) = attend_in_pages(&q, k, v, scores, mask) {
        return seen;
    }
    let q = q * scores.scale;
    let run = (MAX_SCORES / (batch * heads * keys).max(1)).clamp(1, width);
    if run == width {
        return attend_run(q, k, v, 0, scores, mask);
    }
    let runs = (0..width)
        .step_by(run)
        .map(|from| {
            let count = run.min(width - from);
            attend_run(q.clone().narrow(2, from, count), k, v, from, scores, mask)
        })
        .collect();
    Tensor::cat(runs, 2)
}

/// Queries of any number on a GPU, by a kernel that needs no scores in memory. None where there is none for them.
fn attend_on_device(
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    scores: Scores,
    mask: &AttentionMask<'_>,
) -> Option<Tensor<4>> {
    if scores.cap.is_some() || mask.segments.is_some() || is_host(&q.device()) || q.is_autodiff() {
        return None;
    }
    let pads = mask.pads_on(&q.device());
    let how = PromptAttention {
        scale: scores.scale,
        past: mask.past,
        causal: mask.causal,
        window: scores.window,
    };
    how.attend(q, k, v, pads)
}

/// Prompts on the processor: keys and values are put into the pages of the kernel that serves from them, which needs no scores in
/// memory. None where that kernel can't do it, or is not worth it.
fn attend_in_pages(
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    scores: Scores,
    mask: &AttentionMask<'_>,
) -> Option<Tensor<4>> {
    let [batch, heads, width, dim] = q.dims();
    let [_, kv_heads, keys, _] = k.dims();
    // Devices with and without autodiff are equal, and gradients can't flow through pages.
    let is_plain = [q, k, v].iter().all(|tensor| {
        tensor.device() == Device::flex() && tensor.dtype() == DType::F32 && !tensor.is_autodiff()
    });
    let follows = mask.causal && mask.segments.is_none() && mask.past + width == keys;
    if !is_plain || !follows || width < WORTH_PAGES || mask.pads.iter().any(|pad| *pad > 0) {
        return None;
    }
    let numbers = |tensor: Tensor<4>| tensor.into_data().try_into_vec::<f32>().ok();
    let queries = numbers(q.clone().swap_dims(0, 1))?;
    let (k, v) = (numbers(k.clone())?, numbers(v.clone())?);
    let layout = PageLayout { layers: 1, kv_heads, head_dim: dim };
    let of_sequence = keys.div_ceil(PAGE_TOKENS);
    let pages: Vec<Vec<f32>> = (0..batch * of_sequence)
        .into_par_iter()
        .map(|number| {
            let (sequence, first) = (number / of_sequence, number % of_sequence * PAGE_TOKENS);
            let mut page = vec![0.0; layout.numbers()];
            for token in first..keys.min(first + PAGE_TOKENS) {
                for head in 0..kv_heads {
                    let from = ((sequence * kv_heads + head) * keys + token) * dim;
                    let of = from..from + dim;
                    layout.write(&mut page, 0, head, token - first, &k[of.clone()], &v[of]);
                }
            }
            page
        })
        .collect();
    let runs: Vec<QueryRun<'_>> = (0..batch)
        .map(|sequence| QueryRun {
            rows: sequence * width..(sequence + 1) * width,
            start: mask.past,
            pages: pages[sequence * of_sequence..(sequence + 1) * of_sequence]
                .iter()
                .map(Vec::as_slice)
                .collect(),
        })
        .collect();
    let attention = PagedAttention {
        layout,
        layer: 0,
        heads,
        scale: scores.scale as f32,
        cap: scores.cap.map(|cap| cap as f32),
        window: scores.window,
    };
    let seen = TensorData::new(attention.attend(&queries, &runs), [batch, width, heads, dim]);
    Some(Tensor::<4>::from_data(seen, &Device::flex()).swap_dims(1, 2))
}

fn attend_run(
    q: Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    from: usize,
    how: Scores,
    mask: &AttentionMask<'_>,
) -> Tensor<4> {
    let [batch, heads, count, dim] = q.dims();
    let [_, kv_heads, keys, _] = k.dims();
    let group = heads / kv_heads;
    // Later keys are masked anyway.
    let seen = if mask.causal { (mask.past + from + count).min(keys) } else { keys };
    let k = k.clone().narrow(2, 0, seen);
    let v = v.clone().narrow(2, 0, seen);
    let mask = mask.mask(from, count, seen, how.window, &q.device());
    let q = q.reshape([batch, kv_heads, group * count, dim]);
    // keys × queriesᵀ: the large operand on the left in its own order is the fast way round.
    let scores = surefoot_ops::matmul(k, q.swap_dims(2, 3)).swap_dims(2, 3);
    let mut scores = scores.reshape([batch, heads, count, seen]);
    if let Some(cap) = how.cap {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(mask) = mask {
        scores = scores + mask;
    }
    let weights = activation::softmax(scores, 3);
    let weights = weights.reshape([batch, kv_heads, group * count, seen]);
    surefoot_ops::matmul(weights, v).reshape([batch, heads, count, dim])
}
