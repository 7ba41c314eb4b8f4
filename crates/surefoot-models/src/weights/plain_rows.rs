//! Rows of f32 numbers on the processor, as a tensor and as the memory it lies in.

use burn::tensor::Tensor;
use surefoot::recover::Point;
use surefoot::recover::drill::point;
use surefoot_ops::product;
use surefoot_quant::BlockFormat;

use super::shared_product::shared_product;
use crate::arch::blueprint::Layout;

/// Up to so many columns, a product is over before sleeping threads are awake, so it goes to those that wait awake. Both give the same
/// bits for a column, however many there are.
const FEW: usize = 16;

/// Rows of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct PlainRows {
    tensor: Tensor<2>,
    memory: bytes::Bytes,
}

impl PlainRows {
    /// `memory` is that of `tensor`.
    pub(crate) fn new(tensor: Tensor<2>, memory: bytes::Bytes) -> Self {
        Self { tensor, memory }
    }

    /// See [`Weight::times`](super::weight::Weight::times).
    pub(crate) fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        let plain = x.device() == self.tensor.device();
        let few = layout == Layout::OutIn && plain && x.dims()[1] <= FEW;
        if few {
            point(Point::Operation);
        }
        let x = match few {
            true => match shared_product(&self.memory, BlockFormat::F32, self.tensor.dims(), x) {
                Ok(y) => return y,
                Err(x) => x,
            },
            false => x,
        };
        product(self.tensor.clone(), layout == Layout::InOut, x)
    }
}
