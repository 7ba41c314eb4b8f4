//! Products with packed weights against sums in f64 over the dequantised weights.
//!
//! Activations are quantised to 8 bits, so a product has two errors. That of the kernels alone is small: it
//! is measured with activations that 8 bits hold exactly. That of quantising activations is bounded by what
//! half a step of each can make of the sum.

use std::sync::Arc;

use proptest::prelude::*;
use surefoot_quant::BlockFormat::{self, *};
use surefoot_quant::product::{
    ALIKE_COLUMNS, Activations, Instructions, PackedRows, ProductError, SharedRows,
};

struct Case {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    blocks: Vec<u8>,
    weights: Vec<f32>,
}

fn case(format: BlockFormat, rows: usize, cols: usize, random: &mut fastrand::Rng) -> Case {
    let numbers: Vec<f32> = (0..rows * cols).map(|_| random.f32() * 4.0 - 1.5).collect();
    let mut blocks = vec![0; format.bytes_of(rows * cols).expect("whole blocks")];
    format.quantize(&numbers, &mut blocks).expect("finite numbers");
    let mut weights = vec![0.0; rows * cols];
    format.dequantize(&blocks, &mut weights).expect("whole blocks");
    Case { format, rows, cols, blocks, weights }
}

impl Case {
    fn packed(&self) -> PackedRows<'_> {
        PackedRows::new(self.format, self.rows, self.cols, &self.blocks).expect("it fits")
    }

    /// The sum of a row and a column in f64, and that of the sizes of its terms times `error`.
    fn exact(&self, row: usize, x: &[f32], error: impl Fn(usize) -> f64) -> (f64, f64) {
        let weights = &self.weights[row * self.cols..(row + 1) * self.cols];
        weights.iter().zip(x).enumerate().fold((0.0, 0.0), |(sum, size), (at, (weight, x))| {
            let (weight, x) = (f64::from(*weight), f64::from(*x));
            (sum + weight * x, size + weight.abs() * error(at))
        })
    }
}

