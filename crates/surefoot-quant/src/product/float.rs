//! Products with F32, F16 and BF16 weights, in f32.

use crate::block::{BlockFormat, bf16_to_f32, f16_to_f32};

/// Sums kept apart so that they can be added up side by side.
const LANES: usize = 32;
/// As many times as many weights are widened at once for several columns: the first-level cache holds them.
const TILE: usize = 16;

/// Every kernel has a copy of it, compiled for its instructions. A column's sum has the same terms in the same order
/// whatever the number of columns is.
#[inline(always)]
pub(super) fn multiply(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [f32],
) {
    match format {
        BlockFormat::F32 => each_row(rows, row_bytes, x, inputs, out, f32::from_le_bytes),
        BlockFormat::F16 => {
            let widen = |bytes| f16_to_f32(u16::from_le_bytes(bytes));
            each_row(rows, row_bytes, x, inputs, out, widen);
        }
        _ => {
            let widen = |bytes| bf16_to_f32(u16::from_le_bytes(bytes));
            each_row(rows, row_bytes, x, inputs, out, widen);
        }
    }
}

#[inline(always)]
fn each_row<const BYTES: usize>(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [f32],
    widen: impl Fn([u8; BYTES]) -> f32 + Copy,
) {
    let columns = x.len() / inputs;
    let mut sums = vec![[0.0_f32; LANES]; columns];
    for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(columns)) {
        let (weights, few_weights) = row.as_chunks::<BYTES>().0.as_chunks::<LANES>();
        if let [out] = out {
            *out = whole(weights, x.as_chunks::<LANES>().0, widen);
        } else {
            sums.fill([0.0; LANES]);
            let mut tile = [[0.0_f32; LANES]; TILE];
            for (at, weights) in weights.chunks(TILE).enumerate() {
                // Widened once for all columns.
                for (wide, weights) in tile.iter_mut().zip(weights) {
                    for lane in 0..LANES {
                        wide[lane] = widen(weights[lane]);
                    }
                }
                for (sums, x) in sums.iter_mut().zip(x.chunks_exact(inputs)) {
                    let numbers = &x.as_chunks::<LANES>().0[at * TILE..][..weights.len()];
                    *sums = added(*sums, &tile[..weights.len()], numbers);
                }
            }
            for (out, sums) in out.iter_mut().zip(&sums) {
                *out = sums.iter().sum();
            }
        }
        for (out, x) in out.iter_mut().zip(x.chunks_exact(inputs)) {
            let few = few_weights.iter().zip(x.as_chunks::<LANES>().1);
            *out += few.map(|(weight, x)| widen(*weight) * x).sum::<f32>();
        }
    }
}

/// The product of a row with a single column, which is widened as it is read.
#[inline(always)]
fn whole<const BYTES: usize>(
    weights: &[[[u8; BYTES]; LANES]],
    numbers: &[[f32; LANES]],
    widen: impl Fn([u8; BYTES]) -> f32 + Copy,
) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for (weights, numbers) in weights.iter().zip(numbers) {
        for lane in 0..LANES {
            sums[lane] += widen(weights[lane]) * numbers[lane];
        }
    }
    sums.iter().sum()
}

/// `sums` and the products of these numbers.
#[inline(always)]
fn added(
    mut sums: [f32; LANES],
    weights: &[[f32; LANES]],
    numbers: &[[f32; LANES]],
) -> [f32; LANES] {
    for (weights, numbers) in weights.iter().zip(numbers) {
        for lane in 0..LANES {
            sums[lane] += weights[lane] * numbers[lane];
        }
    }
    sums
}
