//! Products of F16 and BF16 rows with several columns, by AVX-512: some rows and some columns at a time, whose sums
//! the registers hold, so that each number that is loaded is used several times and rows need not be interleaved.
//!
//! A sum is that of `few_columns`, which multiplies row by row: 32 sums side by side, added up in the same order. So a column gives the bits that
//! it gives alone, however many there are. Numbers of BF16 rows lie in pairs, of which each vector of 32 bits has the first and the second: columns are
//! [`unzipped`] for them.
//!
//! All functions are safe. They need their instructions, so `dispatch` alone calls them.

#![allow(clippy::needless_range_loop, reason = "the compiler unrolls loops that count")]

use std::arch::x86_64::*;

use crate::block::BlockFormat;
use crate::product::dispatch::prefetch;

/// Rows and columns that are multiplied together: two vectors of sums for each pair take 24 of 32 registers.
const ROWS: usize = 4;
const COLUMNS: usize = 3;
/// The bytes of rows that are used for all columns before the next ones: they stay in the second-level cache.
const BLOCK: usize = 128 << 10;
/// Numbers of a row whose products go to sums of their own.
const RUN: usize = 32;

/// The product of `rows` with as many columns as `out` has.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
pub(in crate::product) fn multiply(
    format: BlockFormat,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
) {
    match format {
        BlockFormat::F16 => {
            blocks::<64, false>(rows, row_bytes, x, inputs, inputs, out, |run, half| {
                _mm512_cvtph_ps(bytemuck::cast(run.as_chunks::<32>().0[half]))
            });
        }
        _ => {
            let (x, padded) = (unzipped(x, inputs), inputs.next_multiple_of(RUN));
            let x = x.as_flattened();
            blocks::<64, true>(rows, row_bytes, x, padded, inputs, out, |run, half| {
                let [low, high]: [__m256i; 2] = bytemuck::cast(*run);
                let bits = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
                _mm512_castsi512_ps(match half {
                    0 => _mm512_slli_epi32::<16>(bits),
                    _ => _mm512_and_si512(bits, upper),
                })
            });
        }
    }
}

/// Columns of `inputs` numbers, filled up with zeros to runs, of each of which those with even places come first.
fn unzipped(x: &[f32], inputs: usize) -> Vec<[f32; RUN]> {
    let mut runs = Vec::with_capacity(x.len() / inputs * inputs.div_ceil(RUN));
    for column in x.chunks_exact(inputs) {
        for numbers in column.chunks(RUN) {
            let mut padded = [0.0; RUN];
            padded[..numbers.len()].copy_from_slice(numbers);
            runs.push(std::array::from_fn(|at| padded[2 * (at % 16) + at / 16]));
        }
    }
    runs
}

/// A vector of both halves: `bytemuck` knows vectors of 512 bits only with a feature that nothing else here needs.
#[target_feature(enable = "avx512f")]
#[inline]
fn both(low: __m256, high: __m256) -> __m512 {
    let low = _mm512_castps_pd(_mm512_castps256_ps512(low));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, _mm256_castps_pd(high)))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn sixteen(numbers: &[f32; 16]) -> __m512 {
    let [low, high]: [__m256; 2] = bytemuck::cast(*numbers);
    both(low, high)
}

/// `wide` makes a vector of a half of the `BYTES` of a run of weights: of the first sixteen or the others, or, where they are in `PAIRS`, of the first
/// or the second of each. A column has `of_column` numbers, in the same order, of which `inputs` are its own.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
#[inline]
fn blocks<const BYTES: usize, const PAIRS: bool>(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    of_column: usize,
    inputs: usize,
    out: &mut [&mut [f32]],
    wide: impl Fn(&[u8; BYTES], usize) -> __m512 + Copy,
) {
    let of_block = (BLOCK / row_bytes.max(1)).next_multiple_of(ROWS).max(ROWS);
    for (number, rows) in rows.chunks(of_block * row_bytes).enumerate() {
        let first = number * of_block;
        let place = Place { row_bytes, of_column, inputs, first, is_first: false };
        let parts = x.chunks(COLUMNS * of_column).zip(out.chunks_mut(COLUMNS));
        for (part, (x, out)) in parts.enumerate() {
            // The others find the rows in the cache.
            let place = Place { is_first: part == 0, ..place };
            match out.len() {
                1 => columns::<BYTES, PAIRS, 1>(rows, x, place, out, wide),
                2 => columns::<BYTES, PAIRS, 2>(rows, x, place, out, wide),
                _ => columns::<BYTES, PAIRS, COLUMNS>(rows, x, place, out, wide),
            }
        }
    }
}

