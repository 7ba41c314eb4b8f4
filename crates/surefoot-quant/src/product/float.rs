//! Products with F32, F16 and BF16 weights, in f32.

use crate::block::{BlockFormat, widen};

/// Sums kept apart so that they can be added up side by side.
const LANES: usize = 32;

/// Every kernel has a copy of it, compiled for its instructions.
#[inline(always)]
pub(super) fn multiply(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [f32],
) {
    let columns = x.len() / inputs;
    let mut tile = [0.0_f32; 1024];
    for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(columns)) {
        let tiles = row.chunks(tile.len() * format.block_bytes());
        for (at, bytes) in tiles.enumerate() {
            let weights = &mut tile[..bytes.len() / format.block_bytes()];
            widen(format, bytes, weights);
            for (out, x) in out.iter_mut().zip(x.chunks_exact(inputs)) {
                let sum = dot(weights, &x[at * 1024..][..weights.len()]);
                *out = if at == 0 { sum } else { *out + sum };
            }
        }
    }
}

#[inline(always)]
fn dot(weights: &[f32], x: &[f32]) -> f32 {
    let (weights, few_weights) = weights.as_chunks::<LANES>();
    let (x, few_x) = x.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (weights, x) in weights.iter().zip(x) {
        for lane in 0..LANES {
            sums[lane] += weights[lane] * x[lane];
        }
    }
    let rest: f32 = few_weights.iter().zip(few_x).map(|(weight, x)| weight * x).sum();
    sums.iter().sum::<f32>() + rest
}
