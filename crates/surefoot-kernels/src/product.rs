//! Weights times activations, where the weights are large and the columns are few.
//!
//! A general matrix product packs both sides before it multiplies, which pays if each number is used
//! often. Weights are used once for each token of a pass: with a few of them packing takes longer
//! than multiplying. Here the weights are read once, in place. More than [`MOST_COLUMNS`] columns are for [`dense`](crate::dense).
//!
//! Up to [`ALIKE_COLUMNS`] columns each give the bits that they give alone, which speculative decoding relies on. Callers know that there
//! are vectors ([`has_vectors`](crate::processor::has_vectors)).

mod kernel;

use rayon::prelude::*;

use crate::WORTH_SPLITTING;
use kernel::Columns;
pub use kernel::{MOST as MOST_COLUMNS, Matrix};

/// Up to so many columns, each gives the same bits as it does alone.
pub const ALIKE_COLUMNS: usize = 8;

/// Parts for each thread, so that one which is kept waiting doesn't keep the others.
const PARTS: usize = 4;
/// Parts have a multiple of so many rows: all that the kernels take at once divide it.
const ROWS: usize = 24;

/// `rows` rows of `weights · x`, where `x` has `inputs` rows of up to [`MOST_COLUMNS`] columns.
pub fn multiply(
    weights: &Matrix<'_>,
    rows: usize,
    x: &[f32],
    [inputs, columns]: [usize; 2],
) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    if rows * inputs * columns == 0 {
        return out;
    }
    let columns_of_x = Columns::new(x, inputs, columns);
    let threads = rayon::current_num_threads();
    let part = match rows * inputs * columns < WORTH_SPLITTING {
        true => rows,
        // A transposed weight is read across: what a part reads of a row should not be too short.
        false if weights.transposed => rows.div_ceil(threads).next_multiple_of(ROWS),
        false => rows.div_ceil(PARTS * threads).next_multiple_of(ROWS),
    };
    if part >= rows {
        kernel::multiply(weights, 0, &columns_of_x, &mut out);
    } else {
        out.par_chunks_mut(part * columns).enumerate().for_each(|(at, out)| {
            kernel::multiply(weights, at * part, &columns_of_x, out);
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Small integers, so that every order of sums gives the same.
        #[test]
        fn a_product_is_what_the_numbers_say(
            rows in 1_usize..70,
            inputs in 1_usize..150,
            columns in 1_usize..MOST_COLUMNS + 1,
            many in any::<bool>(),
            transposed in any::<bool>(),
            seed in 0_usize..1000,
        ) {
            // Many rows are shared out.
            let rows = if many { rows * 37 } else { rows };
            let number = |at: usize| ((at * 7 + at / 5 + seed) % 9) as f32 - 4.0;
            let numbers: Vec<f32> = (0..rows * inputs).map(number).collect();
            let x: Vec<f32> = (0..inputs * columns).map(|at| number(at + 3)).collect();
            let mut right = vec![0.0; rows * columns];
            for row in 0..rows {
                for input in 0..inputs {
                    let weight = numbers[if transposed { input * rows + row } else { row * inputs + input }];
                    let of_x = &x[input * columns..][..columns];
                    let out = &mut right[row * columns..][..columns];
                    out.iter_mut().zip(of_x).for_each(|(out, x)| *out += weight * x);
                }
            }
            let width = if transposed { rows } else { inputs };
            let weights = Matrix { numbers: &numbers, width, transposed };
            prop_assert_eq!(multiply(&weights, rows, &x, [inputs, columns]), right);
        }
    }

    #[test]
    fn up_to_eight_columns_give_the_bits_that_each_gives_alone() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut take = |count: usize| (0..count).map(|_| random.f32() - 0.5).collect::<Vec<f32>>();
        for (rows, inputs) in [(5, 7), (97, 333), (1111, 520)] {
            for transposed in [false, true] {
                let numbers = take(rows * inputs);
                let weights = Matrix {
                    numbers: &numbers,
                    width: if transposed { rows } else { inputs },
                    transposed,
                };
                let of_columns: Vec<Vec<f32>> = (0..ALIKE_COLUMNS).map(|_| take(inputs)).collect();
                let alone: Vec<Vec<f32>> =
                    of_columns.iter().map(|x| multiply(&weights, rows, x, [inputs, 1])).collect();
                for count in 2..=ALIKE_COLUMNS {
                    let x: Vec<f32> =
                        (0..inputs * count).map(|at| of_columns[at % count][at / count]).collect();
                    let together = multiply(&weights, rows, &x, [inputs, count]);
                    for (at, number) in together.iter().enumerate() {
                        let (row, column) = (at / count, at % count);
                        assert!(
                            number.to_bits() == alone[column][row].to_bits(),
                            "{rows} × {inputs}, transposed: {transposed}, {count} columns"
                        );
                    }
                }
            }
        }
    }
}
