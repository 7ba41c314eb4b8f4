//! Causal attention on Cube devices: the products are Burn's; bringing heads together, scale, mask and softmax are one launch each.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty, row_cubes};
use super::reduce::{maximum_of_units, sum_of_units};

/// Below every score. WGSL has no literal for minus infinity.
const LOWEST: f32 = -3.4e38;

/// From `[samples, tokens, parts, heads, each]` to `[parts, samples, heads, tokens, each]`.
#[cube(launch)]
fn by_head(mixed: &[f32], out: &mut [f32], samples: u32, tokens: u32, heads: u32, each: u32) {
    let (samples, tokens) = (samples as usize, tokens as usize);
    let (heads, each) = (heads as usize, each as usize);
    if ABSOLUTE_POS < out.len() {
        let number = ABSOLUTE_POS % each;
        let token = ABSOLUTE_POS / each % tokens;
        let head = ABSOLUTE_POS / (each * tokens) % heads;
        let sample = ABSOLUTE_POS / (each * tokens * heads) % samples;
        let part = ABSOLUTE_POS / (each * tokens * heads * samples);
        let parts = out.len() / (each * tokens * heads * samples);
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

/// The softmax of each row of scores times `scale`, over what the row's token may see; 0 for the rest.
#[cube(launch)]
fn soften(
    scores: &[f32],
    shares: &mut [f32],
    rows: u32,
    tokens: u32,
    scale: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    let tokens = tokens as usize;
    if row >= rows as usize {
        terminate!();
    }
    let first = row * tokens;
    let seen = row % tokens + 1;
    let mut most = f32::new(LOWEST);
    let mut at = UNIT_POS as usize;
    while at < seen {
        let score = scores[first + at];
        if score > most {
            most = score;
        }
        at += units;
    }
    let most = maximum_of_units(most, units);
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < seen {
        sum += ((scores[first + at] - most) * scale).exp();
        at += units;
    }
    let inverse = 1.0f32 / sum_of_units(sum, units);
    let mut at = UNIT_POS as usize;
    while at < tokens {
        let mut share = 0.0f32;
        if at < seen {
            share = ((scores[first + at] - most) * scale).exp() * inverse;
        }
        shares[first + at] = share;
        at += units;
    }
}

/// The gradient by the scores, given the one by the shares.
#[cube(launch)]
fn soften_gradient(
    shares: &[f32],
    of_shares: &[f32],
    of_scores: &mut [f32],
    rows: u32,
    tokens: u32,
    scale: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    let tokens = tokens as usize;
    if row >= rows as usize {
        terminate!();
    }
    let first = row * tokens;
    let seen = row % tokens + 1;
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < seen {
        sum += shares[first + at] * of_shares[first + at];
        at += units;
    }
    let mean = sum_of_units(sum, units);
    let mut at = UNIT_POS as usize;
    while at < tokens {
        let mut slope = 0.0f32;
        if at < seen {
            slope = shares[first + at] * (of_shares[first + at] - mean) * scale;
        }
        of_scores[first + at] = slope;
        at += units;
    }
}

/// The sizes of one attention.
#[derive(Clone, Copy)]
struct Sizes {
    samples: usize,
    tokens: usize,
    heads: usize,
    each: usize,
}

impl Sizes {
    /// Of `[samples, tokens, 3 · heads · each]`.
    fn of(mixed: &CubeTensor, heads: usize) -> Self {
        let shape = mixed.meta.shape();
        Self { samples: shape[0], tokens: shape[1], heads, each: shape[2] / 3 / heads }
    }

    fn scale(self) -> f32 {
        1.0 / (self.each as f32).sqrt()
    }

    fn rows(self) -> usize {
        self.samples * self.heads * self.tokens
    }

    /// Parts that lie side by side, token by token, as tensors of `[samples, heads, tokens, each]` one after another.
    fn split(self, mixed: CubeTensor, parts: usize) -> CubeTensor {
        let Self { samples, tokens, heads, each } = self;
        let mixed = into_contiguous(mixed);
        let out = empty(&mixed, Shape::new([parts * samples, heads, tokens, each]));
        let client = mixed.client.clone();
        let (count, dim) = elements(&client, out.meta.num_elements());
        by_head::launch(
            &client,
            count,
            dim,
            mixed.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            samples as u32,
            tokens as u32,
            heads as u32,
            each as u32,
        );
        out
    }

    /// One of the parts.
    fn part(self, split: &CubeTensor, at: usize) -> CubeTensor {
        let rows = at * self.samples..(at + 1) * self.samples;
        let rest = [0..self.heads, 0..self.tokens, 0..self.each];
        let [heads, tokens, each] = rest;
        burn_cubecl::kernel::slice(split.clone(), &[rows, heads, tokens, each])
    }

    fn shares(self, query: CubeTensor, key: CubeTensor) -> CubeTensor {
        let scores = into_contiguous(product(query, turned(key)));
        let shares = empty(&scores, scores.meta.shape().clone());
        let client = scores.client.clone();
        let (count, dim, units) = row_cubes(&client, self.rows(), self.tokens);
        soften::launch(
            &client,
            count,
            dim,
            scores.into_buffer_arg(),
            shares.clone().into_buffer_arg(),
            self.rows() as u32,
            self.tokens as u32,
            self.scale(),
            units,
        );
        shares
    }
}

fn product(left: CubeTensor, right: CubeTensor) -> CubeTensor {
    <CubeBackend as FloatTensorOps<CubeBackend>>::float_matmul(left, right)
}

fn turned(tensor: CubeTensor) -> CubeTensor {
    <CubeBackend as FloatTensorOps<CubeBackend>>::float_swap_dims(tensor, 2, 3)
}

/// How much each token takes from each other: `[samples, heads, tokens, tokens]`.
pub(super) fn shares(mixed: CubeTensor, heads: usize) -> CubeTensor {
    let sizes = Sizes::of(&mixed, heads);
    let split = sizes.split(mixed, 3);
    sizes.shares(sizes.part(&split, 0), sizes.part(&split, 1))
}

/// What each token gets, and how much of each other token that is.
pub(super) fn forward(mixed: CubeTensor, heads: usize) -> (CubeTensor, CubeTensor) {
    let sizes = Sizes::of(&mixed, heads);
    let Sizes { samples, tokens, heads, each } = sizes;
    let split = sizes.split(mixed, 3);
    let shares = sizes.shares(sizes.part(&split, 0), sizes.part(&split, 1));
    let gathered = into_contiguous(product(shares.clone(), sizes.part(&split, 2)));
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
    (out, shares)
}

/// The gradient by `mixed`.
pub(super) fn backward(
    mixed: CubeTensor,
    shares: CubeTensor,
    gradient: CubeTensor,
    heads: usize,
) -> CubeTensor {
    let sizes = Sizes::of(&mixed, heads);
    let Sizes { samples, tokens, heads, each } = sizes;
    let split = sizes.split(mixed, 3);
    let [query, key, value] = [0, 1, 2].map(|at| sizes.part(&split, at));
    let gradient = sizes.split(gradient, 1);
    let shares = into_contiguous(shares);
    let of_value = into_contiguous(product(turned(shares.clone()), gradient.clone()));
    let of_shares = into_contiguous(product(gradient, turned(value)));
    let of_scores = empty(&of_shares, of_shares.meta.shape().clone());
    let client = of_shares.client.clone();
    let (count, dim, units) = row_cubes(&client, sizes.rows(), tokens);
    soften_gradient::launch(
        &client,
        count,
        dim,
        shares.into_buffer_arg(),
        of_shares.into_buffer_arg(),
        of_scores.clone().into_buffer_arg(),
        sizes.rows() as u32,
        tokens as u32,
        sizes.scale(),
        units,
    );
    let of_query = into_contiguous(product(of_scores.clone(), key));
    let of_key = into_contiguous(product(turned(of_scores), query));
    let out = empty(&of_query, Shape::new([samples, tokens, 3 * heads * each]));
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
