//! Products of weights with a few tokens on Cube devices, together with what is before and behind them in a block that decodes:
//! the norm of the tokens, several weights side by side or one that gates another, bias and residual. One launch each.
//!
//! Tokens are rows of `x` and of the result. Each row of a weight has [`LANES`] units, which read it in fours, multiply it with
//! every token and add up in f32. Tokens are rounded to the weights' dtype, as other products have them. Each cube normalises and
//! rounds the tokens for itself, into shared memory where there is room: that is less than its rows would read of them. The first
//! numbers of a weight are on their way meanwhile, and the next ones while some are multiplied.
//!
//! With more tokens than [`MOST_TOKENS`] (`many`) each weight is a product of its own, on matrix units where the device has them.

mod many;

pub(super) use many::{in_parts, then_norm};

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::{empty, turned};
use super::planes::{LANES, has_planes, sum_of_cube};
use super::product::Four;
use crate::inference::MOST_TOKENS;

/// How often their number can be halved.
const HALVINGS: usize = LANES.ilog2() as usize;
/// Units of a cube.
const UNITS: usize = 256;
/// Rows of a weight that a cube takes.
const ROWS: usize = UNITS / LANES;
/// Bytes of shared memory in which a cube keeps its tokens, normalised and rounded. If they take more, each row reads them anew.
const MOST_STAGED: usize = 32 << 10;
/// Reads of a unit that are on their way at once.
const READS: usize = 8;

/// What is before and behind the products, and how a cube goes about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tokens: usize,
    normed: bool,
    gated: bool,
    bias: bool,
    residual: bool,
    /// Fours of all tokens in shared memory; none if they are not kept there.
    staged: usize,
    /// Whether planes have [`LANES`] units and add up.
    planes: bool,
}

impl Form {
    /// Bytes of shared memory in which units add up: for each norm, and for each row.
    fn bytes_of_sums(&self) -> usize {
        let norms = if self.normed { self.tokens } else { 0 };
        4 * UNITS * (norms + 1 + usize::from(self.gated))
    }

    /// Fours that a unit reads at once of each weight.
    fn reads(&self) -> usize {
        if self.tokens > 2 || self.gated { READS / 2 } else { READS }
    }
}

/// What a row of a weight is multiplied with: a four of a token, normalised and rounded.
#[cube]
fn four_of_token<W: Float>(
    x: &[Four],
    gamma: &[Four],
    inverse: &Array<f32>,
    staged: &Shared<[Vector<W, Const<4>>]>,
    fours: usize,
    place: usize,
    #[comptime] token: usize,
    #[comptime] form: Form,
) -> Four {
    if comptime!(form.staged > 0) {
        Four::cast_from(staged[token * fours + place])
    } else {
        let mut number = x[token * fours + place];
        if comptime!(form.normed) {
            number = number * Four::new(inverse[token]) * gamma[place];
        }
        Four::cast_from(Vector::<W, Const<4>>::cast_from(number))
    }
}

/// Reads a unit's next numbers of a row of a weight. What is read beyond the row's end is not used.
#[cube]
fn read_row<W: Float>(
    weight: &[Vector<W, Const<4>>],
    start: usize,
    at: usize,
    fours: usize,
    #[comptime] reads: usize,
) -> Array<Vector<W, Const<4>>> {
    let mut read = Array::<Vector<W, Const<4>>>::new(reads);
    #[unroll]
    for step in 0..reads {
        read[step] = weight[start + (at + step * LANES).min(fours - 1)];
    }
    read
}

/// The same of the weight that has this row: rows of `first` end before `first_end`, those of `second` before `second_end`.
#[cube]
fn read_weight<W: Float>(
    first: &[Vector<W, Const<4>>],
    second: &[Vector<W, Const<4>>],
    third: &[Vector<W, Const<4>>],
    row: usize,
    first_end: usize,
    second_end: usize,
    start: usize,
    at: usize,
    fours: usize,
    #[comptime] form: Form,
) -> Array<Vector<W, Const<4>>> {
    let reads = comptime!(form.reads());
    let mut read = Array::<Vector<W, Const<4>>>::new(reads);
    if row < first_end {
        read = read_row::<W>(first, start, at, fours, reads);
    }
    if row >= first_end && row < second_end {
        read = read_row::<W>(second, start, at, fours, reads);
    }
    if row >= second_end {
        read = read_row::<W>(third, start, at, fours, reads);
    }
    read
}

