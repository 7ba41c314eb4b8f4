//! The softmax of causal attention on Cube devices, with scale and mask: a cube for each row of scores.

use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Sizes;
use crate::cube::launch::{empty, row_cubes};
use crate::cube::reduce::sum_of_units;
use crate::cube::rows::{maximum_of_row, powers_of_row};

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
    let most = maximum_of_row(scores, first, seen, units);
    let inverse = 1.0f32 / powers_of_row(scores, first, seen, most, scale, units);
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

/// How much each token takes from each other, given the scores.
pub(super) fn forward(scores: CubeTensor, sizes: Sizes) -> CubeTensor {
    let shares = empty(&scores, scores.meta.shape().clone());
    let client = scores.client.clone();
    let (count, dim, units) = row_cubes(&client, sizes.rows(), sizes.tokens);
    soften::launch(
        &client,
        count,
        dim,
        scores.into_buffer_arg(),
        shares.clone().into_buffer_arg(),
        sizes.rows() as u32,
        sizes.tokens as u32,
        sizes.scale(),
        units,
    );
    shares
}

/// The gradient by the scores, given the one by the shares.
pub(super) fn backward(shares: CubeTensor, of_shares: CubeTensor, sizes: Sizes) -> CubeTensor {
    let of_scores = empty(&of_shares, of_shares.meta.shape().clone());
    let client = of_shares.client.clone();
    let (count, dim, units) = row_cubes(&client, sizes.rows(), sizes.tokens);
    soften_gradient::launch(
        &client,
        count,
        dim,
        shares.into_buffer_arg(),
        of_shares.into_buffer_arg(),
        of_scores.clone().into_buffer_arg(),
        sizes.rows() as u32,
        sizes.tokens as u32,
        sizes.scale(),
        units,
    );
    of_scores
}
