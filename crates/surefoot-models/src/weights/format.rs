//! In which form weights are in memory, and what products with them are computed in.
//!
//! On the processor fp32 products take weights as their file has them: f32 in place, fp16 and
//! bf16 in place too, turned into f32 a tile at a time by who multiplies. A model in half
//! precision so needs no more memory than its file, and no tile leaves the core's cache.
//!
//! Quantised weights, of a file or of a [choice](super::choice), stay packed in every precision. The processor multiplies their
//! blocks as integers with activations that are rounded to 8 bits. Other devices keep them as integers with scales
//! (`device_blocks`), of which a part at a time is turned into the dtype of products.
//!
//! With `fp16` or `bf16`, weights are rounded to it and kept in it, both sides of every product
//! with them are rounded to it, and sums, norms, attention and softmax stay in fp32. A device that
//! computes in that dtype does so; the processor multiplies the rounded numbers in fp32, which
//! is what matrix units do; long prompts in bf16 go through its dot products of bf16 numbers where it has them. With `bf16` the hidden state is rounded between blocks as well, as
//! it is where a whole model runs in bf16; with `fp16`, whose range is too small for the
//! hidden state of some models, it is not.

use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::bf16_rounded;
use super::binding::Matrix;
use super::device_blocks;
use crate::folder::header::WeightDtype;
use surefoot_quant::BlockFormat;

/// How weights are kept for a device and a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The dtype of products with weights.
    pub compute: WeightDtype,
    on_host: bool,
}

impl From<surefoot::place::Dtype> for WeightDtype {
    /// Of products with weights, which are never in more than fp32.
    fn from(compute: surefoot::place::Dtype) -> Self {
        match compute {
            surefoot::place::Dtype::F16 => Self::F16,
            surefoot::place::Dtype::BF16 => Self::Bf16,
            surefoot::place::Dtype::F32 | surefoot::place::Dtype::F64 => Self::F32,
        }
    }
}

impl Format {
    /// Weights for products in `compute` on `device`.
    pub fn new(device: &Device, compute: WeightDtype) -> Self {
        Self { compute, on_host: is_host(device) }
    }

    /// How numbers are kept in memory that are rounded to `target`.
    pub(crate) fn kept(&self, target: BlockFormat) -> BlockFormat {
        match self.compute {
            _ if target.is_quantized() => target,
            WeightDtype::F32 if self.on_host => target,
            WeightDtype::F32 => BlockFormat::F32,
            WeightDtype::F16 => BlockFormat::F16,
            WeightDtype::Bf16 => BlockFormat::BF16,
        }
    }

    /// How often a piece is in memory beside the device's copy while it is on its way there: as it
    /// is read or converted, and in the driver's own buffer.
    pub(crate) fn copies_on_the_way(&self) -> u64 {
        if self.on_host { 0 } else { 2 }
    }

    /// Whether weights are plain memory of this process.
    pub(crate) fn is_on_host(&self) -> bool {
        self.on_host
    }

    /// The bytes of a row in memory.
    pub(crate) fn row_bytes(&self, matrix: &Matrix) -> u64 {
        self.kept_bytes(matrix.target, matrix.cols())
    }

    /// The bytes in memory of `numbers` numbers that are rounded to `target`.
    pub(crate) fn kept_bytes(&self, target: BlockFormat, numbers: usize) -> u64 {
        let kept = self.kept(target);
        match kept.is_quantized() && !self.on_host {
            true => kept.signed_bytes(numbers) as u64,
            false => bytes_of(kept, numbers) as u64,
        }
    }

    /// The most bytes that products with `matrix` need on the device for numbers that are dequantised.
    pub(crate) fn dequantized_bytes(&self, matrix: &Matrix) -> u64 {
        match matrix.target.is_quantized() && !self.on_host {
            true => device_blocks::dequantized_bytes(matrix.rows(), matrix.cols()) as u64,
            false => 0,
        }
    }

    /// The bytes of a matrix in memory.
    pub fn bytes(&self, matrix: &Matrix) -> u64 {
        matrix.rows() as u64 * self.row_bytes(matrix)
    }

    /// The left side's partner in a product: rounded to the dtype of products. Where the device computes in it,
    /// the product itself rounds.
    pub(crate) fn operand(&self, x: Tensor<2>) -> Tensor<2> {
        let half = match self.compute {
            _ if !self.on_host => return x,
            WeightDtype::F32 => return x,
            WeightDtype::F16 => x.cast(FloatDType::F16),
            WeightDtype::Bf16 => return bf16_rounded::bf16_rounded(x),
        };
        half.cast(FloatDType::F32)
    }

    /// The result of a product, in f32.
    pub(crate) fn result(&self, y: Tensor<2>) -> Tensor<2> {
        if y.dtype() == DType::F32 { y } else { y.cast(FloatDType::F32) }
    }

    /// Whether [`Self::between_blocks`] changes anything.
    pub(crate) fn rounds_between_blocks(&self) -> bool {
        self.compute == WeightDtype::Bf16
    }

    /// The hidden state as the next block sees it.
    pub(crate) fn between_blocks(&self, x: Tensor<2>) -> Tensor<2> {
        if self.rounds_between_blocks() { bf16_rounded::bf16_rounded(x) } else { x }
    }
}

/// The bytes of `numbers` numbers, which are whole blocks: the binding has checked that.
pub(crate) fn bytes_of(format: BlockFormat, numbers: usize) -> usize {
    numbers / format.block_len() * format.block_bytes()
}

/// The numbers in `bytes` bytes.
pub(crate) fn numbers_in(format: BlockFormat, bytes: usize) -> usize {
    bytes / format.block_bytes() * format.block_len()
}

/// Whether tensors of `device` are plain memory of this process.
pub(crate) fn is_host(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex() && cfg!(target_endian = "little")
}
