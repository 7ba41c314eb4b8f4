//! Causal attention on the processor: a task takes a head of a sample, and some queries of it at a time.
//!
//! Scale, mask and softmax are one pass over scores that are still in the cache. Keys that come after all
//! of those queries are left out of the products, which saves nearly half of them, forward and backward.

use burn_flex::FlexTensor;
use pulp::Arch;
use rayon::prelude::*;

use crate::dense::{Panels, Part, Rows, View};
use crate::flat;
use crate::math::{exp, fast, rows_at_once, sums};
use crate::processor::arch;

/// Queries, or keys, that are worked on at once: a multiple of the rows of every tile.
const AT_ONCE: usize = 48;

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
        Head { arch: arch(), query, key, value, step: wide, tokens: self.tokens, each, scale }
    }

    /// What each token gets, `[samples, tokens, width]`, and how much each takes from each other,
    /// `[samples, heads, tokens, tokens]`.
    pub(super) fn attend(&self) -> (FlexTensor, FlexTensor) {
        let (tokens, each) = (self.tokens, self.each());
        let count = self.samples * self.heads;
        let mut shares = vec![0.0; count * tokens * tokens];
        let mut out = vec![0.0; count * tokens * each];
        if !out.is_empty() {
            shares
                .par_chunks_mut(tokens * tokens)
                .zip(out.par_chunks_mut(tokens * each))
                .enumerate()
                .for_each(|(at, (shares, out))| self.head(at).attend(shares, out));
        }
        let shares = flat::tensor(shares, [self.samples, self.heads, tokens, tokens]);
        (self.by_token([&out]), shares)
    }

    /// The gradient by `mixed`.
    pub(super) fn gradient(&self, shares: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let (shares, gradient) = (flat::contiguous(shares), flat::contiguous(gradient));
        let (shares, gradient) = (flat::numbers(&shares), flat::numbers(&gradient));
        let (tokens, each) = (self.tokens, self.each());
        let mut parts: [Vec<f32>; 3] =
            std::array::from_fn(|_| vec![0.0; self.samples * self.heads * tokens * each]);
        if !parts[0].is_empty() {
            let [query, key, value] =
                parts.each_mut().map(|part| part.par_chunks_mut(tokens * each));
            query.zip(key).zip(value).enumerate().for_each_init(
                || vec![0.0; tokens * tokens],
                |slopes, (at, ((query, key), value))| {
                    let (sample, head) = (at / self.heads, at % self.heads);
                    let gradient = &gradient[sample * tokens * self.width + head * each..];
                    let shares = &shares[at * tokens * tokens..][..tokens * tokens];
                    let gradient = View::rows(gradient, self.width);
                    self.head(at).gradient(shares, gradient, slopes, [query, key, value]);
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

/// A head of a sample; its queries, keys and values are `step` numbers apart.
struct Head<'a> {
    arch: Arch,
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    step: usize,
    tokens: usize,
    each: usize,
    scale: f32,
}

impl Head<'_> {
    fn packed(&self, b: View<'_>, depth: usize, columns: usize) -> Panels {
        let mut panels = Panels::take();
        panels.pack(self.arch, b, depth, 0..columns, false);
        panels
    }

    /// Parts of the tokens: the first of each, and how many.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let tokens = self.tokens;
        (0..tokens).step_by(AT_ONCE).map(move |first| (first, AT_ONCE.min(tokens - first)))
    }

    fn attend(&self, shares: &mut [f32], out: &mut [f32]) {
        let Self { arch, tokens, each, scale, .. } = *self;
        let keys = self.packed(View::columns(self.key, self.step), each, tokens);
        let values = self.packed(View::rows(self.value, self.step), tokens, each);
        for (first, rows) in self.parts() {
            let seen = first + rows;
            let shares = &mut shares[first * tokens..][..rows * tokens];
            let part = Part { a: View::rows(self.query, self.step), first, rows };
            let scores =
                Rows { part, panels: &keys, step: tokens, column: 0, add: false, out: shares };
            scores.fill_part(arch, 0..each, seen);
            fast(
                #[inline(always)]
                || {
                    for (row, scores) in shares.chunks_exact_mut(tokens).enumerate() {
                        let (own, unseen) = scores[..seen].split_at_mut(first + row + 1);
                        soften(own, scale);
                        unseen.fill(0.0);
                    }
                },
            );
            let part = Part { a: View::rows(shares, tokens), first: 0, rows };
            let out = &mut out[first * each..][..rows * each];
            let out = Rows { part, panels: &values, step: each, column: 0, add: false, out };
            out.fill_part(arch, 0..seen, each);
        }
        keys.give_back();
        values.give_back();
    }

    /// The gradients by queries, keys and values. `slopes` is room for those by the scores; what is in it does not matter.
    fn gradient(
        &self,
        shares: &[f32],
        gradient: View<'_>,
        slopes: &mut [f32],
        [query, key, value]: [&mut [f32]; 3],
    ) {
        let Self { arch, tokens, each, scale, step, .. } = *self;
        let gradients = self.packed(gradient, tokens, each);
        let queries = self.packed(View::rows(self.query, step), tokens, each);
        let keys = self.packed(View::rows(self.key, step), tokens, each);
        let values = self.packed(View::columns(self.value, step), each, tokens);
        for (first, rows) in self.parts() {
            let seen = first + rows;
            let slopes = &mut slopes[first * tokens..][..rows * tokens];
            let part = Part { a: gradient, first, rows };
            let out =
                Rows { part, panels: &values, step: tokens, column: 0, add: false, out: slopes };
            out.fill_part(arch, 0..each, seen);
            let shares = &shares[first * tokens..][..rows * tokens];
            fast(
                #[inline(always)]
                || {
                    let rows = slopes.chunks_exact_mut(tokens).zip(shares.chunks_exact(tokens));
                    for (slopes, shares) in rows {
                        // A share of 0 stays one: what was not seen gets no gradient.
                        let (slopes, shares) = (&mut slopes[..seen], &shares[..seen]);
                        let [mean] = sums([&*slopes, shares], |[slope, share]| [slope * share]);
                        slopes.iter_mut().zip(shares).for_each(|(slope, share)| {
                            *slope = share * (*slope - mean) * scale;
                        });
                    }
                },
            );
            let part = Part { a: View::rows(slopes, tokens), first: 0, rows };
            let out = &mut query[first * each..][..rows * each];
            let out = Rows { part, panels: &keys, step: each, column: 0, add: false, out };
            out.fill_part(arch, 0..seen, each);
        }
        // Earlier queries saw nothing of these keys.
        for (from, panels, to) in [(&*slopes, &queries, key), (shares, &gradients, value)] {
            for (first, rows) in self.parts() {
                let part = Part { a: View::columns(from, tokens), first, rows };
                let out = &mut to[first * each..][..rows * each];
                let out = Rows { part, panels, step: each, column: 0, add: false, out };
                out.fill_part(arch, first..tokens, each);
            }
        }
        [gradients, queries, keys, values].into_iter().for_each(Panels::give_back);
    }
}

/// The softmax of scores times `scale`, in their place.
#[inline(always)]
pub(crate) fn soften(scores: &mut [f32], scale: f32) {
    let mut most = [f32::NEG_INFINITY; 16];
    let (whole, rest) = scores.as_chunks::<16>();
    for scores in whole {
        for (most, score) in most.iter_mut().zip(scores) {
            *most = most.max(*score);
        }
    }
    for (most, score) in most.iter_mut().zip(rest) {
        *most = most.max(*score);
    }
    let most = most.iter().fold(f32::NEG_INFINITY, |most, score| most.max(*score));
    for score in scores.iter_mut() {
        *score = exp((*score - most) * scale);
    }
    let [sum] = sums([scores], |[power]| [power]);
    let inverse = 1.0 / sum;
    scores.iter_mut().for_each(|power| *power *= inverse);
}
