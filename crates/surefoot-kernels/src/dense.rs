//! Products of matrices of which neither is small: `out = a · b` in f32, on the CPU.
//!
//! `b` is packed in panels as wide as a tile (`pack`), in pieces that fit into a cache, since each of its numbers is
//! used by every row of `a`. Rows of `a` are read where they are; only an `a` that lies column by column is packed, a
//! task's rows at a time (`kernel`). What comes after a product (a bias, a residual connection) is done to rows that are
//! still in the cache: the `finish` of [`multiply`].
//!
//! The terms of each number are added in an order that depends on the depth alone ([`surefoot_quant::product::depth_blocks`]), so
//! neither the number of threads nor the number of rows and columns changes a bit, and products of few columns give the same.

mod kernel;
mod pack;

use pulp::Arch;
use rayon::prelude::*;
use surefoot_quant::product::DEEP;

use crate::WORTH_SPLITTING;
use crate::processor::arch;

pub(crate) use kernel::{Part, Rows};
pub(crate) use pack::Panels;

/// A matrix as it lies in memory, from its first number on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) numbers: &'a [f32],
    /// Numbers from one row to the next; of a transposed matrix, from one column to the next.
    pub(crate) step: usize,
    /// Whether columns, not rows, lie side by side.
    pub(crate) transposed: bool,
}

impl<'a> View<'a> {
    /// Rows one after the other.
    pub fn rows(numbers: &'a [f32], step: usize) -> Self {
        Self { numbers, step, transposed: false }
    }

    /// What [`rows`](Self::rows) gives, transposed.
    pub fn columns(numbers: &'a [f32], step: usize) -> Self {
        Self { numbers, step, transposed: true }
    }

    /// Without the first rows.
    fn skip_rows(self, rows: usize) -> Self {
        let first = if self.transposed { rows } else { rows * self.step };
        Self { numbers: &self.numbers[first..], ..self }
    }

    /// Without the first columns.
    fn skip_columns(self, columns: usize) -> Self {
        let first = if self.transposed { columns * self.step } else { columns };
        Self { numbers: &self.numbers[first..], ..self }
    }
}

/// Rows, depth and columns of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of the left side and of the product.
    pub rows: usize,
    /// Columns of the left side and rows of the right one: the terms of each number.
    pub depth: usize,
    /// Columns of the right side and of the product.
    pub columns: usize,
}

/// Numbers of `b` that are packed at once.
const AT_ONCE: usize = 2 << 20;
/// Parts for each thread, so that one which is kept waiting doesn't keep the others.
const PARTS: usize = 8;

/// Fills `out`, row after row, with `a · b`. `finish` is given rows that are complete, each of them once, and the number of the first.
/// The caller knows that there are vectors ([`has_vectors`](crate::processor::has_vectors)) and that the sizes are those of `a`, `b` and `out`.
#[inline]
pub fn multiply(
    sizes: Sizes,
    a: View<'_>,
    b: View<'_>,
    out: &mut [f32],
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    multiply_with(arch(), sizes, a, b, out, finish);
}

