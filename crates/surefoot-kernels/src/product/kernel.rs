//! Some rows of a product, on one core.
//!
//! With up to [`FEW`] columns the numbers of a row of weights are multiplied side by side, a vector of
//! them with a vector of each column. With more, the columns are side by side, and each weight is
//! multiplied with a vector of them. Either way several sums are made at once, since one
//! would wait for itself, and a number's terms are added in an order that does not depend on how the rows are
//! shared out. With up to [`FEW`] columns it does not depend on the number of columns either: a column gives
//! the same bits alone and beside others, which speculative decoding relies on. Of weights that are transposed, and with more columns, the
//! order is that of [`dense`](crate::dense) ([`depth_blocks`]).
//!
//! Written for vectors of 4, 8 or 16 numbers. `out` must be zeros, since a single column is added to it. [`super::multiply`] alone calls it.

use std::borrow::Cow;

use pulp::{Simd, WithSimd};

use surefoot_quant::product::depth_blocks;

use crate::math::{by_lanes, copied};
use crate::processor::arch;

use super::ALIKE_COLUMNS;

/// As many columns are few.
const FEW: usize = ALIKE_COLUMNS;
/// Vectors of a row, or rows of a transposed weight, that are taken at once.
const RUN: usize = 4;
/// More columns than these are not taken: a vector of the widest sort.
pub const MOST: usize = 16;

/// The weights, row after row. Transposed, a row of the product comes from a column of theirs.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// All of their numbers.
    pub numbers: &'a [f32],
    /// Numbers of a stored row.
    pub width: usize,
    /// Whether a row of the product comes from a column of theirs.
    pub transposed: bool,
}

/// The columns, laid out for the kernel that they go to.
pub(super) struct Columns<'a> {
    /// Row after row of `MOST` numbers, or column after column if they are `few`.
    numbers: Cow<'a, [f32]>,
    inputs: usize,
    count: usize,
    few: bool,
}

impl<'a> Columns<'a> {
    /// `inputs` rows of `count` numbers.
    pub(super) fn new(numbers: &'a [f32], inputs: usize, count: usize) -> Self {
        let few = count <= FEW;
        let numbers = if few {
            let mut transposed = vec![0.0; inputs * count];
            for (row, numbers) in numbers.chunks_exact(count).enumerate() {
                for (column, number) in numbers.iter().enumerate() {
                    transposed[column * inputs + row] = *number;
                }
            }
            Cow::Owned(transposed)
        } else if count == MOST {
            Cow::Borrowed(numbers)
        } else {
            let mut padded = vec![0.0; inputs * MOST];
            for (to, from) in padded.chunks_exact_mut(MOST).zip(numbers.chunks_exact(count)) {
                to[..count].copy_from_slice(from);
            }
            Cow::Owned(padded)
        };
        Self { numbers, inputs, count, few }
    }
}

/// Fills `out` with the rows of the product from `first` on.
pub(super) fn multiply(weights: &Matrix<'_>, first: usize, x: &Columns<'_>, out: &mut [f32]) {
    arch().dispatch(Work { weights, first, x, out });
}

struct Work<'a> {
    weights: &'a Matrix<'a>,
    first: usize,
    x: &'a Columns<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // There are 32 registers of the widest sort and 16 of AVX2's.
        by_lanes!(
            S,
            16 => match (self.x.few, self.weights.transposed) {
                (true, false) => dots::<S, 2, 3>(simd, self),
                (true, true) => stripes_by_count::<S, 6, 4, 3>(simd, self),
                (false, _) => tiles::<S, 12, 1>(simd, self),
            },
            8 => match (self.x.few, self.weights.transposed) {
                (true, false) => dots::<S, 1, 2>(simd, self),
                (true, true) => stripes_by_count::<S, 2, 1, 1>(simd, self),
                (false, _) => tiles::<S, 6, 2>(simd, self),
            },
            4 => match (self.x.few, self.weights.transposed) {
                (true, false) => dots::<S, 1, 2>(simd, self),
                (true, true) => stripes_by_count::<S, 2, 1, 1>(simd, self),
                (false, _) => tiles::<S, 3, 4>(simd, self),
            },
        )
    }
}

