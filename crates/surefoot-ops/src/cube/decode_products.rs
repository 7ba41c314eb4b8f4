//! Products of weights with a few tokens on Cube devices, together with what is before and behind them in a block that decodes:
//! the norm of the tokens, several weights side by side or one that gates another, bias and residual. One launch each.
//!
//! Tokens are rows of `x` and of the result. Each row of a weight has [`LANES`] units, which read it in fours, multiply it with
//! every token and add up in f32. Tokens are rounded to the weights' dtype, as other products have them. With a norm, each cube
//! makes the roots of the mean squares for itself: that reads what its units read anyway.

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::empty;
use super::product::Four;
use super::reduce::sum_of_units;

/// Units that share a row of a weight.
const LANES: usize = 32;
/// How often their number can be halved.
const HALVINGS: usize = 5;
/// Units of a cube.
const UNITS: usize = 128;
/// Rows of a weight that a cube takes.
const ROWS: usize = UNITS / LANES;

/// Adds a row of a weight times each token, to be summed over lanes and over the four.
#[cube]
fn add_products<W: Float>(
    weight: &[Vector<W, Const<4>>],
    x: &[Four],
    gamma: &[Four],
    inverse: &Array<f32>,
    sums: &mut Array<Four>,
    start: usize,
    fours: usize,
    #[comptime] tokens: usize,
    #[comptime] normed: bool,
) {
    let mut at = UNIT_POS as usize % LANES;
    // Four reads are on their way at once.
    while at < fours {
        let mut read = Array::<Vector<W, Const<4>>>::new(4usize);
        #[unroll]
        for step in 0..4usize {
            // What is read beyond the row's end is not used.
            read[step] = weight[start + (at + step * LANES).min(fours - 1)];
        }
        #[unroll]
        for step in 0..4usize {
            let place = at + step * LANES;
            if place < fours {
                let factor = Four::cast_from(read[step]);
                #[unroll]
                for token in 0..tokens {
                    let mut number = x[token * fours + place];
                    if comptime!(normed) {
                        number = number * Four::new(inverse[token]) * gamma[place];
                    }
                    let rounded = Vector::<W, Const<4>>::cast_from(number);
                    sums[token] = fma(factor, Four::cast_from(rounded), sums[token]);
                }
            }
        }
        at += 4 * LANES;
    }
}

#[cube]
fn sum_of_four(four: Four) -> f32 {
    (four.extract(0usize) + four.extract(1usize)) + (four.extract(2usize) + four.extract(3usize))
}

/// The sums over the lanes of each row, at the first lane's place: `[tokens, units]`.
#[cube]
fn sums_of_lanes(sums: &Array<Four>, #[comptime] tokens: usize) -> Shared<[f32]> {
    let unit = UNIT_POS as usize;
    let mut partial = Shared::<[f32]>::new_slice(UNITS * tokens);
    #[unroll]
    for token in 0..tokens {
        partial[token * UNITS + unit] = sum_of_four(sums[token]);
    }
    sync_cube();
    #[unroll]
    for halving in 0..HALVINGS {
        let step = comptime!(LANES >> (halving + 1));
        if unit % LANES < step {
            #[unroll]
            for token in 0..tokens {
                let right = partial[token * UNITS + unit + step];
                partial[token * UNITS + unit] += right;
            }
        }
        sync_cube();
    }
    partial
}

/// What is before and behind the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Around {
    normed: bool,
    gated: bool,
    bias: bool,
    residual: bool,
}