/// Adds what was read of a row times each token, to be summed over lanes and over the four; with a gate, of two weights.
#[cube]
fn add_products<W: Float>(
    read: &Array<Vector<W, Const<4>>>,
    read_too: &Array<Vector<W, Const<4>>>,
    x: &[Four],
    gamma: &[Four],
    inverse: &Array<f32>,
    staged: &Shared<[Vector<W, Const<4>>]>,
    sums: &mut Array<Four>,
    others: &mut Array<Four>,
    at: usize,
    fours: usize,
    #[comptime] form: Form,
) {
    #[unroll]
    for step in 0..comptime!(form.reads()) {
        let place = at + step * LANES;
        if place < fours {
            let factor = Four::cast_from(read[step]);
            #[unroll]
            for token in 0..comptime!(form.tokens) {
                let of_token =
                    four_of_token::<W>(x, gamma, inverse, staged, fours, place, token, form);
                sums[token] = fma(factor, of_token, sums[token]);
                if comptime!(form.gated) {
                    let factor = Four::cast_from(read_too[step]);
                    others[token] = fma(factor, of_token, others[token]);
                }
            }
        }
    }
}

#[cube]
fn sum_of_four(four: Four) -> f32 {
    (four.extract(0usize) + four.extract(1usize)) + (four.extract(2usize) + four.extract(3usize))
}

/// The sum over the lanes of a row, for the token whose number the lane has.
#[cube]
fn sum_of_lanes(sums: &Array<Four>, #[comptime] form: Form) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = unit % LANES;
    let mut own = 0.0f32;
    if comptime!(form.planes) {
        #[unroll]
        for token in 0..comptime!(form.tokens) {
            let sum = plane_sum(sum_of_four(sums[token]));
            if lane == token {
                own = sum;
            }
        }
    } else {
        let mut partial = Shared::<[f32]>::new_slice(UNITS);
        #[unroll]
        for token in 0..comptime!(form.tokens) {
            partial[unit] = sum_of_four(sums[token]);
            sync_cube();
            #[unroll]
            for halving in 0..HALVINGS {
                let step = comptime!(LANES >> (halving + 1));
                if lane < step {
                    let right = partial[unit + step];
                    partial[unit] += right;
                }
                sync_cube();
            }
            if lane == token {
                own = partial[unit - lane];
            }
            sync_cube();
        }
    }
    own
}

