//! Products with F32, F16 and BF16 weights, in f32.
//!
//! With few columns each number is widened as it is read. With more, sixteen rows at a time are widened and interleaved, and that
//! panel is used for all columns, `TILE` at once: as many as there are registers for sums of sixteen rows.

use super::{FEW, PANEL};
use crate::block::{BlockFormat, bf16_to_f32, widen};

/// Sums kept apart so that they can be added up side by side.
const LANES: usize = 32;
/// The inputs of a panel: with the columns of a tile it fits into the first-level cache.
const DEPTH: usize = 256;

/// Every kernel has a copy of it, compiled for its instructions; `FMA` says that these fuse a product with a sum.
#[inline(always)]
pub(super) fn multiply<const FMA: bool, const TILE: usize>(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
) {
    match (out.len() > FEW, format) {
        (true, _) => many::<FMA, TILE>(format, rows, row_bytes, x, inputs, out),
        (false, BlockFormat::BF16) => few::<2, FMA>(rows, row_bytes, x, inputs, out, bf16),
        (false, BlockFormat::F32) => few::<4, FMA>(rows, row_bytes, x, inputs, out, f32),
        (false, _) => tiles::<FMA>(format, rows, row_bytes, x, inputs, out),
    }
}

#[inline(always)]
fn bf16(bytes: &[u8; 2]) -> f32 {
    bf16_to_f32(u16::from_le_bytes(*bytes))
}

#[inline(always)]
fn f32(bytes: &[u8; 4]) -> f32 {
    f32::from_le_bytes(*bytes)
}

#[inline(always)]
fn added<const FMA: bool>(a: f32, b: f32, sum: f32) -> f32 {
    if FMA { a.mul_add(b, sum) } else { a * b + sum }
}

/// Row by row, from the bytes as they are.
#[inline(always)]
fn few<const BYTES: usize, const FMA: bool>(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
    wide: impl Fn(&[u8; BYTES]) -> f32 + Copy,
) {
    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
        let (weights, few_weights) = row.as_chunks::<BYTES>().0.as_chunks::<LANES>();
        for (out, x) in out.iter_mut().zip(x.chunks_exact(inputs)) {
            let (x, few_x) = x.as_chunks::<LANES>();
            let mut sums = [0.0_f32; LANES];
            for (weights, x) in weights.iter().zip(x) {
                for lane in 0..LANES {
                    sums[lane] = added::<FMA>(wide(&weights[lane]), x[lane], sums[lane]);
                }
            }
            let rest: f32 = few_weights.iter().zip(few_x).map(|(weight, x)| wide(weight) * x).sum();
            out[number] = total(sums) + rest;
        }
    }
}

/// Row by row, by way of a tile of widened numbers.
#[inline(always)]
fn tiles<const FMA: bool>(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
) {
    let mut tile = [0.0_f32; 1024];
    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (at, bytes) in row.chunks(tile.len() * format.block_bytes()).enumerate() {
            let weights = &mut tile[..bytes.len() / format.block_bytes()];
            widen(format, bytes, weights);
            for (out, x) in out.iter_mut().zip(x.chunks_exact(inputs)) {
                let sum = dot::<FMA>(weights, &x[at * 1024..][..weights.len()]);
                out[number] = if at == 0 { sum } else { out[number] + sum };
            }
        }
    }
}

#[inline(always)]
fn dot<const FMA: bool>(weights: &[f32], x: &[f32]) -> f32 {
    let (weights, few_weights) = weights.as_chunks::<LANES>();
    let (x, few_x) = x.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (weights, x) in weights.iter().zip(x) {
        for lane in 0..LANES {
            sums[lane] = added::<FMA>(weights[lane], x[lane], sums[lane]);
        }
    }
    let rest: f32 = few_weights.iter().zip(few_x).map(|(weight, x)| weight * x).sum();
    total(sums) + rest
}

/// Halves are added to halves, so that the sum takes five steps and not thirty-one.
#[inline(always)]
fn total(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for at in 0..half {
            sums[at] += sums[at + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Sixteen rows at a time.
#[inline(always)]
fn many<const FMA: bool, const TILE: usize>(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
) {
    let columns = out.len();
    let mut panel = vec![[0.0_f32; PANEL]; DEPTH];
    let mut wide = [0.0_f32; DEPTH];
    let mut sums = vec![[0.0_f32; PANEL]; columns.next_multiple_of(TILE)];
    for (number, rows) in rows.chunks(PANEL * row_bytes).enumerate() {
        let count = rows.len() / row_bytes;
        sums.fill([0.0; PANEL]);
        for from in (0..inputs).step_by(DEPTH) {
            let depth = DEPTH.min(inputs - from);
            for (at, row) in rows.chunks_exact(row_bytes).enumerate() {
                let bytes = &row[from * format.block_bytes()..][..depth * format.block_bytes()];
                widen(format, bytes, &mut wide[..depth]);
                for (panel, number) in panel.iter_mut().zip(&wide[..depth]) {
                    panel[at] = *number;
                }
            }
            for (tile, sums) in sums.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
                // A column that is missing is the last one again: what it gets is not used.
                let x = std::array::from_fn(|column| {
                    let column = (tile * TILE + column).min(columns - 1);
                    &x[column * inputs + from..][..depth]
                });
                tile_product::<FMA, TILE>(&panel[..depth], x, sums);
            }
        }
        for (out, numbers) in out.iter_mut().zip(&sums) {
            out[number * PANEL..][..count].copy_from_slice(&numbers[..count]);
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls loops that count")]
fn tile_product<const FMA: bool, const TILE: usize>(
    panel: &[[f32; PANEL]],
    x: [&[f32]; TILE],
    sums: &mut [[f32; PANEL]; TILE],
) {
    let mut totals = *sums;
    let x = x.map(|x| &x[..panel.len()]);
    for (at, weights) in panel.iter().enumerate() {
        for column in 0..TILE {
            let number = x[column][at];
            for lane in 0..PANEL {
                totals[column][lane] = added::<FMA>(weights[lane], number, totals[column][lane]);
            }
        }
    }
    *sums = totals;
}