/// Integers from −127 to 127 with the largest in each block of 32, times a power of two: exact in 8 bits.
fn exact_activations(count: usize, random: &mut fastrand::Rng) -> Vec<f32> {
    (0..count)
        .map(|at| if at % 32 == 7 { 127.0 } else { f32::from(random.i8(-127..=127)) } / 64.0)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn kernels_add_up_what_the_blocks_say(
        rows in 1_usize..40, groups in 1_usize..5, blocks in 0_usize..8, columns in 1_usize..22, seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
            // Rows that are no multiple of 256 long, where blocks are shorter.
            let cols = 256 * groups + if format.block_len() == 32 { 32 * blocks } else { 0 };
            let case = case(format, rows, cols, &mut random);
            let x = exact_activations(cols * columns, &mut random);
            for instructions in Instructions::all() {
                let quantized = Activations::with(instructions, &x, cols, columns).unwrap();
                let mut out = vec![f32::NAN; rows * columns];
                case.packed().times_quantized(&quantized, &mut out).unwrap();
                for row in 0..rows {
                    for column in 0..columns {
                        let x = &x[column * cols..(column + 1) * cols];
                        let (sum, size) = case.exact(row, x, |_| 4.0);
                        let got = f64::from(out[column * rows + row]);
                        prop_assert!(
                            (got - sum).abs() <= 2e-6 * size,
                            "{format} with {instructions:?}, {rows}×{cols}×{columns}: {got}, not {sum}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn quantising_activations_costs_at_most_half_a_step_of_each(
        rows in 1_usize..8, columns in 1_usize..12, seed in any::<u64>(),
    ) {
        let (mut random, cols) = (fastrand::Rng::with_seed(seed), 512);
        let x: Vec<f32> = (0..cols * columns).map(|_| random.f32() * 6.0 - 3.0).collect();
        for format in BlockFormat::ALL {
            let case = case(format, rows, cols, &mut random);
            let mut out = vec![f32::NAN; rows * columns];
            case.packed().times(&x, columns, &mut out).unwrap();
            for row in 0..rows {
                for column in 0..columns {
                    let x = &x[column * cols..(column + 1) * cols];
                    let step = |at: usize| {
                        let block = &x[at / 32 * 32..at / 32 * 32 + 32];
                        let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                        let rounding = if format.is_quantized() { 0.5 / 127.0 } else { 0.0 };
                        f64::from(largest) * (rounding + 4e-6)
                    };
                    let (sum, limit) = case.exact(row, x, step);
                    let got = f64::from(out[column * rows + row]);
                    prop_assert!((got - sum).abs() <= limit, "{format}: {got}, not {sum} ± {limit}");
                }
            }
        }
    }
}

/// Activations that are bf16 numbers, with which BF16 weights have products of their own where the processor has instructions for them:
/// as near to the exact sum as products in f32, for each column alike whatever their number is. One number that is none changes that.
#[test]
fn bf16_activations_give_what_they_give_in_f32() {
    let mut random = fastrand::Rng::with_seed(7);
    for (rows, cols, columns) in [(1, 1, 9), (16, 256, 12), (37, 515, 13), (40, 1025, 30)] {
        let case = case(BF16, rows, cols, &mut random);
        let x: Vec<f32> = (0..cols * columns)
            .map(|_| f32::from_bits((random.f32() * 6.0 - 3.0).to_bits() & 0xffff_0000))
            .collect();
        let near = |x: &[f32], out: &[f32], what: &str| {
            for row in 0..rows {
                for (column, x) in x.chunks_exact(cols).enumerate() {
                    let (sum, limit) = case.exact(row, x, |at| f64::from(x[at].abs()) * 4e-6);
                    let got = f64::from(out[column * rows + row]);
                    assert!(
                        (got - sum).abs() <= limit + 1e-30,
                        "{what}, {rows}×{cols}×{columns}: {got}, not {sum} ± {limit}"
                    );
                }
            }
        };
        for instructions in Instructions::all() {
            let times = |x: &[f32], columns: usize| {
                let mut out = vec![f32::NAN; rows * columns];
                case.packed().times_with(instructions, x, columns, &mut out).unwrap();
                out
            };
            let out = times(&x, columns);
            near(&x, &out, instructions.name());
            for few in [1, 3, 8] {
                near(&x[..few * cols], &times(&x[..few * cols], few), instructions.name());
            }
            assert_eq!(times(&x[..9 * cols], 9), out[..9 * rows], "{instructions:?}");
            let mut others = x.clone();
            others[cols * columns - 1] = 0.1;
            near(&others, &times(&others, columns), instructions.name());
        }
    }
}

/// Tiles of rows and columns, and what is left of both.
#[test]
fn many_columns_of_plain_weights_add_up() {
    let mut random = fastrand::Rng::with_seed(11);
    let sizes = [
        (1, 1, 32),
        (7, 33, 9),
        (47, 512, 17),
        (48, 513, 33),
        (49, 511, 48),
        (97, 64, 64),
        (5, 1025, 70),
        (16, 40, 113),
        (100, 24, 129),
    ];
    for (rows, cols, columns) in sizes {
        for format in [F32, F16, BF16] {
            let case = case(format, rows, cols, &mut random);
            let x: Vec<f32> = (0..cols * columns).map(|_| random.f32() * 6.0 - 3.0).collect();
            for instructions in Instructions::all() {
                let mut out = vec![f32::NAN; rows * columns];
                case.packed().times_with(instructions, &x, columns, &mut out).unwrap();
                for row in 0..rows {
                    for (column, x) in x.chunks_exact(cols).enumerate() {
                        let (sum, limit) = case.exact(row, x, |at| f64::from(x[at].abs()) * 2e-6);
                        let got = f64::from(out[column * rows + row]);
                        assert!(
                            (got - sum).abs() <= limit + 1e-30,
                            "{format}, {instructions:?}, {rows}×{cols}×{columns}, row {row}, column {column}: {got}, not {sum}"
                        );
                    }
                }
            }
        }
    }
}

/// By AVX2, so many columns are packed in several parts.
#[test]
fn columns_are_packed_in_parts() {
    let (rows, cols, columns) = (3, 1 << 20, 100);
    let mut blocks = vec![0; F16.bytes_of(rows * cols).unwrap()];
    let weights: Vec<f32> =
        (0..rows * cols).map(|at| if at % 4096 == 0 { 1.0 } else { 0.0 }).collect();
    F16.quantize(&weights, &mut blocks).unwrap();
    // A column is its own number throughout.
    let x: Vec<f32> =
        (0..columns).flat_map(|column| std::iter::repeat_n(column as f32, cols)).collect();
    let rows_of = PackedRows::new(F16, rows, cols, &blocks).unwrap();
    for instructions in Instructions::all() {
        let mut out = vec![f32::NAN; rows * columns];
        rows_of.times_with(instructions, &x, columns, &mut out).unwrap();
        for (column, out) in out.chunks_exact(rows).enumerate() {
            assert_eq!(out, [256.0 * column as f32; 3], "{instructions:?}");
        }
    }
}

/// Large enough to be shared out among threads.
#[test]
fn the_number_of_threads_changes_no_bit() {
    let mut random = fastrand::Rng::with_seed(1);
    for format in [F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, Q3_K] {
        for columns in [1, 3, 17, 50] {
            let case = case(format, 1000, 768, &mut random);
            let x: Vec<f32> = (0..768 * columns).map(|_| random.f32() - 0.5).collect();
            let with = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut out = vec![f32::NAN; 1000 * columns];
                pool.install(|| case.packed().times(&x, columns, &mut out)).unwrap();
                out
            };
            let one = with(1);
            assert!(one.iter().all(|number| number.is_finite()), "{format}");
            assert_eq!(one, with(3), "{format}, {columns} columns");
        }
    }
}

/// Short products go to helpers, long ones to rayon's threads; callers get in each other's way and get the same bits.
#[test]
fn shared_rows_give_the_same_bits_from_many_threads_at_once() {
    let mut random = fastrand::Rng::with_seed(4);
    for format in [F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K] {
        let case = case(format, 1001, 768, &mut random);
        let shared = SharedRows::new(format, 1001, 768, Arc::<[u8]>::from(&case.blocks[..]));
        let shared = shared.unwrap();
        for columns in [1, 2, 8, 9, 128, 129] {
            let x: Vec<f32> = (0..768 * columns).map(|_| random.f32() - 0.5).collect();
            let x = Arc::new(x);
            let mut expected = vec![f32::NAN; 1001 * columns];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            pool.install(|| case.packed().times(&x, columns, &mut expected)).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..4 {
                            let got = shared.times(&x, columns).unwrap();
                            assert_eq!(got, expected, "{format}, {columns} columns");
                        }
                    });
                }
            });
        }
        assert!(shared.times(&Arc::new(vec![0.0; 767]), 1).is_err());
    }
}