/// The weights are `first`, `second` and `third` below each other, with rows up to `ends`; or `second` is gated by `first`.
#[cube(launch)]
fn products<W: Float>(
    x: &[Four],
    gamma: &[Four],
    first: &[Vector<W, Const<4>>],
    second: &[Vector<W, Const<4>>],
    third: &[Vector<W, Const<4>>],
    bias: &[f32],
    residual: &[f32],
    out: &mut [f32],
    first_end: u32,
    second_end: u32,
    rows: u32,
    fours: u32,
    line: u32,
    epsilon: f32,
    factor: f32,
    #[comptime] tokens: usize,
    #[comptime] around: Around,
    #[define(W)] _dtype: ElemType,
) {
    let (rows, fours, line) = (rows as usize, fours as usize, line as usize);
    let (first_end, second_end) = (first_end as usize, second_end as usize);
    let unit = UNIT_POS as usize;
    let of_cube = unit / LANES;
    let first_row = CUBE_POS * ROWS;
    // Rows beyond the last are read as the last, and not written.
    let row = (first_row + of_cube).min(rows - 1);
    let mut inverse = Array::<f32>::new(tokens);
    #[unroll]
    for token in 0..tokens {
        inverse[token] = 1.0f32;
        if comptime!(around.normed) {
            let mut squares = Four::new(0.0f32);
            let mut at = unit;
            while at < fours {
                let four = x[token * fours + at];
                squares = fma(four, four, squares);
                at += UNITS;
            }
            let sum = sum_of_units(sum_of_four(squares), UNITS);
            let mean = sum / f32::cast_from(4 * fours as u32);
            inverse[token] = 1.0f32 / (mean + epsilon).sqrt();
        }
    }
    let mut sums = Array::<Four>::new(tokens);
    let mut others = Array::<Four>::new(tokens);
    #[unroll]
    for token in 0..tokens {
        sums[token] = Four::new(0.0f32);
        others[token] = Four::new(0.0f32);
    }
    let normed = comptime!(around.normed);
    if comptime!(around.gated) {
        add_products(first, x, gamma, &inverse, &mut sums, row * line, fours, tokens, normed);
        add_products(second, x, gamma, &inverse, &mut others, row * line, fours, tokens, normed);
    } else if row < first_end {
        add_products(first, x, gamma, &inverse, &mut sums, row * line, fours, tokens, normed);
    } else if row < second_end {
        let start = (row - first_end) * line;
        add_products(second, x, gamma, &inverse, &mut sums, start, fours, tokens, normed);
    } else {
        let start = (row - second_end) * line;
        add_products(third, x, gamma, &inverse, &mut sums, start, fours, tokens, normed);
    }
    let sums = sums_of_lanes(&sums, tokens);
    let token = unit % LANES;
    let writes = token < tokens && first_row + of_cube < rows;
    let place = token * UNITS + of_cube * LANES;
    if comptime!(around.gated) {
        let others = sums_of_lanes(&others, tokens);
        if writes {
            let gate = sums[place];
            let gated = gate / (1.0f32 + (0.0f32 - gate).exp()) * others[place];
            out[token * rows + row] = gated;
        }
    } else if writes {
        let mut number = sums[place];
        if comptime!(around.bias) {
            number += bias[row];
        }
        if comptime!(around.residual) {
            number = residual[token * rows + row] + factor * number;
        }
        out[token * rows + row] = number;
    }
}

/// What goes into the launch beside the tokens.
pub(super) struct Given {
    /// The norm's factors, and what is added to the mean square.
    pub(super) norm: Option<(CubeTensor, f64)>,
    /// One to three weights, below each other.
    pub(super) weights: Vec<CubeTensor>,
    /// The first of two weights gates the second.
    pub(super) gated: bool,
    pub(super) bias: Option<CubeTensor>,
    /// What `factor` times the products is added to.
    pub(super) residual: Option<(CubeTensor, f64)>,
}

/// Weights whose rows are as far apart as those of the first, with their numbers side by side; those that lie otherwise are copied.
fn arranged(weights: Vec<CubeTensor>) -> Vec<CubeTensor> {
    let line = |weight: &CubeTensor| {
        let (line, step) = (weight.meta.strides()[0], weight.meta.strides()[1]);
        (step == 1 && line.is_multiple_of(4) && !weight.meta.is_tiled()).then_some(line)
    };
    let first = weights.first().and_then(line);
    match first.is_some() && weights.iter().all(|weight| line(weight) == first) {
        true => weights,
        false => weights.into_iter().map(into_contiguous).collect(),
    }
}

/// The products, `[tokens, outputs]`, of weights in one dtype whose rows are of whole fours.
pub(super) fn forward(x: CubeTensor, given: Given) -> CubeTensor {
    let x = into_contiguous(x);
    let (tokens, width) = (x.meta.shape()[0], x.meta.shape()[1]);
    let Given { norm, weights, gated, bias, residual } = given;
    let weights = arranged(weights);
    // There is a weight, and what is not there is never read.
    let Some(first) = weights.first().cloned() else { return x };
    let second = weights.get(1).cloned().unwrap_or_else(|| first.clone());
    let third = weights.get(2).cloned().unwrap_or_else(|| first.clone());
    let ends: Vec<usize> = weights
        .iter()
        .scan(0, |end, weight| {
            *end += weight.meta.shape()[0];
            Some(*end)
        })
        .collect();
    let rows = if gated { ends[0] } else { ends.last().copied().unwrap_or(0) };
    let end = |at: usize| ends.get(at).copied().unwrap_or(rows) as u32;
    let kind = match first.dtype {
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => FloatKind::F32,
    };
    let around = Around {
        normed: norm.is_some(),
        gated,
        bias: bias.is_some(),
        residual: residual.is_some(),
    };
    let (gamma, epsilon) = norm.unwrap_or_else(|| (x.clone(), 0.0));
    let bias = bias.unwrap_or_else(|| x.clone());
    let (residual, factor) = residual.unwrap_or_else(|| (x.clone(), 1.0));
    let line = first.meta.strides()[0];
    let out = empty(&x, Shape::new([tokens, rows]));
    let client = x.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let count = calculate_cube_count_elemwise(&client, rows.div_ceil(ROWS) * UNITS, dim);
    products::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        into_contiguous(gamma).into_buffer_arg(),
        first.into_buffer_arg(),
        second.into_buffer_arg(),
        third.into_buffer_arg(),
        into_contiguous(bias).into_buffer_arg(),
        into_contiguous(residual).into_buffer_arg(),
        out.clone().into_buffer_arg(),
        end(0),
        end(1),
        rows as u32,
        (width / 4) as u32,
        (line / 4) as u32,
        epsilon as f32,
        factor as f32,
        tokens,
        around,
        ElemType::Float(kind),
    );
    out
}
