//! Activations, quantised to 8 bits.
//!
//! Each block of 32 numbers has a scale; its integers are from −127 to 127. Offsets of weights are
//! multiplied with sums of activations, so those are kept too. A block with a number that is NaN or infinite
//! gets the scale NaN, so that every product with it is NaN and not a number that looks right.

use rayon::prelude::*;

use super::dispatch::{self, Instructions};
use super::{FEW, ProductError};

/// 256 numbers of a column.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct ActivationGroup {
    pub(crate) q: [i8; 256],
    /// Of each 32 numbers.
    pub(crate) scale: [f32; 8],
    /// The sum of each 32 numbers, as they are after rounding.
    pub(crate) sum32: [f32; 8],
    /// The sum of each 16 numbers, as they are after rounding.
    pub(crate) sum16: [f32; 16],
}

const EMPTY: ActivationGroup =
    ActivationGroup { q: [0; 256], scale: [0.0; 8], sum32: [0.0; 8], sum16: [0.0; 16] };

/// So many numbers are quantised before another thread has begun to.
const FEW_NUMBERS: usize = 1 << 16;

/// Columns that are multiplied together in a panel.
pub(crate) const TILE: usize = 8;

/// Columns of activations, quantised to 8 bits in blocks of 32.
#[derive(Clone, Debug)]
pub struct Activations {
    inputs: usize,
    columns: usize,
    per_column: usize,
    groups: Vec<ActivationGroup>,
    instructions: Instructions,
}

pub(super) fn check(x: &[f32], inputs: usize, columns: usize) -> Result<(), ProductError> {
    match inputs.checked_mul(columns) {
        Some(expected) if expected == x.len() => Ok(()),
        expected => Err(ProductError::Length {
            what: "the activations",
            expected: expected.unwrap_or(usize::MAX),
            actual: x.len(),
        }),
    }
}

impl Activations {
    /// Quantises `columns` columns of `inputs` numbers each, one after the other in `x`.
    pub fn new(x: &[f32], inputs: usize, columns: usize) -> Result<Self, ProductError> {
        Self::with(Instructions::best(), x, inputs, columns)
    }

    /// [`Self::new`], for products with these instructions.
    pub fn with(
        instructions: Instructions,
        x: &[f32],
        inputs: usize,
        columns: usize,
    ) -> Result<Self, ProductError> {
        check(x, inputs, columns)?;
        let per_column = inputs.div_ceil(256);
        // Whole tiles, where there are many: the columns that are missing are zeros.
        let all = if columns <= FEW { columns } else { columns.next_multiple_of(TILE) };
        let mut groups = vec![EMPTY; per_column * all];
        let quantized = |(groups, column): (&mut [ActivationGroup], &[f32])| {
            dispatch::quantize(instructions, column, groups);
        };
        match columns <= FEW || inputs * columns <= FEW_NUMBERS {
            _ if inputs == 0 => {}
            true => groups.chunks_mut(per_column).zip(x.chunks(inputs)).for_each(quantized),
            false => {
                groups.par_chunks_mut(per_column).zip(x.par_chunks(inputs)).for_each(quantized)
            }
        }
        Ok(Self { inputs, columns, per_column, groups, instructions })
    }

    /// The numbers of a column.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// The tiles of all columns.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles(&self) -> usize {
        self.groups.len().checked_div(self.per_column * TILE).unwrap_or(0)
    }

    /// A column's groups.
    pub(crate) fn column(&self, at: usize) -> &[ActivationGroup] {
        &self.groups[at * self.per_column..(at + 1) * self.per_column]
    }
}

/// Quantises a column into as many groups as it takes, where a processor has no kernel for it.
#[inline(always)]
pub(super) fn quantize(column: &[f32], groups: &mut [ActivationGroup]) {
    for (numbers, group) in column.chunks(256).zip(groups) {
        let mut padded = [0.0; 256];
        padded[..numbers.len()].copy_from_slice(numbers);
        for at in 0..8 {
            let Some(numbers) = padded[at * 32..].first_chunk::<32>() else { continue };
            let mut largest = [0.0_f32; 8];
            let mut poison = [0.0_f32; 8];
            for numbers in numbers.as_chunks::<8>().0 {
                for lane in 0..8 {
                    largest[lane] = largest[lane].max(numbers[lane].abs());
                    poison[lane] += numbers[lane] * 0.0;
                }
            }
            let largest = largest.into_iter().fold(0.0_f32, f32::max);
            let poison: f32 = poison.iter().sum();
            let scale = largest / 127.0;
            // The inverse of a scale that is too small is infinite: then all numbers count as zeros.
            let inverse = 127.0 / largest;
            let inverse = if inverse.is_finite() { inverse } else { 0.0 };
            let mut sums = [0_i32; 2];
            for (half, numbers) in numbers.as_chunks::<16>().0.iter().enumerate() {
                for (lane, number) in numbers.iter().enumerate() {
                    let q = (number * inverse).round_ties_even() as i32;
                    group.q[at * 32 + half * 16 + lane] = q as i8;
                    sums[half] += q;
                }
            }
            let scale = scale + poison;
            group.scale[at] = scale;
            group.sum16[2 * at] = scale * sums[0] as f32;
            group.sum16[2 * at + 1] = scale * sums[1] as f32;
            group.sum32[at] = scale * (sums[0] + sums[1]) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of several lengths with large, small and equal numbers, ties, and blocks of zeros.
    #[test]
    fn every_kernel_rounds_to_the_same_bits() {
        let numbers: Vec<f32> = (0..1101_i32)
            .map(|at| match at % 97 {
                0..32 => 0.0,
                32 => -0.0,
                33 => 1e-42,
                34 => 3e38,
                _ => ((at * 7919) % 1013 - 500) as f32 / 254.0,
            })
            .collect();
        for inputs in [1, 31, 32, 256, 300, 1101] {
            let column = &numbers[numbers.len() - inputs..];
            let mut expected = vec![EMPTY; inputs.div_ceil(256)];
            quantize(column, &mut expected);
            for instructions in Instructions::all() {
                let got = Activations::with(instructions, column, inputs, 1).unwrap();
                for (got, expected) in got.groups.iter().zip(&expected) {
                    let bits = |numbers: &[f32]| -> Vec<u32> {
                        numbers.iter().map(|number| number.to_bits()).collect()
                    };
                    assert_eq!(got.q, expected.q, "{instructions:?}, {inputs}");
                    for (got, expected) in [
                        (&got.scale[..], &expected.scale[..]),
                        (&got.sum32[..], &expected.sum32[..]),
                        (&got.sum16[..], &expected.sum16[..]),
                    ] {
                        assert_eq!(bits(got), bits(expected), "{instructions:?}, {inputs}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_none_makes_the_scale_of_its_block_none() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut column = vec![1.0; 96];
            column[40] = bad;
            for instructions in Instructions::all() {
                let got = Activations::with(instructions, &column, 96, 1).unwrap();
                let none: Vec<bool> = got.groups[0].scale.iter().map(|it| it.is_nan()).collect();
                assert_eq!(none[..3], [false, true, false], "{bad} with {instructions:?}");
            }
        }
    }
}