/// Where numbers lie: the bytes of a row, the numbers of a column and how many of them are its own, the first row of a block, and whether its rows
/// are read for the first time.
#[derive(Clone, Copy)]
struct Place {
    row_bytes: usize,
    of_column: usize,
    inputs: usize,
    first: usize,
    is_first: bool,
}

/// The products of all `rows` with `N` columns. A function of its own: as a part of a larger one, the compiler keeps sums in memory.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
#[inline(never)]
fn columns<const BYTES: usize, const PAIRS: bool, const N: usize>(
    rows: &[u8],
    x: &[f32],
    place: Place,
    out: &mut [&mut [f32]],
    wide: impl Fn(&[u8; BYTES], usize) -> __m512 + Copy,
) {
    let Place { row_bytes, of_column, inputs, first, is_first } = place;
    let mut of_columns: [&[f32]; N] = [&[]; N];
    for (column, x) in of_columns.iter_mut().zip(x.chunks_exact(of_column)) {
        *column = x;
    }
    let together = rows.chunks_exact(ROWS * row_bytes);
    let (done, rest) = (together.len() * ROWS, together.remainder());
    for (at, of_tile) in together.enumerate() {
        let ahead = match is_first {
            true => &rows[(at + 1) * ROWS * row_bytes..],
            false => &[],
        };
        let rows = of_tile;
        let mut of_rows: [&[u8]; ROWS] = [&[]; ROWS];
        for (own, row) in of_rows.iter_mut().zip(rows.chunks_exact(row_bytes)) {
            *own = row;
        }
        let sums = tile::<BYTES, PAIRS, ROWS, N>(of_rows, ahead, of_columns, inputs, wide);
        for column in 0..N {
            let numbers: [f32; ROWS] = bytemuck::cast(four_totals(sums[column]));
            out[column][first + at * ROWS..][..ROWS].copy_from_slice(&numbers);
        }
    }
    for (at, row) in rest.chunks_exact(row_bytes).enumerate() {
        let sums = tile::<BYTES, PAIRS, 1, N>([row], &[], of_columns, inputs, wide);
        for column in 0..N {
            let ([one], zero) = (sums[column], _mm_setzero_ps());
            let [number, ..]: [f32; 4] = bytemuck::cast(four_totals([one, zero, zero, zero]));
            out[column][first + done + at] = number;
        }
    }
}

