//! Rows of a matrix in memory, and products with them.

use burn::tensor::{Device, Tensor};
use surefoot_ops::product;

use super::device_blocks::DeviceBlocks;
use super::gate::Permit;
use super::half_rows::HalfRows;
use super::packed_weight::PackedWeight;
use super::plain_rows::PlainRows;
use crate::arch::blueprint::Layout;

/// Rows that are ready to multiply with.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there are a few hundred of them, and a box would be one more read in every product"
)]
pub(crate) enum Weight {
    /// A tensor, in the dtype of products.
    Tensor(Tensor<2>),
    /// On the processor, in f32.
    Plain(PlainRows),
    /// On the processor, in half precision.
    Half(HalfRows),
    /// On the processor, quantised.
    Packed(PackedWeight),
    /// On another device, quantised.
    Blocks(DeviceBlocks),
}

impl Weight {
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Tensor(tensor) => tensor.device(),
            Self::Plain(_) | Self::Half(_) | Self::Packed(_) => Device::flex(),
            Self::Blocks(blocks) => blocks.device(),
        }
    }

    /// The product with `x`, `[inputs, columns]`: for [`Layout::OutIn`] of these rows, which
    /// are outputs; for [`Layout::InOut`] the sum over these rows, which are inputs.
    pub(crate) fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        match (self, layout) {
            (Self::Tensor(weight), layout) => product(weight.clone(), layout == Layout::InOut, x),
            (Self::Plain(rows), layout) => rows.times(layout, x),
            (Self::Half(rows), layout) => rows.times(layout, x),
            (Self::Packed(rows), layout) => rows.times(layout, x),
            (Self::Blocks(blocks), layout) => blocks.times(layout, x),
        }
    }
}

/// Rows that pass through, and the room they take.
#[derive(Debug)]
pub(crate) struct StreamedWeight {
    pub(crate) weight: Weight,
    /// Where the tensor's memory is a device's, which doesn't give it back itself.
    pub(crate) _permit: Option<Permit>,
}