/// `ROWS` rows and up to `MOST_COLUMNS` columns at once; the rows stay in the first-level cache for the others.
#[inline(always)]
fn dots<S: Simd, const ROWS: usize, const MOST_COLUMNS: usize>(simd: S, work: Work<'_>) {
    let Work { weights, first, x, out } = work;
    let (inputs, count) = (x.inputs, x.count);
    // A single column uses nothing twice: all that counts is to read one row after the other.
    let rows = if count == 1 { 1 } else { ROWS };
    let columns = count.div_ceil(count.div_ceil(MOST_COLUMNS));
    let weights = weights.numbers[first * inputs..].chunks(rows * inputs);
    for (weights, out) in weights.zip(out.chunks_mut(rows * count)) {
        let is_whole = rows == ROWS && weights.len() == ROWS * inputs && out.len() == ROWS * count;
        for from in (0..count).step_by(columns) {
            let numbers = &x.numbers[from * inputs..];
            match (is_whole, columns.min(count - from)) {
                (true, 1) => {
                    dot::<S, ROWS, 1>(simd, weights, numbers, inputs, &mut out[from..], count)
                }
                (true, 2) => {
                    dot::<S, ROWS, 2>(simd, weights, numbers, inputs, &mut out[from..], count)
                }
                (true, _) => {
                    dot::<S, ROWS, 3>(simd, weights, numbers, inputs, &mut out[from..], count)
                }
                (false, several) => {
                    let each = weights.chunks_exact(inputs).zip(out.chunks_exact_mut(count));
                    for (row, out) in each {
                        let out = &mut out[from..];
                        match several {
                            1 => dot::<S, 1, 1>(simd, row, numbers, inputs, out, count),
                            2 => dot::<S, 1, 2>(simd, row, numbers, inputs, out, count),
                            _ => dot::<S, 1, 3>(simd, row, numbers, inputs, out, count),
                        }
                    }
                }
            }
        }
    }
}

/// The products of some rows and columns, whose numbers lie one after the other. A row of `out` is `step` numbers
/// behind the one before it.
#[inline(always)]
fn dot<S: Simd, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    weights: &[f32],
    numbers: &[f32],
    inputs: usize,
    out: &mut [f32],
    step: usize,
) {
    let mut rows: [(&[S::f32s], &[f32]); ROWS] = [(&[], &[]); ROWS];
    for (row, from) in rows.iter_mut().enumerate() {
        *from = S::as_simd_f32s(&weights[row * inputs..][..inputs]);
    }
    let mut columns: [(&[S::f32s], &[f32]); COLUMNS] = [(&[], &[]); COLUMNS];
    for (column, from) in columns.iter_mut().enumerate() {
        *from = S::as_simd_f32s(&numbers[column * inputs..][..inputs]);
    }
    let mut sums = [[[simd.splat_f32s(0.0); RUN]; COLUMNS]; ROWS];
    let vectors = inputs / S::F32_LANES;
    let whole = vectors / RUN * RUN;
    for from in (0..whole).step_by(RUN) {
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let row = &row.0[from..from + RUN];
            for (sums, column) in sums.iter_mut().zip(&columns) {
                let column = &column.0[from..from + RUN];
                for at in 0..RUN {
                    sums[at] = simd.mul_add_e_f32s(row[at], column[at], sums[at]);
                }
            }
        }
    }
    for at in whole..vectors {
        for (sums, row) in sums.iter_mut().zip(&rows) {
            for (sums, column) in sums.iter_mut().zip(&columns) {
                sums[0] = simd.mul_add_e_f32s(row.0[at], column.0[at], sums[0]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (column, sums) in sums.iter().enumerate() {
            let two = [simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3])];
            let mut total = simd.reduce_sum_f32s(simd.add_f32s(two[0], two[1]));
            for (weight, x) in rows[row].1.iter().zip(columns[column].1) {
                total += weight * x;
            }
            out[row * step + column] = total;
        }
    }
}