fn multiply_with(
    arch: Arch,
    sizes: Sizes,
    a: View<'_>,
    b: View<'_>,
    out: &mut [f32],
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    let Sizes { rows, depth, columns } = sizes;
    if rows * columns == 0 {
        return;
    }
    if depth == 0 {
        out.fill(0.0);
        finish(0, out);
        return;
    }
    let tile = kernel::tile(arch);
    let wide = (AT_ONCE / depth.min(DEEP)).next_multiple_of(tile.columns()).min(columns);
    let splits = rows * depth * columns >= WORTH_SPLITTING;
    let part = match splits {
        true => rows.div_ceil(PARTS * rayon::current_num_threads()).next_multiple_of(tile.rows),
        false => rows,
    };
    let mut panels = Panels::take();
    let pieces = (0..columns)
        .step_by(wide)
        .flat_map(|first| (0..depth).step_by(DEEP).map(move |from| (first, from)));
    for (first, from) in pieces {
        let (count, deep) = (wide.min(columns - first), DEEP.min(depth - from));
        panels.pack(arch, b.skip_rows(from), deep, first..first + count, splits);
        let (panels, a) = (&panels, a.skip_columns(from));
        let is_last = first + count == columns && from + deep == depth;
        let work = |(at, out): (usize, &mut [f32])| {
            let part = Part { a, first: at * part, rows: out.len() / columns };
            let rows = Rows { part, panels, step: columns, column: first, add: from > 0, out };
            rows.fill(arch, |row, out| {
                if is_last {
                    finish(row, out);
                }
            });
        };
        match part < rows {
            true => out.par_chunks_mut(part * columns).enumerate().for_each(work),
            false => work((0, out)),
        }
    }
    panels.give_back();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::archs;
    use proptest::prelude::*;

    /// Small integers, so that every order of sums gives the same.
    fn numbers(count: usize, from: usize) -> Vec<f32> {
        (0..count).map(move |at| ((at * 7 + at / 5 + from) % 9) as f32 - 4.0).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn a_product_is_what_the_numbers_say(
            rows in 1_usize..80,
            depth in 1_usize..700,
            columns in 1_usize..90,
            a_transposed in any::<bool>(),
            b_transposed in any::<bool>(),
            seed in 0_usize..1000,
        ) {
            let (a, b) = (numbers(rows * depth, seed), numbers(depth * columns, seed + 3));
            let at = |row: usize, p: usize| if a_transposed { a[p * rows + row] } else { a[row * depth + p] };
            let bt = |p: usize, column: usize| {
                if b_transposed { b[column * depth + p] } else { b[p * columns + column] }
            };
            let mut right = vec![0.0; rows * columns];
            for row in 0..rows {
                for column in 0..columns {
                    let terms = (0..depth).map(|p| at(row, p) * bt(p, column));
                    right[row * columns + column] = terms.sum::<f32>() + row as f32;
                }
            }
            let a = View { numbers: &a, step: if a_transposed { rows } else { depth }, transposed: a_transposed };
            let b = View { numbers: &b, step: if b_transposed { depth } else { columns }, transposed: b_transposed };
            for arch in archs() {
                let mut out = vec![f32::NAN; rows * columns];
                multiply_with(arch, Sizes { rows, depth, columns }, a, b, &mut out, |first, out| {
                    for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                        out.iter_mut().for_each(|number| *number += (first + row) as f32);
                    }
                });
                prop_assert_eq!(&out, &right, "{:?}", arch);
            }
        }
    }

    /// Compares with what the numbers say where a product takes more than one piece of `b`. `finish` adds 1 to each number, once.
    fn check_pieces(Sizes { rows, depth, columns }: Sizes) {
        // 0 and 1, so that every order of sums gives the same.
        let pattern = |count: usize, from: usize| {
            (0..count).map(move |at| ((at * 7 + at / 5 + from) % 3 % 2) as f32)
        };
        let a: Vec<f32> = pattern(rows * depth, 1).collect();
        let b: Vec<f32> = pattern(depth * columns, 2).collect();
        for transposed in [false, true] {
            let mut right = vec![1.0; rows * columns];
            for (row, right) in right.chunks_exact_mut(columns).enumerate() {
                for p in 0..depth {
                    let weight = if transposed { a[p * rows + row] } else { a[row * depth + p] };
                    for (column, right) in right.iter_mut().enumerate() {
                        let at = if transposed { column * depth + p } else { p * columns + column };
                        *right += weight * b[at];
                    }
                }
            }
            let a = View { numbers: &a, step: if transposed { rows } else { depth }, transposed };
            let b =
                View { numbers: &b, step: if transposed { depth } else { columns }, transposed };
            for arch in archs() {
                let mut out = vec![f32::NAN; rows * columns];
                multiply_with(arch, Sizes { rows, depth, columns }, a, b, &mut out, |_, out| {
                    out.iter_mut().for_each(|number| *number += 1.0);
                });
                assert!(
                    out == right,
                    "{rows} × {depth} × {columns}, transposed: {transposed}, {arch:?}"
                );
            }
        }
    }

    #[test]
    fn products_with_several_pieces_of_columns_are_finished_once() {
        check_pieces(Sizes { rows: 13, depth: 1000, columns: 3000 });
    }

    #[test]
    fn deep_products_are_made_in_pieces_of_the_depth() {
        check_pieces(Sizes { rows: 2, depth: AT_ONCE + 5, columns: 3 });
        check_pieces(Sizes { rows: 3, depth: DEEP + 300, columns: 70 });
    }

    #[test]
    fn threads_and_rows_change_no_bit() {
        let sizes = Sizes { rows: 150, depth: 600, columns: 130 };
        let mut random = fastrand::Rng::with_seed(3);
        let mut take = |count: usize| (0..count).map(|_| random.f32() - 0.5).collect::<Vec<f32>>();
        let (a, b) = (take(150 * 600), take(600 * 130));
        for arch in archs() {
            let run = |threads: usize, first: usize, rows: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut out = vec![0.0; rows * 130];
                let (a, b) = (View::rows(&a[first * 600..], 600), View::rows(&b, 130));
                let sizes = Sizes { rows, ..sizes };
                pool.install(|| multiply_with(arch, sizes, a, b, &mut out, |_, _| ()));
                out
            };
            let whole = run(1, 0, 150);
            assert!(run(3, 0, 150) == whole, "{arch:?}: threads change bits");
            assert!(run(2, 17, 25) == whole[17 * 130..42 * 130], "{arch:?}: rows change bits");
        }
    }

    /// All kernels for F32 weights that serving uses: few columns, some, and many, of weights that lie row by row and transposed.
    #[test]
    fn a_column_gives_the_same_bits_however_many_there_are() {
        use crate::product::{self, Matrix};
        use surefoot_quant::BlockFormat;
        use surefoot_quant::product::PackedRows;

        if !crate::processor::has_vectors() {
            return;
        }
        let mut random = fastrand::Rng::with_seed(11);
        let mut take = |count: usize| (0..count).map(|_| random.f32() - 0.5).collect::<Vec<f32>>();
        for (rows, inputs) in [(5, 7), (97, 333), (41, 1111), (130, 512), (16, 700)] {
            let weights = take(rows * inputs);
            let turned: Vec<f32> =
                (0..rows * inputs).map(|at| weights[at % rows * inputs + at / rows]).collect();
            let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
            let packed = PackedRows::new(BlockFormat::F32, rows, inputs, &bytes).unwrap();
            let all = take(inputs * 40);
            // Of each column, what it gives among as many as there are.
            let dense = |count: usize| {
                let x: Vec<f32> =
                    (0..inputs * count).map(|at| all[at % count * inputs + at / count]).collect();
                let sizes = Sizes { rows, depth: inputs, columns: count };
                let mut out = vec![f32::NAN; rows * count];
                let b = View::rows(&x, count);
                multiply(sizes, View::rows(&weights, inputs), b, &mut out, |_, _| ());
                (x, out)
            };
            let (_, right) = dense(40);
            for count in [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33] {
                let (x, out) = dense(count);
                let expected: Vec<f32> =
                    (0..rows * count).map(|at| right[at / count * 40 + at % count]).collect();
                assert_eq!(out, expected, "dense, {rows} x {inputs} x {count}");
                let mut by_columns = vec![f32::NAN; rows * count];
                packed.times(&all[..inputs * count], count, &mut by_columns).unwrap();
                for (at, expected) in expected.iter().enumerate() {
                    let got = by_columns[at % count * rows + at / count];
                    assert_eq!(got, *expected, "packed, {rows} x {inputs} x {count}, {at}");
                }
                if count <= product::MOST_COLUMNS {
                    let weights = Matrix { numbers: &turned, width: rows, transposed: true };
                    let out = product::multiply(&weights, rows, &x, [inputs, count]);
                    assert_eq!(out, expected, "transposed, {rows} x {inputs} x {count}");
                }
            }
        }
    }
}
