//! Some rows of a product, on one core: tiles of as many sums as there are registers for.
//!
//! The tiles are written for vectors of 4, 8 or 16 numbers; `Arch::Scalar` has none and stops the program, so callers have asked
//! [`has_vectors`](crate::processor::has_vectors). `finish` is called once for each row, when all of its columns that the panels hold are
//! complete. Rows and panels must have been made for the same `Arch`. Only this crate calls it: [`super::multiply`], convolutions and
//! attention.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::View;
use super::pack::{LINE, Line, Panels};
use crate::math::{by_lanes, copied};

/// Columns whose panels stay in the second-level cache while a task's rows go over them.
const GROUP: usize = 512;

/// Rows and columns whose sums are made at once.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: usize,
    /// Columns, in lines.
    pub(super) lines: usize,
}

impl Tile {
    pub(super) fn columns(self) -> usize {
        self.lines * LINE
    }
}

/// The tile of a processor's registers: 24 of 32 of the widest sort hold sums, 12 of the 16 of AVX2, and 24 of NEON's 32.
pub(super) fn tile(arch: Arch) -> Tile {
    struct Ask;
    impl WithSimd for Ask {
        type Output = Tile;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> Tile {
            by_lanes!(
                S,
                16 => Tile { rows: 12, lines: 2 },
                8 => Tile { rows: 6, lines: 1 },
                4 => Tile { rows: 6, lines: 1 },
            )
        }
    }
    arch.dispatch(Ask)
}

/// Rows of the left side.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) a: View<'a>,
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

/// Some rows of a product and where they go.
pub(crate) struct Rows<'a> {
    pub(crate) part: Part<'a>,
    pub(crate) panels: &'a Panels,
    /// Numbers from one row of `out` to the next.
    pub(crate) step: usize,
    /// Where in a row of `out` the panels' columns begin.
    pub(crate) column: usize,
    /// Whether the product is added to what is there.
    pub(crate) add: bool,
    pub(crate) out: &'a mut [f32],
}

impl Rows<'_> {
    /// Fills the rows. `finish` is given rows when they are complete, and the number of the first.
    pub(crate) fn fill(self, arch: Arch, finish: impl Fn(usize, &mut [f32])) {
        let (depth, columns) = (0..self.panels.depth, self.panels.columns);
        arch.dispatch(Work { rows: self, depth, columns, finish });
    }

    /// The same with a part of the depth, and the first `columns`.
    pub(crate) fn fill_part(self, arch: Arch, depth: Range<usize>, columns: usize) {
        arch.dispatch(Work { rows: self, depth, columns, finish: |_: usize, _: &mut [f32]| () });
    }
}

struct Work<'a, F> {
    rows: Rows<'a>,
    depth: Range<usize>,
    columns: usize,
    finish: F,
}

impl<F: Fn(usize, &mut [f32])> WithSimd for Work<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        by_lanes!(
            S,
            16 => blocks::<S, F, 12, 2, 2>(simd, self),
            8 => blocks::<S, F, 6, 1, 2>(simd, self),
            4 => blocks::<S, F, 6, 1, 4>(simd, self),
        )
    }
}

#[inline(always)]
fn blocks<
    S: Simd,
    F: Fn(usize, &mut [f32]),
    const ROWS: usize,
    const LINES: usize,
    const WIDE: usize,
>(
    simd: S,
    work: Work<'_, F>,
) {
    let Work { rows: Rows { part, panels, step, column, add, out }, depth, columns, finish } = work;
    let tiles = part.rows.div_ceil(ROWS);
    let mut packed = vec![0f32; if part.a.transposed { tiles * ROWS * panels.block } else { 0 }];
    let count = columns.div_ceil(LINES * LINE);
    let group = GROUP / (LINES * LINE);
    let mut from = depth.start;
    while from < depth.end {
        // Blocks end where the panels' do.
        let range = from..((from / panels.block + 1) * panels.block).min(depth.end);
        let add = add || from > depth.start;
        let is_last = range.end == depth.end;
        if part.a.transposed {
            pack_transposed::<ROWS>(part, &range, &mut packed);
        }
        for start in (0..count).step_by(group) {
            let end = (start + group).min(count);
            for (at, out) in out.chunks_mut(ROWS * step).enumerate().take(tiles) {
                let have = ROWS.min(part.rows - at * ROWS);
                let first = part.first + at * ROWS;
                for panel in start..end {
                    let b = panels.panel(panel, &range);
                    let sums = match part.a.transposed {
                        true => {
                            let a = &packed[at * ROWS * range.len()..][..ROWS * range.len()];
                            packed_tile::<S, ROWS, LINES, WIDE>(simd, a, b)
                        }
                        false => {
                            // Rows past the last are copies of it, which nobody reads.
                            let row = |nth: usize| (first + nth.min(have - 1)) * part.a.step;
                            let mut a: [&[f32]; ROWS] = [&[]; ROWS];
                            for (nth, numbers) in a.iter_mut().enumerate() {
                                *numbers = &part.a.numbers[row(nth) + range.start..][..range.len()];
                            }
                            tile_of::<S, ROWS, LINES, WIDE>(simd, &a, b)
                        }
                    };
                    let wide = (LINES * LINE).min(columns - panel * LINES * LINE);
                    let out = &mut out[column + panel * LINES * LINE..];
                    store::<S, ROWS, WIDE>(simd, &sums, out, have, step, wide, add);
                }
                if is_last && end == count {
                    finish(first, &mut out[..have * step]);
                }
            }
        }
        from = range.end;
    }
}

