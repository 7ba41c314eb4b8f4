//! Causal attention: a head of a sample, some queries of it at a time.
//!
//! Scale, mask and softmax are one pass over scores that are still in the cache. Keys that come after all
//! of those queries are left out of the products, which saves nearly half of them, forward and backward. A head is computed on one core,
//! so threads change nothing; callers give each thread heads, and know that there are vectors
//! ([`has_vectors`](crate::processor::has_vectors)).

use crate::dense::{Panels, Part, Rows, View};
use crate::math::{exp, fast, sums};
use crate::processor::arch;

/// Queries, or keys, that are worked on at once: a multiple of the rows of every tile.
const AT_ONCE: usize = 48;

/// A head of a sample; its queries, keys and values are `step` numbers apart.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The query of each token.
    pub query: &'a [f32],
    /// The key of each token.
    pub key: &'a [f32],
    /// The value of each token.
    pub value: &'a [f32],
    /// Numbers from one token to the next.
    pub step: usize,
    /// How many tokens there are.
    pub tokens: usize,
    /// Numbers of a query, a key or a value.
    pub each: usize,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
}

impl Head<'_> {
    fn packed(&self, b: View<'_>, depth: usize, columns: usize) -> Panels {
        let mut panels = Panels::take();
        panels.pack(arch(), b, depth, 0..columns, false);
        panels
    }

    /// Parts of the tokens: the first of each, and how many.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let tokens = self.tokens;
        (0..tokens).step_by(AT_ONCE).map(move |first| (first, AT_ONCE.min(tokens - first)))
    }

    /// Fills what each token gets, `[tokens, each]`, and the attention weights, `[tokens, tokens]`, which must be zeros before: not all that no
    /// token sees is written.
    pub fn attend(&self, weights: &mut [f32], out: &mut [f32]) {
        let (Self { tokens, each, scale, .. }, arch) = (*self, arch());
        let keys = self.packed(View::columns(self.key, self.step), each, tokens);
        let values = self.packed(View::rows(self.value, self.step), tokens, each);
        for (first, rows) in self.parts() {
            let seen = first + rows;
            let weights = &mut weights[first * tokens..][..rows * tokens];
            let part = Part { a: View::rows(self.query, self.step), first, rows };
            let scores =
                Rows { part, panels: &keys, step: tokens, column: 0, add: false, out: weights };
            scores.fill_part(arch, 0..each, seen);
            fast(
                #[inline(always)]
                || {
                    for (row, scores) in weights.chunks_exact_mut(tokens).enumerate() {
                        let (own, unseen) = scores[..seen].split_at_mut(first + row + 1);
                        softmax_scaled(own, scale);
                        unseen.fill(0.0);
                    }
                },
            );
            let part = Part { a: View::rows(weights, tokens), first: 0, rows };
            let out = &mut out[first * each..][..rows * each];
            let out = Rows { part, panels: &values, step: each, column: 0, add: false, out };
            out.fill_part(arch, 0..seen, each);
        }
        keys.give_back();
        values.give_back();
    }

    /// The gradients by queries, keys and values. `score_gradients` is room for those by the scores; what is in it does not matter.
    pub fn gradient(
        &self,
        weights: &[f32],
        gradient: View<'_>,
        score_gradients: &mut [f32],
        [query, key, value]: [&mut [f32]; 3],
    ) {
        let (Self { tokens, each, scale, step, .. }, arch) = (*self, arch());
        let gradients = self.packed(gradient, tokens, each);
        let queries = self.packed(View::rows(self.query, step), tokens, each);
        let keys = self.packed(View::rows(self.key, step), tokens, each);
        let values = self.packed(View::columns(self.value, step), each, tokens);
        for (first, rows) in self.parts() {
            let seen = first + rows;
            let score_gradients = &mut score_gradients[first * tokens..][..rows * tokens];
            let part = Part { a: gradient, first, rows };
            let out = Rows {
                part,
                panels: &values,
                step: tokens,
                column: 0,
                add: false,
                out: score_gradients,
            };
            out.fill_part(arch, 0..each, seen);
            let weights = &weights[first * tokens..][..rows * tokens];
            fast(
                #[inline(always)]
                || {
                    let rows =
                        score_gradients.chunks_exact_mut(tokens).zip(weights.chunks_exact(tokens));
                    for (score_gradients, weights) in rows {
                        // A weight of 0 stays one: what was not seen gets no gradient.
                        let (score_gradients, weights) =
                            (&mut score_gradients[..seen], &weights[..seen]);
                        let [mean] = sums([&*score_gradients, weights], |[gradient, weight]| {
                            [gradient * weight]
                        });
                        score_gradients.iter_mut().zip(weights).for_each(|(gradient, weight)| {
                            *gradient = weight * (*gradient - mean) * scale;
                        });
                    }
                },
            );
            let part = Part { a: View::rows(score_gradients, tokens), first: 0, rows };
            let out = &mut query[first * each..][..rows * each];
            let out = Rows { part, panels: &keys, step: each, column: 0, add: false, out };
            out.fill_part(arch, 0..seen, each);
        }
        // Earlier queries saw nothing of these keys.
        for (from, panels, to) in [(&*score_gradients, &queries, key), (weights, &gradients, value)]
        {
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
pub(crate) fn softmax_scaled(scores: &mut [f32], scale: f32) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The attention weights, what each token gets, and the gradients by queries, keys and values, term by term in f64.
    fn right(parts: [&[f32]; 3], gradient: &[f32], each: usize, scale: f32) -> [Vec<f64>; 5] {
        let tokens = parts[0].len() / each;
        let wide = |numbers: &[f32]| numbers.iter().map(|at| f64::from(*at)).collect::<Vec<_>>();
        let ([query, key, value], gradient) = (parts.map(wide), wide(gradient));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let at = |token: usize| token * each..(token + 1) * each;
        let scale = f64::from(scale);
        let mut weights = vec![0.0; tokens * tokens];
        let mut found = [0; 4].map(|_| vec![0.0; tokens * each]);
        for token in 0..tokens {
            let own = &mut weights[token * tokens..][..=token];
            for (other, weight) in own.iter_mut().enumerate() {
                *weight = (dot(&query[at(token)], &key[at(other)]) * scale).exp();
            }
            let sum: f64 = own.iter().sum();
            own.iter_mut().for_each(|weight| *weight /= sum);
            let by_weight: Vec<f64> =
                (0..=token).map(|other| dot(&gradient[at(token)], &value[at(other)])).collect();
            let mean = dot(own, &by_weight);
            for other in 0..=token {
                let by_score = own[other] * (by_weight[other] - mean) * scale;
                for place in 0..each {
                    let (mine, theirs) = (token * each + place, other * each + place);
                    found[0][mine] += own[other] * value[theirs];
                    found[1][mine] += by_score * key[theirs];
                    found[2][theirs] += by_score * query[mine];
                    found[3][theirs] += own[other] * gradient[mine];
                }
            }
        }
        let [out, of_query, of_key, of_value] = found;
        [weights, out, of_query, of_key, of_value]
    }

    fn check(tokens: usize, each: usize, seed: u64) -> Result<(), TestCaseError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let step = 3 * each + 1;
        let mixed: Vec<f32> = (0..tokens * step).map(|_| 3.0 * random.f32() - 1.5).collect();
        let gradient: Vec<f32> = (0..tokens * each).map(|_| 2.0 * random.f32() - 1.0).collect();
        let [query, key, value] = [0, 1, 2].map(|part| &mixed[part * each..]);
        let scale = 0.4;
        let head = Head { query, key, value, step, tokens, each, scale };
        let (mut weights, mut out) = (vec![0.0; tokens * tokens], vec![7.0; tokens * each]);
        head.attend(&mut weights, &mut out);
        // What is there before must not matter.
        let mut score_gradients = vec![7.0; tokens * tokens];
        let mut found = [0; 3].map(|_| vec![7.0; tokens * each]);
        let to = found.each_mut().map(Vec::as_mut_slice);
        head.gradient(&weights, View::rows(&gradient, each), &mut score_gradients, to);
        let dense = [query, key, value].map(|part| {
            part.chunks(step).flat_map(|numbers| &numbers[..each]).copied().collect::<Vec<_>>()
        });
        let right = right(dense.each_ref().map(Vec::as_slice), &gradient, each, scale);
        let [of_query, of_key, of_value] = &found;
        for (nth, (is, right)) in
            [&weights, &out, of_query, of_key, of_value].into_iter().zip(&right).enumerate()
        {
            // What goes in is about 1 in size, so a sum that cancels to less is off by as much as one that doesn't.
            let size = right.iter().fold(1.0_f64, |size, number| size.max(number.abs()));
            for (is, right) in is.iter().zip(right) {
                let off = (f64::from(*is) - right).abs() / size;
                prop_assert!(off < 1e-5, "{tokens} × {each}, {nth}: {is}, not {right}");
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_head_gets_what_the_formula_says(
            // Fewer and more than are worked on at once.
            tokens in 1usize..110,
            each in 1usize..20,
            seed in any::<u64>(),
        ) {
            check(tokens, each, seed)?;
        }
    }

    #[test]
    fn more_tokens_than_a_block_of_the_depth_are_right() {
        check(300, 16, 1).unwrap();
    }
}
