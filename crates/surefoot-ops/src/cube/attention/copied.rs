//! Attention by copies of the heads, for sizes that [`super::in_place`] doesn't take: bringing heads together and apart are one
//! launch each.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Sizes, softmax};
use crate::cube::launch::{elements, empty, turned};
use crate::cube::product::product;

/// From `[samples, tokens, parts, heads, each]` to `[parts, samples, heads, tokens, each]`.
#[cube(launch)]
fn by_head(
    mixed: &[f32],
    out: &mut [f32],
    parts: u32,
    samples: u32,
    tokens: u32,
    heads: u32,
    each: u32,
) {
    let (samples, tokens) = (samples as usize, tokens as usize);
    let (heads, each) = (heads as usize, each as usize);
    if ABSOLUTE_POS < out.len() {
        let number = ABSOLUTE_POS % each;
        let token = ABSOLUTE_POS / each % tokens;
        let head = ABSOLUTE_POS / (each * tokens) % heads;
        let sample = ABSOLUTE_POS / (each * tokens * heads) % samples;
        let part = ABSOLUTE_POS / (each * tokens * heads * samples);
        let parts = parts as usize;
        let from = (((sample * tokens + token) * parts + part) * heads + head) * each + number;
        out[ABSOLUTE_POS] = mixed[from];
    }
}

/// From `[samples, heads, tokens, each]` to `[samples, tokens, heads, each]`.
#[cube(launch)]
fn by_token(x: &[f32], out: &mut [f32], tokens: u32, heads: u32, each: u32) {
    let (tokens, heads, each) = (tokens as usize, heads as usize, each as usize);
    if ABSOLUTE_POS < out.len() {
        let number = ABSOLUTE_POS % each;
        let head = ABSOLUTE_POS / each % heads;
        let token = ABSOLUTE_POS / (each * heads) % tokens;
        let sample = ABSOLUTE_POS / (each * heads * tokens);
        out[ABSOLUTE_POS] = x[((sample * heads + head) * tokens + token) * each + number];
    }
}

/// Three tensors of `[samples, heads, tokens, each]` side by side, token by token.
#[cube(launch)]
fn three_by_token(
    query: &[f32],
    key: &[f32],
    value: &[f32],
    out: &mut [f32],
    tokens: u32,
    heads: u32,
    each: u32,
) {
    let (tokens, heads, each) = (tokens as usize, heads as usize, each as usize);
    if ABSOLUTE_POS < out.len() {
        let number = ABSOLUTE_POS % each;
        let head = ABSOLUTE_POS / each % heads;
        let part = ABSOLUTE_POS / (each * heads) % 3;
        let token = ABSOLUTE_POS / (each * heads * 3) % tokens;
        let sample = ABSOLUTE_POS / (each * heads * 3 * tokens);
        let from = ((sample * heads + head) * tokens + token) * each + number;
        let mut found = value[from];
        if part == 0 {
            found = query[from];
        } else if part == 1 {
            found = key[from];
        }
        out[ABSOLUTE_POS] = found;
    }
}

/// Parts that lie side by side, token by token, as tensors of `[samples, heads, tokens, each]` one after another.
fn split(sizes: Sizes, mixed: CubeTensor, parts: usize) -> CubeTensor {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let out = empty(&mixed, Shape::new([parts * samples, heads, tokens, each]));
    let client = mixed.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    by_head::launch(
        &client,
        count,
        dim,
        mixed.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        parts as u32,
        samples as u32,
        tokens as u32,
        heads as u32,
        each as u32,
    );
    out
}

/// One of the parts.
fn part(sizes: Sizes, split: &CubeTensor, at: usize) -> CubeTensor {
    let rows = at * sizes.samples..(at + 1) * sizes.samples;
    burn_cubecl::kernel::slice(
        split.clone(),
        &[rows, 0..sizes.heads, 0..sizes.tokens, 0..sizes.each],
    )
}

/// See [`super::shares`].
pub(super) fn shares(sizes: Sizes, mixed: CubeTensor) -> CubeTensor {
    let split = split(sizes, mixed, 3);
    let [query, key] = [0, 1].map(|at| part(sizes, &split, at));
    softmax::forward(into_contiguous(product(query, turned(key))), sizes)
}

/// What each token gets, given the shares.
pub(super) fn gathered(sizes: Sizes, mixed: CubeTensor, shares: CubeTensor) -> CubeTensor {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let value = part(sizes, &split(sizes, mixed, 3), 2);
    let gathered = into_contiguous(product(shares, value));
    let out = empty(&gathered, Shape::new([samples, tokens, heads * each]));
    let client = gathered.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    by_token::launch(
        &client,
        count,
        dim,
        gathered.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        tokens as u32,
        heads as u32,
        each as u32,
    );
    out
}

/// See [`super::backward`].
pub(super) fn backward(
    sizes: Sizes,
    mixed: CubeTensor,
    shares: CubeTensor,
    gradient: CubeTensor,
) -> CubeTensor {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let parts = split(sizes, mixed, 3);
    let [query, key, value] = [0, 1, 2].map(|at| part(sizes, &parts, at));
    let gradient = split(sizes, gradient, 1);
    let of_value = into_contiguous(product(turned(shares.clone()), gradient.clone()));
    let of_shares = into_contiguous(product(gradient, turned(value)));
    let of_scores = softmax::backward(shares, of_shares, sizes);
    let of_query = into_contiguous(product(of_scores.clone(), key));
    let of_key = into_contiguous(product(turned(of_scores), query));
    let out = empty(&of_query, Shape::new([samples, tokens, 3 * heads * each]));
    let client = out.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    three_by_token::launch(
        &client,
        count,
        dim,
        of_query.into_buffer_arg(),
        of_key.into_buffer_arg(),
        of_value.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        tokens as u32,
        heads as u32,
        each as u32,
    );
    out
}