/// Packs the rows of a matrix whose columns lie side by side, tile by tile.
#[inline(always)]
fn pack_transposed<const ROWS: usize>(part: Part<'_>, range: &Range<usize>, to: &mut [f32]) {
    for (tile, to) in to.chunks_exact_mut(ROWS * range.len()).enumerate() {
        let first = tile * ROWS;
        if first >= part.rows {
            break;
        }
        let have = ROWS.min(part.rows - first);
        for (p, to) in range.clone().zip(to.chunks_exact_mut(ROWS)) {
            let numbers = &part.a.numbers[p * part.a.step + part.first + first..];
            match have == ROWS {
                true => to.copy_from_slice(&numbers[..ROWS]),
                false => to[..have].copy_from_slice(&numbers[..have]),
            }
        }
    }
}

/// What goes into a tile's sums at one number of the depth.
#[inline(always)]
fn vectors<S: Simd, const WIDE: usize>(simd: S, lines: &[Line]) -> [S::f32s; WIDE] {
    let mut numbers = [simd.splat_f32s(0.0); WIDE];
    let each = LINE / S::F32_LANES;
    for (nth, line) in lines.iter().enumerate() {
        let (vectors, _) = S::as_simd_f32s(&line.0);
        for at in 0..each {
            numbers[nth * each + at] = vectors[at];
        }
    }
    numbers
}

/// Rows that are read where they are, each as long as the panel is deep.
#[inline(always)]
fn tile_of<S: Simd, const ROWS: usize, const LINES: usize, const WIDE: usize>(
    simd: S,
    a: &[&[f32]; ROWS],
    b: &[Line],
) -> [[S::f32s; WIDE]; ROWS] {
    let mut sums = [[simd.splat_f32s(0.0); WIDE]; ROWS];
    let (b, _) = b.as_chunks::<LINES>();
    let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
    for (row, a) in rows.iter_mut().zip(a) {
        *row = &a[..b.len()];
    }
    for (p, b) in b.iter().enumerate() {
        let numbers = vectors::<S, WIDE>(simd, b);
        for nth in 0..ROWS {
            let weight = simd.splat_f32s(rows[nth][p]);
            for at in 0..WIDE {
                sums[nth][at] = simd.mul_add_f32s(weight, numbers[at], sums[nth][at]);
            }
        }
    }
    copied(&sums)
}

/// Rows that were packed side by side.
#[inline(always)]
fn packed_tile<S: Simd, const ROWS: usize, const LINES: usize, const WIDE: usize>(
    simd: S,
    a: &[f32],
    b: &[Line],
) -> [[S::f32s; WIDE]; ROWS] {
    let mut sums = [[simd.splat_f32s(0.0); WIDE]; ROWS];
    let ((a, _), (b, _)) = (a.as_chunks::<ROWS>(), b.as_chunks::<LINES>());
    for (a, b) in a.iter().zip(b) {
        let numbers = vectors::<S, WIDE>(simd, b);
        for nth in 0..ROWS {
            let weight = simd.splat_f32s(a[nth]);
            for at in 0..WIDE {
                sums[nth][at] = simd.mul_add_f32s(weight, numbers[at], sums[nth][at]);
            }
        }
    }
    copied(&sums)
}

#[inline(always)]
fn store<S: Simd, const ROWS: usize, const WIDE: usize>(
    simd: S,
    sums: &[[S::f32s; WIDE]; ROWS],
    out: &mut [f32],
    rows: usize,
    step: usize,
    wide: usize,
    add: bool,
) {
    let whole = wide == WIDE * S::F32_LANES;
    for (sums, out) in sums.iter().zip(out.chunks_mut(step)).take(rows) {
        let out = &mut out[..wide];
        if whole {
            let (out, _) = S::as_mut_simd_f32s(out);
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if add { simd.add_f32s(*out, *sum) } else { *sum };
            }
        } else {
            let sums: &[f32] = pulp::bytemuck::cast_slice(sums);
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if add { *out + *sum } else { *sum };
            }
        }
    }
}
