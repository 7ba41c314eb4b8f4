//! Products of many columns of bf16 numbers with weights in BF16, by AVX-512's dot products of pairs (`vdpbf16ps`), which add up in f32.
//!
//! Sixteen rows are interleaved at a time, two neighbouring numbers of each row side by side, and that panel is used for all columns. The products
//! of a pair are added in f32, then to the sum; numbers below 2⁻¹²⁶ count as zeros.

use std::arch::x86_64::*;

use crate::product::PANEL;
use crate::product::bf16_columns::{Bf16Columns, TILE};
use crate::product::dispatch::as_bf16;

/// Pairs of inputs of a panel: with the columns of a tile they fit into the first-level cache.
const DEPTH: usize = 128;

/// Sixteen rows at a time. `rows` has rows of BF16 numbers, `out` a part of each column.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(in crate::product) fn many_columns(
    rows: &[u8],
    row_bytes: usize,
    x: &Bf16Columns,
    out: &mut [&mut [f32]],
) {
    let mut panel = [[0_u32; PANEL]; DEPTH];
    let zeros = [[0.0_f32; PANEL]; TILE];
    let mut sums = vec![zeros; x.tiles().len()];
    for (number, rows) in rows.chunks(PANEL * row_bytes).enumerate() {
        let count = rows.len() / row_bytes;
        if count < PANEL {
            // What was left of the panel before belongs to no row.
            panel.fill([0; PANEL]);
        }
        sums.fill(zeros);
        for from in (0..x.pairs()).step_by(DEPTH) {
            let depth = DEPTH.min(x.pairs() - from);
            for (at, row) in rows.chunks_exact(row_bytes).enumerate() {
                let (pairs, single) = row[4 * from..row_bytes.min(4 * (from + depth))].as_chunks();
                for (panel, pair) in panel.iter_mut().zip(pairs) {
                    panel[at] = u32::from_le_bytes(*pair);
                }
                if let [low, high] = single {
                    panel[pairs.len()][at] = u32::from_le_bytes([*low, *high, 0, 0]);
                }
            }
            for (x, sums) in x.tiles().zip(&mut sums) {
                tile_product(&panel[..depth], &x[from..from + depth], sums);
            }
        }
        for (out, numbers) in out.iter_mut().zip(sums.as_flattened()) {
            out[number * PANEL..][..count].copy_from_slice(&numbers[..count]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn tile_product(panel: &[[u32; PANEL]], x: &[[u32; TILE]], sums: &mut [[f32; PANEL]; TILE]) {
    let mut totals = [_mm512_setzero_ps(); TILE];
    for (weights, x) in panel.iter().zip(x) {
        let [low, high]: [__m256i; 2] = bytemuck::cast(*weights);
        let weights = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        for column in 0..TILE {
            let pair = _mm512_set1_epi32(x[column].cast_signed());
            totals[column] = _mm512_dpbf16_ps(totals[column], as_bf16(weights), as_bf16(pair));
        }
    }
    for (sums, total) in sums.iter_mut().zip(totals) {
        let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(total));
        let numbers: [f32; PANEL] =
            bytemuck::cast([_mm512_castps512_ps256(total), _mm256_castpd_ps(high)]);
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum += number;
        }
    }
}
