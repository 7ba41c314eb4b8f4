//! Causal attention on the processor: each thread takes heads of samples, which `surefoot_kernels::attention` computes.

use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_kernels::attention::Head;
use surefoot_kernels::dense::View;
use surefoot_kernels::math::rows_at_once;

use crate::flat;

/// Queries, keys and values in one tensor.
pub(super) struct Parts {
    mixed: FlexTensor,
    samples: usize,
    tokens: usize,
    width: usize,
    heads: usize,
}

impl Parts {
    pub(super) fn new(mixed: FlexTensor, heads: usize) -> Self {
        let mixed = flat::contiguous(mixed);
        let [samples, tokens, wide] = flat::dims(&mixed);
        Self { mixed, samples, tokens, width: wide / 3, heads }
    }

    fn each(&self) -> usize {
        self.width / self.heads
    }

    fn head(&self, at: usize) -> Head<'_> {
        let (each, wide) = (self.each(), 3 * self.width);
        let (sample, head) = (at / self.heads, at % self.heads);
        let numbers = &flat::numbers(&self.mixed)[sample * self.tokens * wide + head * each..];
        let [query, key, value] = [0, 1, 2].map(|part| &numbers[part * self.width..]);
        let scale = 1.0 / (each as f32).sqrt();
        Head { query, key, value, step: wide, tokens: self.tokens, each, scale }
    }

    /// What each token gets, `[samples, tokens, width]`, and the attention weights, `[samples, heads, tokens, tokens]`.
    pub(super) fn attend(&self) -> (FlexTensor, FlexTensor) {
        let (tokens, each) = (self.tokens, self.each());
        let count = self.samples * self.heads;
        let mut weights = vec![0.0; count * tokens * tokens];
        let mut out = vec![0.0; count * tokens * each];
        if !out.is_empty() {
            weights
                .par_chunks_mut(tokens * tokens)
                .zip(out.par_chunks_mut(tokens * each))
                .enumerate()
                .for_each(|(at, (weights, out))| self.head(at).attend(weights, out));
        }
        let weights = flat::tensor(weights, [self.samples, self.heads, tokens, tokens]);
        (self.by_token([&out]), weights)
    }

    /// The gradient by `mixed`.
    pub(super) fn gradient(&self, weights: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let (weights, gradient) = (flat::contiguous(weights), flat::contiguous(gradient));
        let (weights, gradient) = (flat::numbers(&weights), flat::numbers(&gradient));
        let (tokens, each) = (self.tokens, self.each());
        let mut parts: [Vec<f32>; 3] =
            std::array::from_fn(|_| vec![0.0; self.samples * self.heads * tokens * each]);
        if !parts[0].is_empty() {
            let [query, key, value] =
                parts.each_mut().map(|part| part.par_chunks_mut(tokens * each));
            query.zip(key).zip(value).enumerate().for_each_init(
                || vec![0.0; tokens * tokens],
                |score_gradients, (at, ((query, key), value))| {
                    let (sample, head) = (at / self.heads, at % self.heads);
                    let gradient = &gradient[sample * tokens * self.width + head * each..];
                    let weights = &weights[at * tokens * tokens..][..tokens * tokens];
                    let gradient = View::rows(gradient, self.width);
                    self.head(at).gradient(weights, gradient, score_gradients, [query, key, value]);
                },
            );
        }
        self.by_token(parts.each_ref())
    }

    /// Numbers of `[samples, heads, tokens, each]` token by token, side by side.
    fn by_token<const N: usize>(&self, numbers: [&Vec<f32>; N]) -> FlexTensor {
        let (tokens, heads, each) = (self.tokens, self.heads, self.each());
        let wide = N * self.width;
        let mut out = vec![0.0; self.samples * tokens * wide];
        let at_once = rows_at_once(wide);
        out.par_chunks_mut((at_once * wide).max(1)).enumerate().for_each(|(at, rows)| {
            for (row, out) in rows.chunks_exact_mut(wide).enumerate() {
                let place = at * at_once + row;
                let (sample, token) = (place / tokens, place % tokens);
                for (number, out) in out.chunks_exact_mut(each).enumerate() {
                    let (part, head) = (number / heads, number % heads);
                    let from = ((sample * heads + head) * tokens + token) * each;
                    out.copy_from_slice(&numbers[part][from..from + each]);
                }
            }
        });
        flat::tensor(out, [self.samples, tokens, wide])
    }
}