/// For each column and row, four sums that are left to add up.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
#[inline]
fn tile<const BYTES: usize, const PAIRS: bool, const R: usize, const N: usize>(
    rows: [&[u8]; R],
    ahead: &[u8],
    columns: [&[f32]; N],
    inputs: usize,
    wide: impl Fn(&[u8; BYTES], usize) -> __m512 + Copy,
) -> [[__m128; R]; N] {
    let runs = inputs / RUN;
    // All have as many runs: no index is checked again below.
    let mut of_rows: [&[[u8; BYTES]]; R] = [&[]; R];
    for row in 0..R {
        of_rows[row] = &rows[row].as_chunks::<BYTES>().0[..runs];
    }
    let mut of_columns: [&[[[f32; 16]; 2]]; N] = [&[]; N];
    for column in 0..N {
        of_columns[column] = &columns[column].as_chunks::<16>().0.as_chunks::<2>().0[..runs];
    }
    let zeros = [[_mm512_setzero_ps(); R]; N];
    let (mut first, mut second) = (zeros, zeros);
    let of_run = R * BYTES / 64;
    for run in 0..runs {
        for line in ahead.as_chunks::<64>().0.iter().skip(run * of_run).take(of_run) {
            prefetch(line);
        }
        let (mut weights, mut numbers) = ([_mm512_setzero_ps(); R], [_mm512_setzero_ps(); N]);
        for row in 0..R {
            weights[row] = wide(&of_rows[row][run], 0);
        }
        for column in 0..N {
            numbers[column] = sixteen(&of_columns[column][run][0]);
        }
        first = added(first, weights, numbers);
        for row in 0..R {
            weights[row] = wide(&of_rows[row][run], 1);
        }
        for column in 0..N {
            numbers[column] = sixteen(&of_columns[column][run][1]);
        }
        second = added(second, weights, numbers);
    }
    if inputs > runs * RUN {
        let sums = [first, second];
        [first, second] = with_rest::<BYTES, PAIRS, R, N>(sums, rows, columns, runs, wide);
    }
    let mut folded = [[_mm_setzero_ps(); R]; N];
    for column in 0..N {
        for row in 0..R {
            let (first, second) = (first[column][row], second[column][row]);
            let eight = match PAIRS {
                true => halves(_mm512_add_ps(first, second)),
                false => _mm256_add_ps(halves(first), halves(second)),
            };
            let (low, high) = (_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            folded[column][row] = _mm_add_ps(low, high);
        }
    }
    folded
}

/// Adds the products of what is behind the last run, which zeros fill up. Pairs of the second half are added to the sums of the first half, as
/// `few_columns` does.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
#[inline(never)]
fn with_rest<const BYTES: usize, const PAIRS: bool, const R: usize, const N: usize>(
    mut sums: [[[__m512; R]; N]; 2],
    rows: [&[u8]; R],
    columns: [&[f32]; N],
    runs: usize,
    wide: impl Fn(&[u8; BYTES], usize) -> __m512 + Copy,
) -> [[[__m512; R]; N]; 2] {
    let mut weights = [[_mm512_setzero_ps(); R]; 2];
    for row in 0..R {
        let rest = filled(rows[row], runs * BYTES);
        (weights[0][row], weights[1][row]) = (wide(&rest, 0), wide(&rest, 1));
    }
    for part in 0..if PAIRS { 2 } else { 1 } {
        for half in 0..2 {
            let mut numbers = [_mm512_setzero_ps(); N];
            for column in 0..N {
                numbers[column] = sixteen(&filled(columns[column], runs * RUN + 16 * half));
            }
            let mut weights = weights[half];
            if PAIRS {
                // A half's eight pairs, in the lower lanes.
                for weights in &mut weights {
                    *weights = lower(*weights, part);
                }
                for numbers in &mut numbers {
                    *numbers = lower(*numbers, part);
                }
            }
            sums[half] = added(sums[half], weights, numbers);
        }
    }
    sums
}

/// One half of a vector, in its lower half; zeros in the upper one.
#[target_feature(enable = "avx2,avx512f")]
#[inline]
fn lower(numbers: __m512, half: usize) -> __m512 {
    let numbers = _mm512_castps_pd(numbers);
    let half = match half {
        0 => _mm512_castpd512_pd256(numbers),
        _ => _mm512_extractf64x4_pd::<1>(numbers),
    };
    both(_mm256_castpd_ps(half), _mm256_setzero_ps())
}

/// `sums` and the products of each column with each row.
#[target_feature(enable = "avx2,fma,avx512f")]
#[inline]
fn added<const R: usize, const N: usize>(
    mut sums: [[__m512; R]; N],
    weights: [__m512; R],
    numbers: [__m512; N],
) -> [[__m512; R]; N] {
    for column in 0..N {
        for row in 0..R {
            sums[column][row] = _mm512_fmadd_ps(weights[row], numbers[column], sums[column][row]);
        }
    }
    sums
}

/// As many numbers as there are from a place on, and zeros.
#[inline]
fn filled<T: Copy + Default, const N: usize>(numbers: &[T], from: usize) -> [T; N] {
    let rest = numbers.get(from..).unwrap_or_default();
    let mut filled = [T::default(); N];
    let count = rest.len().min(N);
    filled[..count].copy_from_slice(&rest[..count]);
    filled
}

/// The lower half and the upper half, added.
#[target_feature(enable = "avx2,avx512f")]
#[inline]
fn halves(sums: __m512) -> __m256 {
    let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(sums)));
    _mm256_add_ps(_mm512_castps512_ps256(sums), high)
}

/// The sum of each of four vectors.
#[target_feature(enable = "sse3")]
#[inline]
fn four_totals([a, b, c, d]: [__m128; ROWS]) -> __m128 {
    _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d))
}
