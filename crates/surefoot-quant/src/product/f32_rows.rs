//! Products with F32 weights, with any number of columns: some rows at a time, and [`WIDE`] columns side by side.
//!
//! The terms of a number are added up one after the other, in blocks of the depth ([`depth_blocks`]) whose sums are added in
//! turn. `surefoot_kernels::dense`, which is faster with many columns, does the same, so a column gives the same bits with
//! either, however many there are beside it. Each weight is read once for all columns that are side by side, and those of
//! the next rows are fetched meanwhile.
//!
//! [`dispatch`](super::dispatch) alone calls it, from functions that are compiled for instructions with fused products.

use std::ops::Range;

/// Rows that are multiplied together: with as many sums, products wait for no other.
const ROWS: usize = 12;
/// Columns side by side: a vector.
const WIDE: usize = 8;
/// Numbers of a row in a line of the cache.
const LINE: usize = 16;

/// Numbers of the depth whose blocks have the same length: of so many, a tile of dense products of any sort fits the memory for it.
pub const DEEP: usize = (2 << 20) / 32;
/// Numbers of the depth in a block, at most: a panel of dense products that is as deep stays in the first-level cache.
const BLOCK: usize = 256;

/// How many numbers the blocks of up to [`DEEP`] have, all but the last.
pub fn block_of(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(BLOCK).max(1)).max(1)
}

/// The blocks of a depth. A kernel for products in f32 that adds the terms of a block one after the other, with fused products,
/// and then the sums of the blocks gives the bits of all others that do.
pub fn depth_blocks(depth: usize) -> impl Iterator<Item = Range<usize>> {
    (0..depth).step_by(DEEP).flat_map(move |from| {
        let end = depth.min(from + DEEP);
        let block = block_of(end - from);
        (from..end).step_by(block).map(move |from| from..end.min(from + block))
    })
}

/// `fetch` asks for bytes that are read soon.
#[inline(always)]
pub(super) fn multiply(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
    fetch: impl Fn(&[u8]) + Copy,
) {
    let all: Vec<Vec<[f32; WIDE]>> =
        x.chunks(WIDE * inputs).map(|x| side_by_side(x, inputs)).collect();
    for (number, tile) in rows.chunks(ROWS * row_bytes).enumerate() {
        let count = tile.len() / row_bytes;
        // Rows that are missing are the last one again: what they give is not used.
        let mut of_rows: [&[[u8; 4]]; ROWS] = [&[]; ROWS];
        for (at, row) in of_rows.iter_mut().enumerate() {
            *row = &tile[at.min(count - 1) * row_bytes..][..row_bytes].as_chunks::<4>().0[..inputs];
        }
        let mut ahead = &rows[rows.len().min((number + 1) * ROWS * row_bytes)..];
        for (x, out) in all.iter().zip(out.chunks_mut(WIDE)) {
            let sums = tile_of(&of_rows, ahead, x, fetch);
            // The other columns find the next rows in the cache.
            ahead = &[];
            for (column, out) in out.iter_mut().enumerate() {
                for (out, sums) in out[number * ROWS..][..count].iter_mut().zip(&sums) {
                    *out = sums[column];
                }
            }
        }
    }
}

/// Up to [`WIDE`] columns of `inputs` numbers, side by side; those that are missing are zeros.
fn side_by_side(x: &[f32], inputs: usize) -> Vec<[f32; WIDE]> {
    let mut numbers = vec![[0.0; WIDE]; inputs];
    for (column, x) in x.chunks_exact(inputs).enumerate() {
        for (numbers, x) in numbers.iter_mut().zip(x) {
            numbers[column] = *x;
        }
    }
    numbers
}

/// The products of [`ROWS`] rows with [`WIDE`] columns.
#[inline(always)]
fn tile_of(
    rows: &[&[[u8; 4]]; ROWS],
    ahead: &[u8],
    x: &[[f32; WIDE]],
    fetch: impl Fn(&[u8]),
) -> [[f32; WIDE]; ROWS] {
    let mut totals = [[0.0_f32; WIDE]; ROWS];
    for range in depth_blocks(x.len()) {
        let mut sums = [[0.0_f32; WIDE]; ROWS];
        let (lines, rest) = x[range.clone()].as_chunks::<LINE>();
        let mut of_rows: [&[[[u8; 4]; LINE]]; ROWS] = [&[]; ROWS];
        for (own, row) in of_rows.iter_mut().zip(rows) {
            // All have as many lines: no index is checked again below.
            *own = &row[range.clone()].as_chunks::<LINE>().0[..lines.len()];
        }
        for (at, x) in lines.iter().enumerate() {
            let next = 4 * ROWS * (range.start + at * LINE);
            fetch(&ahead[next.min(ahead.len())..(next + 4 * ROWS * LINE).min(ahead.len())]);
            for (place, x) in x.iter().enumerate() {
                for (sums, row) in sums.iter_mut().zip(&of_rows) {
                    added(sums, f32::from_le_bytes(row[at][place]), x);
                }
            }
        }
        for (place, x) in rest.iter().enumerate() {
            let place = range.start + lines.len() * LINE + place;
            for (sums, row) in sums.iter_mut().zip(rows) {
                added(sums, f32::from_le_bytes(row[place]), x);
            }
        }
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total += sum;
            }
        }
    }
    totals
}

#[inline(always)]
fn added(sums: &mut [f32; WIDE], weight: f32, x: &[f32; WIDE]) {
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum = weight.mul_add(*x, *sum);
    }
}
