//! Products of many columns of bf16 numbers with weights in BF16, by AVX-512's dot products of pairs (`vdpbf16ps`), which add up in f32.
//!
//! Thirty-two rows are interleaved at a time, two neighbouring numbers of each row side by side, and that panel is used for all columns. The products
//! of a pair are added in f32, then to the sum; numbers below 2⁻¹²⁶ count as zeros.

use std::arch::x86_64::*;

use crate::product::PANEL;
use crate::product::bf16_columns::{Bf16Columns, TILE};
use crate::product::dispatch::as_bf16;

/// Pairs of inputs of a panel: with the columns of a tile they fit into the first-level cache.
const DEPTH: usize = 128;
/// Rows that are multiplied with a tile at once: twice as many as a register holds, so that columns are read half as often.
const ROWS: usize = 2 * PANEL;

/// Thirty-two rows at a time. `rows` has rows of BF16 numbers, `out` a part of each column.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(in crate::product) fn many_columns(
    rows: &[u8],
    row_bytes: usize,
    x: &Bf16Columns,
    out: &mut [&mut [f32]],
) {
    let mut panel = [[[0_u32; PANEL]; 2]; DEPTH];
    let zeros = [[0.0_f32; ROWS]; TILE];
    let mut sums = vec![zeros; x.tiles().len()];
    for (number, rows) in rows.chunks(ROWS * row_bytes).enumerate() {
        let count = rows.len() / row_bytes;
        if count < ROWS {
            // What was left of the panel before belongs to no row.
            panel.fill([[0; PANEL]; 2]);
        }
        sums.fill(zeros);
        for from in (0..x.pairs()).step_by(DEPTH) {
            let depth = DEPTH.min(x.pairs() - from);
            for (at, row) in rows.chunks_exact(row_bytes).enumerate() {
                let (half, at) = (at / PANEL, at % PANEL);
                let (pairs, single) = row[4 * from..row_bytes.min(4 * (from + depth))].as_chunks();
                for (panel, pair) in panel.iter_mut().zip(pairs) {
                    panel[half][at] = u32::from_le_bytes(*pair);
                }
                if let [low, high] = single {
                    panel[pairs.len()][half][at] = u32::from_le_bytes([*low, *high, 0, 0]);
                }
            }
            for (x, sums) in x.tiles().zip(&mut sums) {
                tile_product(&panel[..depth], &x[from..from + depth], sums);
            }
        }
        for (out, numbers) in out.iter_mut().zip(sums.as_flattened()) {
            out[number * ROWS..][..count].copy_from_slice(&numbers[..count]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn tile_product(panel: &[[[u32; PANEL]; 2]], x: &[[u32; TILE]], sums: &mut [[f32; ROWS]; TILE]) {
    let mut totals = [[_mm512_setzero_ps(); 2]; TILE];
    for (weights, x) in panel.iter().zip(x) {
        let weights = [wide(&weights[0]), wide(&weights[1])];
        for column in 0..TILE {
            let pair = as_bf16(_mm512_set1_epi32(x[column].cast_signed()));
            let [first, second] = totals[column];
            totals[column] = [
                _mm512_dpbf16_ps(first, weights[0], pair),
                _mm512_dpbf16_ps(second, weights[1], pair),
            ];
        }
    }
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (sums, total) in sums.as_chunks_mut::<PANEL>().0.iter_mut().zip(totals) {
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(total));
            let numbers: [f32; PANEL] =
                bytemuck::cast([_mm512_castps512_ps256(total), _mm256_castpd_ps(high)]);
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum += number;
            }
        }
    }
}

/// Sixteen pairs of bf16 numbers.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn wide(pairs: &[u32; PANEL]) -> __m512bh {
    let [low, high]: [__m256i; 2] = bytemuck::cast(*pairs);
    as_bf16(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
}