/// A weight that is transposed has its outputs side by side: `A` vectors of them at once for up to four
/// columns, `B` for five and six, `C` for more.
#[inline(always)]
fn stripes_by_count<S: Simd, const A: usize, const B: usize, const C: usize>(
    simd: S,
    work: Work<'_>,
) {
    match work.x.count {
        1 => long_stripes(simd, work),
        2 => stripes::<S, 2, A>(simd, work),
        3 => stripes::<S, 3, A>(simd, work),
        4 => stripes::<S, 4, A>(simd, work),
        5 => stripes::<S, 5, B>(simd, work),
        6 => stripes::<S, 6, B>(simd, work),
        7 => stripes::<S, 7, C>(simd, work),
        _ => stripes::<S, 8, C>(simd, work),
    }
}

/// A single column: the weights of some inputs at a time are added to all outputs.
#[inline(always)]
fn long_stripes<S: Simd>(simd: S, work: Work<'_>) {
    let Work { weights, first, x, out } = work;
    let count = out.len();
    let row = |input: usize| &weights.numbers[input * weights.width + first..][..count];
    let mut sums = vec![0.0; count];
    for range in depth_blocks(x.inputs) {
        sums.fill(0.0);
        let whole = range.start + range.len() / RUN * RUN;
        for input in (range.start..whole).step_by(RUN) {
            let mut rows: [(&[S::f32s], &[f32]); RUN] = [(&[], &[]); RUN];
            let mut numbers = [simd.splat_f32s(0.0); RUN];
            for at in 0..RUN {
                rows[at] = S::as_simd_f32s(row(input + at));
                numbers[at] = simd.splat_f32s(x.numbers[input + at]);
            }
            let (vectors, rest) = S::as_mut_simd_f32s(&mut sums);
            for (place, sum) in vectors.iter_mut().enumerate() {
                for (row, number) in rows.iter().zip(&numbers) {
                    *sum = simd.mul_add_f32s(row.0[place], *number, *sum);
                }
            }
            for (place, sum) in rest.iter_mut().enumerate() {
                for (row, number) in rows.iter().zip(&x.numbers[input..]) {
                    *sum = row.1[place].mul_add(*number, *sum);
                }
            }
        }
        for input in whole..range.end {
            for (sum, weight) in sums.iter_mut().zip(row(input)) {
                *sum = weight.mul_add(x.numbers[input], *sum);
            }
        }
        for (out, sum) in out.iter_mut().zip(&sums) {
            *out += sum;
        }
    }
}

#[inline(always)]
fn stripes<S: Simd, const COLUMNS: usize, const WIDE: usize>(simd: S, work: Work<'_>) {
    let Work { weights, first, x, out } = work;
    let rows = out.len() / COLUMNS;
    let mut row = 0;
    while row < rows {
        let out = &mut out[row * COLUMNS..];
        let left = rows - row;
        row += if left >= WIDE * S::F32_LANES {
            stripe::<S, COLUMNS, WIDE>(simd, weights, first + row, x, out);
            WIDE * S::F32_LANES
        } else if left >= S::F32_LANES {
            stripe::<S, COLUMNS, 1>(simd, weights, first + row, x, out);
            S::F32_LANES
        } else {
            for (out, x) in out.iter_mut().zip(x.numbers.chunks_exact(x.inputs)).take(COLUMNS) {
                *out = 0.0;
                for range in depth_blocks(x.len()) {
                    let weights = weights.numbers[range.start * weights.width + first + row..]
                        .iter()
                        .step_by(weights.width);
                    let mut sum = 0.0;
                    for (weight, x) in weights.zip(&x[range]) {
                        sum = weight.mul_add(*x, sum);
                    }
                    *out += sum;
                }
            }
            1
        };
    }
}

