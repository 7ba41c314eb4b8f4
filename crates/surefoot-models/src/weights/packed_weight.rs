//! Quantised rows on the processor: they stay in their blocks, also in a mapped file, and are multiplied by
//! the kernels of `surefoot-quant`.

use burn::tensor::{Device, Tensor, TensorData};
use surefoot_ops::product;
use surefoot_quant::BlockFormat;

use super::format::bytes_of;
use super::shared_product::shared_product;
use crate::arch::blueprint::Layout;

/// Rows of a matrix in blocks.
#[derive(Clone, Debug)]
pub(crate) struct PackedWeight {
    memory: bytes::Bytes,
    format: BlockFormat,
    rows: usize,
    cols: usize,
    /// The file had inputs as rows; these rows are outputs all the same.
    turned: bool,
}

impl PackedWeight {
    /// `memory` holds `rows` × `cols` numbers.
    pub(crate) fn new(memory: bytes::Bytes, format: BlockFormat, rows: usize, cols: usize) -> Self {
        debug_assert_eq!(memory.len(), bytes_of(format, rows * cols));
        Self { memory, format, rows, cols, turned: false }
    }

    /// `memory` holds `rows` inputs of a matrix with inputs as rows, turned: `outputs` rows of blocks.
    pub(crate) fn turned(
        memory: bytes::Bytes,
        format: BlockFormat,
        rows: usize,
        outputs: usize,
    ) -> Self {
        Self { turned: true, ..Self::new(memory, format, outputs, rows) }
    }

    /// See [`Weight::times`](super::weight::Weight::times).
    pub(crate) fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        let by_rows = layout == Layout::OutIn || self.turned;
        let x = match by_rows {
            true => match shared_product(&self.memory, self.format, [self.rows, self.cols], x) {
                Ok(y) => return y,
                Err(x) => x,
            },
            false => x,
        };
        // Rows that are inputs are added up, which the kernels don't do; no GGUF file has such rows.
        product(self.unpacked(), !by_rows, x)
    }

    fn unpacked(&self) -> Tensor<2> {
        let mut numbers = vec![0.0_f32; self.rows * self.cols];
        // `new` was given as many bytes as these numbers take.
        let fits = self.format.dequantize(&self.memory, &mut numbers);
        debug_assert!(fits.is_ok());
        Tensor::from_data(TensorData::new(numbers, [self.rows, self.cols]), &Device::flex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Both layouts give what the dequantised numbers give, but for activations in 8 bits.
        #[test]
        fn a_product_is_that_of_the_dequantised_weights(
            rows in 1_usize..40, columns in 1_usize..12, seed in 0_usize..1000,
        ) {
            for format in [BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4_K] {
                let (cols, number) = (256, |at: usize| ((at * 31 + seed) % 19) as f32 / 9.0 - 1.0);
                let numbers: Vec<f32> = (0..rows * cols).map(number).collect();
                let mut blocks = vec![0; bytes_of(format, rows * cols)];
                format.quantize(&numbers, &mut blocks).unwrap();
                let weight = PackedWeight::new(blocks.into(), format, rows, cols);
                for (layout, inputs) in [(Layout::OutIn, cols), (Layout::InOut, rows)] {
                    let x: Vec<f32> = (0..inputs * columns).map(|at| number(at + 5)).collect();
                    let x: Tensor<2> =
                        Tensor::from_data(TensorData::new(x, [inputs, columns]), &Device::flex());
                    let plain = weight.unpacked();
                    let plain = if layout == Layout::InOut { plain.transpose() } else { plain };
                    let expected = plain.matmul(x.clone()).into_data().try_to_vec::<f32>().unwrap();
                    let y = weight.times(layout, x).into_data().try_to_vec::<f32>().unwrap();
                    prop_assert_eq!(y.len(), expected.len());
                    for (y, expected) in y.iter().zip(expected) {
                        prop_assert!((y - expected).abs() < 0.01 * inputs as f32, "{y}, not {expected}");
                    }
                }
            }
        }
    }
}
