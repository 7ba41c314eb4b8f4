//! Quantised rows on a device with memory of its own: they stay packed there, as Burn's quantised tensors, and are turned into
//! the dtype of products one part at a time, by who multiplies. What is dequantised at once is never more than [`PART`] bytes
//! of f32, so a model takes the memory of its blocks.
//!
//! Burn's blocks have no offsets. Those of a group are multiplied with the sum of the inputs that belong to it.

use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use surefoot_ops::product;
use surefoot_quant::{BlockError, BlockFormat};

use super::format::bytes_of;
use crate::arch::blueprint::Layout;

/// The f32 bytes of a part, but for rows that are longer.
pub(crate) const PART: usize = 32 << 20;

/// Some rows.
#[derive(Clone, Debug)]
struct Part {
    rows: usize,
    /// Integers and scales, `[rows, cols]`.
    integers: Tensor<2>,
    /// `[rows, cols / group]`.
    offsets: Option<Tensor<2>>,
}

/// Rows of a matrix in blocks, on a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceBlocks {
    parts: Vec<Part>,
    group: usize,
    /// The file had inputs as rows; these rows are outputs all the same.
    turned: bool,
}

/// The bytes of f32 that a product with `rows` × `cols` numbers needs for the part that it multiplies.
pub(crate) fn dequantized_bytes(rows: usize, cols: usize) -> usize {
    4 * cols * rows.min(rows_of_part(cols))
}

fn rows_of_part(cols: usize) -> usize {
    (PART / 4 / cols.max(1)).max(1)
}

impl DeviceBlocks {
    /// `memory` holds `rows` × `cols` numbers, of which `turned` says that rows are outputs where the file had inputs.
    pub(crate) fn new(
        memory: &[u8],
        format: BlockFormat,
        [rows, cols]: [usize; 2],
        turned: bool,
        device: &Device,
    ) -> Result<Self, BlockError> {
        let (row, most) = (bytes_of(format, cols), rows_of_part(cols));
        let mut parts = Vec::with_capacity(rows.div_ceil(most));
        for blocks in memory.chunks(most * row.max(1)) {
            let rows = blocks.len() / row.max(1);
            if let Some(part) = Part::new(blocks, format, [rows, cols], device)? {
                parts.push(part);
            }
        }
        Ok(Self { parts, group: format.group_len(), turned })
    }

    pub(crate) fn device(&self) -> Device {
        self.parts.first().map_or_else(Device::flex, |part| part.integers.device())
    }

    /// See [`Weight::times`](super::weight::Weight::times).
    pub(crate) fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        if layout == Layout::OutIn || self.turned {
            let outputs = self.parts.iter().map(|part| part.outputs(self.group, x.clone()));
            return Tensor::cat(outputs.collect(), 0);
        }
        let mut from = 0;
        let sums = self.parts.iter().map(|part| {
            let x = x.clone().narrow(0, from, part.rows);
            from += part.rows;
            part.sum_of_inputs(self.group, x)
        });
        // There is a part: a matrix has rows.
        sums.reduce(|sum, part| sum + part).unwrap_or(x)
    }
}

impl Part {
    fn new(
        blocks: &[u8],
        format: BlockFormat,
        [rows, cols]: [usize; 2],
        device: &Device,
    ) -> Result<Option<Self>, BlockError> {
        let Some(signed) = format.signed(blocks)? else { return Ok(None) };
        let value = if format.signed_bits() == 4 { QuantValue::Q4S } else { QuantValue::Q8S };
        let scheme = QuantScheme::default()
            .with_value(value)
            .with_store(QuantStore::PackedU32(0))
            .per_block([format.group_len() as u8], ScaleDtype::F32);
        let mut words = signed.words;
        words.extend(signed.scales.iter().map(|scale| scale.to_bits()));
        let data =
            TensorData::from_bytes(Bytes::from_elems(words), [rows, cols], DType::QFloat(scheme));
        let groups = cols / format.group_len();
        let offsets = format.has_offsets().then(|| {
            let data = TensorData::new(signed.offsets, [rows, groups]);
            Tensor::from_data(data, (device, DType::F32))
        });
        Ok(Some(Self { rows, integers: Tensor::from_data(data, device), offsets }))
    }

    /// The numbers without their offsets, in the dtype of `x`.
    fn without_offsets(&self, x: &Tensor<2>) -> Tensor<2> {
        let numbers = self.integers.clone().dequantize();
        if numbers.dtype() == x.dtype() { numbers } else { numbers.cast(x.dtype()) }
    }

    fn offsets(&self, x: &Tensor<2>) -> Option<Tensor<2>> {
        let offsets = self.offsets.clone()?;
        Some(if offsets.dtype() == x.dtype() { offsets } else { offsets.cast(x.dtype()) })
    }

    /// Rows are outputs.
    fn outputs(&self, group: usize, x: Tensor<2>) -> Tensor<2> {
        let y = product(self.without_offsets(&x), false, x.clone());
        let Some(offsets) = self.offsets(&x) else { return y };
        let [inputs, columns] = x.dims();
        let sums: Tensor<2> = x
            .reshape([inputs / group, group, columns])
            .sum_dim(1)
            .reshape([inputs / group, columns]);
        y + product(offsets, false, sums)
    }

    /// Rows are inputs, and are added up.
    fn sum_of_inputs(&self, group: usize, x: Tensor<2>) -> Tensor<2> {
        let y = product(self.without_offsets(&x), true, x.clone());
        let Some(offsets) = self.offsets(&x) else { return y };
        let [outputs, columns] = y.dims();
        let sums = product(offsets, true, x).reshape([outputs / group, 1, columns]);
        y + sums.repeat_dim(1, group).reshape([outputs, columns])
    }
}