#[inline(always)]
fn stripe<S: Simd, const COLUMNS: usize, const WIDE: usize>(
    simd: S,
    weights: &Matrix<'_>,
    row: usize,
    x: &Columns<'_>,
    out: &mut [f32],
) {
    let step = WIDE * S::F32_LANES;
    let mut totals = [[simd.splat_f32s(0.0); WIDE]; COLUMNS];
    for range in depth_blocks(x.inputs) {
        let mut sums = [[simd.splat_f32s(0.0); WIDE]; COLUMNS];
        for input in range {
            let (weights, _) =
                S::as_simd_f32s(&weights.numbers[input * weights.width + row..][..step]);
            for (nth, sums) in sums.iter_mut().enumerate() {
                let number = simd.splat_f32s(x.numbers[nth * x.inputs + input]);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_f32s(*weight, number, *sum);
                }
            }
        }
        add_up(simd, &mut totals, copied(&sums));
    }
    for (nth, sums) in copied(&totals).iter().enumerate() {
        for (at, number) in numbers_of::<S>(sums).iter().enumerate() {
            out[at * COLUMNS + nth] = *number;
        }
    }
}

#[inline(always)]
fn tiles<S: Simd, const ROWS: usize, const WIDE: usize>(simd: S, work: Work<'_>) {
    let Work { weights, mut first, x, out } = work;
    let mut blocks = out.chunks_exact_mut(ROWS * x.count);
    for out in &mut blocks {
        tile::<S, ROWS, WIDE>(simd, weights, first, x, out);
        first += ROWS;
    }
    for out in blocks.into_remainder().chunks_exact_mut(x.count) {
        tile::<S, 1, WIDE>(simd, weights, first, x, out);
        first += 1;
    }
}

#[inline(always)]
fn tile<S: Simd, const ROWS: usize, const WIDE: usize>(
    simd: S,
    weights: &Matrix<'_>,
    first: usize,
    x: &Columns<'_>,
    out: &mut [f32],
) {
    let (row_step, input_step) = match weights.transposed {
        true => (1, weights.width),
        false => (weights.width, 1),
    };
    let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
    for (row, numbers) in rows.iter_mut().enumerate() {
        *numbers = &weights.numbers[(first + row) * row_step..];
    }
    let mut totals = [[simd.splat_f32s(0.0); WIDE]; ROWS];
    for range in depth_blocks(x.inputs) {
        let mut sums = [[simd.splat_f32s(0.0); WIDE]; ROWS];
        let numbers = x.numbers[range.start * MOST..range.end * MOST].chunks_exact(MOST);
        for (input, numbers) in range.zip(numbers) {
            let (numbers, _) = S::as_simd_f32s(&numbers[..WIDE * S::F32_LANES]);
            for (sums, row) in sums.iter_mut().zip(&rows) {
                let weight = simd.splat_f32s(row[input * input_step]);
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum = simd.mul_add_f32s(weight, *number, *sum);
                }
            }
        }
        add_up(simd, &mut totals, copied(&sums));
    }
    for (sums, out) in copied(&totals).iter().zip(out.chunks_exact_mut(x.count)) {
        out.copy_from_slice(&numbers_of::<S>(sums)[..x.count]);
    }
}

/// Adds the sums of a block of the depth.
#[inline(always)]
fn add_up<S: Simd, const WIDE: usize, const COUNT: usize>(
    simd: S,
    totals: &mut [[S::f32s; WIDE]; COUNT],
    sums: [[S::f32s; WIDE]; COUNT],
) {
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = simd.add_f32s(*total, sum);
        }
    }
}

/// The numbers of some vectors.
#[inline(always)]
fn numbers_of<S: Simd>(vectors: &[S::f32s]) -> &[f32] {
    pulp::bytemuck::cast_slice(vectors)
}