/// The weights are `first`, `second` and `third` below each other, with rows up to the ends; or `second` is gated by `first`.
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
    #[comptime] form: Form,
    #[define(W)] _dtype: ElemType,
) {
    let (rows, fours, line) = (rows as usize, fours as usize, line as usize);
    let (first_end, second_end) = (first_end as usize, second_end as usize);
    let unit = UNIT_POS as usize;
    let first_row = CUBE_POS * ROWS + unit / LANES;
    // Rows beyond the last are read as the last, and not written.
    let row = first_row.min(rows - 1);
    let tokens = comptime!(form.tokens);
    let reads = comptime!(form.reads());
    // A weight that has a row for every output is the only one, or gated.
    let mut start = row * line;
    if row >= second_end {
        start = (row - second_end) * line;
    } else if row >= first_end {
        start = (row - first_end) * line;
    }
    if comptime!(form.gated) {
        start = row * line;
    }
    let lane = unit % LANES;
    let mut read = read_weight::<W>(
        first, second, third, row, first_end, second_end, start, lane, fours, form,
    );
    let mut read_too = Array::<Vector<W, Const<4>>>::new(reads);
    if comptime!(form.gated) {
        read_too = read_row::<W>(second, start, lane, fours, reads);
    }
    let mut staged = Shared::<[Vector<W, Const<4>>]>::new_slice(comptime!(form.staged.max(1)));
    let mut inverse = Array::<f32>::new(tokens);
    #[unroll]
    for token in 0..tokens {
        inverse[token] = 1.0f32;
        if comptime!(form.normed) {
            let mut squares = Four::new(0.0f32);
            let mut at = unit;
            while at < fours {
                let four = x[token * fours + at];
                squares = fma(four, four, squares);
                at += UNITS;
            }
            let sum = sum_of_cube(sum_of_four(squares), UNITS, form.planes);
            let mean = sum / f32::cast_from(4 * fours as u32);
            inverse[token] = 1.0f32 / (mean + epsilon).sqrt();
        }
        if comptime!(form.staged > 0) {
            let mut at = unit;
            while at < fours {
                let mut four = x[token * fours + at];
                if comptime!(form.normed) {
                    four = four * Four::new(inverse[token]) * gamma[at];
                }
                staged[token * fours + at] = Vector::<W, Const<4>>::cast_from(four);
                at += UNITS;
            }
        }
    }
    if comptime!(form.staged > 0) {
        sync_cube();
    }
    let mut sums = Array::<Four>::new(tokens);
    let mut others = Array::<Four>::new(tokens);
    #[unroll]
    for token in 0..tokens {
        sums[token] = Four::new(0.0f32);
        others[token] = Four::new(0.0f32);
    }
    let mut at = lane;
    while at < fours {
        let next = at + comptime!(reads * LANES);
        let mut following = Array::<Vector<W, Const<4>>>::new(reads);
        let mut following_too = Array::<Vector<W, Const<4>>>::new(reads);
        if next < fours {
            following = read_weight::<W>(
                first, second, third, row, first_end, second_end, start, next, fours, form,
            );
            if comptime!(form.gated) {
                following_too = read_row::<W>(second, start, next, fours, reads);
            }
        }
        add_products::<W>(
            &read,
            &read_too,
            x,
            gamma,
            &inverse,
            &staged,
            &mut sums,
            &mut others,
            at,
            fours,
            form,
        );
        #[unroll]
        for step in 0..reads {
            read[step] = following[step];
            if comptime!(form.gated) {
                read_too[step] = following_too[step];
            }
        }
        at = next;
    }
    let mut number = sum_of_lanes(&sums, form);
    let token = lane;
    let place = token * rows + row;
    let writes = token < tokens && first_row < rows;
    if comptime!(form.gated) {
        let value = sum_of_lanes(&others, form);
        number = number / (1.0f32 + (0.0f32 - number).exp()) * value;
    }
    if writes {
        if comptime!(form.bias) {
            number += bias[row];
        }
        if comptime!(form.residual) {
            number = residual[place] + factor * number;
        }
        out[place] = number;
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
    /// The dtype of the weight that gated outputs of many tokens are multiplied with next.
    pub(super) next: DType,
}

/// How far it is from one row of a weight to the next, if the numbers of a row lie side by side.
fn line_of(weight: &CubeTensor) -> Option<usize> {
    let (line, step) = (weight.meta.strides()[0], weight.meta.strides()[1]);
    (step == 1 && line.is_multiple_of(4) && !weight.meta.is_tiled()).then_some(line)
}

/// Weights whose rows are as far apart as those of the first, with their numbers side by side; those that lie otherwise are copied.
fn arranged(weights: Vec<CubeTensor>) -> Vec<CubeTensor> {
    let first = weights.first().and_then(line_of);
    match first.is_some() && weights.iter().all(|weight| line_of(weight) == first) {
        true => weights,
        false => weights.into_iter().map(into_contiguous).collect(),
    }
}

/// The products, `[tokens, outputs]`, of weights in one dtype whose rows are of whole fours.
pub(super) fn forward(x: CubeTensor, given: Given) -> CubeTensor {
    let x = into_contiguous(x);
    let (tokens, width) = (x.meta.shape()[0], x.meta.shape()[1]);
    if tokens > MOST_TOKENS {
        return many::forward(x, given);
    }
    let Given { norm, weights, gated, bias, residual, next: _ } = given;
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
    let client = x.client.clone();
    let mut form = Form {
        tokens,
        normed: norm.is_some(),
        gated,
        bias: bias.is_some(),
        residual: residual.is_some(),
        staged: 0,
        planes: has_planes(&client),
    };
    let room = client.properties().hardware.max_shared_memory_size;
    let room = room.saturating_sub(form.bytes_of_sums()).min(MOST_STAGED);
    if tokens * width * first.dtype.size() <= room {
        form.staged = tokens * width / 4;
    }
    let (gamma, epsilon) = norm.unwrap_or_else(|| (x.clone(), 0.0));
    let bias = bias.unwrap_or_else(|| x.clone());
    let (residual, factor) = residual.unwrap_or_else(|| (x.clone(), 1.0));
    let line = first.meta.strides()[0];
    let out = empty(&x, Shape::new([tokens, rows]));
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
        form,
        ElemType::Float(kind),
    );
    out
}

/// `matrix · x`, `[rows, columns]`, where `x` is `[inputs, columns]`. None unless the matrix is in a dtype of the kernel, its rows are of
/// whole fours, and `x` has few columns.
pub(super) fn product(matrix: &CubeTensor, x: &CubeTensor) -> Option<CubeTensor> {
    let (inputs, columns) = (x.meta.shape()[0], x.meta.shape()[1]);
    let line = line_of(matrix);
    let fits = matches!(matrix.dtype, DType::F32 | DType::F16 | DType::BF16)
        && x.dtype == DType::F32
        && (1..=MOST_TOKENS).contains(&columns)
        && inputs.is_multiple_of(4)
        && matrix.meta.num_elements() > 0
        && line.is_some();
    if !fits {
        return None;
    }
    let weights = vec![matrix.clone()];
    let next = DType::F32;
    let given = Given { norm: None, weights, gated: false, bias: None, residual: None, next };
    Some(turned(forward(turned(x.clone()), given)))
}
