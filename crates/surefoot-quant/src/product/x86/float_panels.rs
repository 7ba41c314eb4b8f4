//! Products of F16 and BF16 rows with more than a few columns by AVX2, packed in panels (`FloatColumns`): the registers hold the sums of
//! some rows with a line of a panel. A number of a row is broadcast to all columns of a panel, a line of columns is used for all rows.
//!
//! Some rows at a time are widened to f32, a run of inputs after the other, and used for all columns. The terms of a sum are added in
//! the order of the inputs, a run's sum at a time, so that neither the number of columns nor that of threads changes a bit; but the bits are
//! not those that `few_columns` gives. AVX-512 has registers enough to multiply columns as they lie (`float_tiles`).
//!
//! All functions are safe. They need their instructions, so `dispatch` alone calls them.

#![allow(clippy::needless_range_loop, reason = "the compiler unrolls loops that count")]

use std::arch::x86_64::*;

use crate::block::{BlockFormat, widen};
use crate::product::float_columns::{FloatColumns, LINE, Panel};

/// Rows that are widened at once. Those of a tile go into it.
const ROWS: usize = 48;
/// Inputs that are widened at once: with a panel's they stay in the second-level cache.
const RUN: usize = 512;
/// Numbers between the widened rows, which would push each other out of the first-level cache if they were a power of two apart.
const GAP: usize = 16;

/// A row of a run, widened.
type WideRow = [f32; RUN + GAP];

/// Widens rows, hands each run of them to `multiply` with the panel and its sums, and writes the sums to their columns.
#[inline(always)]
fn runs(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &FloatColumns,
    out: &mut [&mut [f32]],
    multiply: impl Fn(&[WideRow], usize, Panel<'_>, &mut [[f32; LINE]]),
) {
    let mut wide = vec![[0.0; RUN + GAP]; ROWS];
    let mut sums = vec![[0.0; LINE]; ROWS * x.lines()];
    for (number, rows) in rows.chunks(ROWS * row_bytes).enumerate() {
        let count = rows.len() / row_bytes;
        sums.fill([0.0; LINE]);
        for from in (0..x.inputs()).step_by(RUN) {
            let run = RUN.min(x.inputs() - from);
            let bytes = from * format.block_bytes()..(from + run) * format.block_bytes();
            for (row, wide) in rows.chunks_exact(row_bytes).zip(&mut wide) {
                widen(format, &row[bytes.clone()], &mut wide[..run]);
            }
            for panel in x.panels() {
                let of = panel.first * ROWS..(panel.first + panel.width) * ROWS;
                let numbers = &panel.numbers[from * panel.width..][..run * panel.width];
                multiply(&wide, count, Panel { numbers, ..panel }, &mut sums[of]);
            }
        }
        for panel in x.panels() {
            let sums = &sums[panel.first * ROWS..][..panel.width * ROWS];
            for line in 0..panel.width {
                let columns = out.iter_mut().skip((panel.first + line) * LINE).take(LINE);
                for (lane, out) in columns.enumerate() {
                    let out = &mut out[number * ROWS..][..count];
                    for (number, sums) in
                        out.iter_mut().zip(sums[line..].iter().step_by(panel.width))
                    {
                        *number = sums[lane];
                    }
                }
            }
        }
    }
}

/// Rows of a tile: twelve of sixteen registers hold its sums with a line.
const TILE: usize = 6;

/// The product of `rows` with the columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::product) fn multiply(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &FloatColumns,
    out: &mut [&mut [f32]],
) {
    runs(format, rows, row_bytes, x, out, |wide, count, panel, sums| match panel.width {
        1 => tiles::<1>(wide, count, panel.numbers, sums),
        2 => tiles::<2>(wide, count, panel.numbers, sums),
        _ => tiles::<3>(wide, count, panel.numbers, sums),
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn tiles<const WIDTH: usize>(
    wide: &[WideRow],
    count: usize,
    panel: &[[f32; LINE]],
    sums: &mut [[f32; LINE]],
) {
    let panel = panel.as_chunks::<WIDTH>().0;
    let (rows, sums) = (wide.as_chunks::<TILE>().0, sums.as_chunks_mut::<WIDTH>().0);
    let tiles = rows.iter().zip(sums.as_chunks_mut::<TILE>().0);
    for (rows, sums) in tiles.take(count.div_ceil(TILE)) {
        for line in 0..WIDTH {
            tile(rows, panel, line, sums);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile<const WIDTH: usize>(
    rows: &[WideRow; TILE],
    panel: &[[[f32; LINE]; WIDTH]],
    line: usize,
    sums: &mut [[[f32; LINE]; WIDTH]; TILE],
) {
    let mut totals = [[_mm256_setzero_ps(); 2]; TILE];
    let panel = &panel[..panel.len().min(RUN)];
    for (at, lines) in panel.iter().enumerate() {
        let numbers: [__m256; 2] = bytemuck::cast(lines[line]);
        for row in 0..TILE {
            let weight = _mm256_set1_ps(rows[row][at]);
            for half in 0..2 {
                totals[row][half] = _mm256_fmadd_ps(weight, numbers[half], totals[row][half]);
            }
        }
    }
    for row in 0..TILE {
        let mut sum: [__m256; 2] = bytemuck::cast(sums[row][line]);
        for half in 0..2 {
            sum[half] = _mm256_add_ps(sum[half], totals[row][half]);
        }
        sums[row][line] = bytemuck::cast(sum);
    }
}