#[test]
fn what_is_not_a_number_does_not_look_like_one() {
    let mut random = fastrand::Rng::with_seed(2);
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for format in [Q8_0, Q4_0, Q4_K, Q6_K, Q5_1] {
            let case = case(format, 3, 256, &mut random);
            for instructions in Instructions::all() {
                for columns in [1, 9] {
                    let mut x = vec![1.0; 256 * columns];
                    x[100] = poison;
                    let x = Activations::with(instructions, &x, 256, columns).unwrap();
                    let mut out = vec![0.0; 3 * columns];
                    case.packed().times_quantized(&x, &mut out).unwrap();
                    let (first, others) = out.split_at(3);
                    let all_nan = first.iter().all(|number| number.is_nan());
                    assert!(all_nan, "{format}, {instructions:?}: {first:?}");
                    assert!(others.iter().all(|number| number.is_finite()));
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let blocks = vec![0; 34 * 6];
    assert!(matches!(PackedRows::new(Q8_0, 2, 48, &blocks), Err(ProductError::Weights(_))));
    assert!(matches!(PackedRows::new(Q8_0, 5, 32, &blocks), Err(ProductError::Weights(_))));
    let huge = PackedRows::new(Q8_0, usize::MAX, 64, &blocks);
    assert!(matches!(huge, Err(ProductError::TooLarge { .. })));
    let rows = PackedRows::new(Q8_0, 3, 64, &blocks).unwrap();
    let mut out = [0.0; 3];
    let short = rows.times(&[0.0; 63], 1, &mut out);
    assert!(matches!(short, Err(ProductError::Length { expected: 64, actual: 63, .. })));
    let long = rows.times(&[0.0; 128], 2, &mut out);
    assert!(matches!(long, Err(ProductError::Length { expected: 6, actual: 3, .. })));
    let other = rows.times_quantized(&Activations::new(&[0.0; 32], 32, 1).unwrap(), &mut out);
    assert_eq!(other, Err(ProductError::Inputs { cols: 64, inputs: 32 }));
    let none = PackedRows::new(Q8_0, 0, 64, &[]).unwrap();
    assert_eq!(none.times(&[0.0; 64], 1, &mut []), Ok(()));
}

/// The lane that runs these tests for ARM says that the kernels for its dot products must be among those that are tested.
#[test]
fn a_processor_that_should_have_dot_products_has_them() {
    if std::env::var_os("SUREFOOT_REQUIRE_NEON").is_some() {
        let names: Vec<_> = Instructions::all().into_iter().map(Instructions::name).collect();
        assert_eq!(names, ["portable", "NEON with dot products"]);
    }
}

#[test]
fn columns_give_the_bits_that_each_gives_alone() {
    let mut random = fastrand::Rng::with_seed(11);
    // Few rows are one part; many are shared out among threads.
    for (rows, groups) in [(3, 1), (37, 2), (700, 2)] {
        for format in BlockFormat::ALL {
            let cols = 256 * groups
                + match format.block_len() {
                    1 => 77,
                    32 => 96,
                    _ => 0,
                };
            let case = case(format, rows, cols, &mut random);
            let x: Vec<f32> = (0..cols * 21).map(|_| random.f32() * 2.0 - 1.0).collect();
            for instructions in Instructions::all() {
                // Only plain numbers without AVX-512 are added up in another order with more columns.
                let has_avx_512 = instructions.name().starts_with("AVX-512");
                let most = if format.is_quantized() || has_avx_512 { 21 } else { ALIKE_COLUMNS };
                let times = |x: &[f32], columns: usize| {
                    let mut out = vec![f32::NAN; rows * columns];
                    case.packed().times_with(instructions, x, columns, &mut out).unwrap();
                    out
                };
                let alone: Vec<Vec<f32>> = x.chunks_exact(cols).map(|x| times(x, 1)).collect();
                for columns in (2..=most).filter(|columns| rows < 700 || columns % 5 < 2) {
                    let together = times(&x[..cols * columns], columns);
                    for (column, numbers) in together.chunks_exact(rows).enumerate() {
                        for (row, number) in numbers.iter().enumerate() {
                            let expected = alone[column][row];
                            assert_eq!(
                                number.to_bits(),
                                expected.to_bits(),
                                "{format}, {instructions:?}, row {row}, column {column} of {columns}"
                            );
                        }
                    }
                }
            }
        }
    }
}
