//! Rows of a matrix in memory, and products with them.

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;

use super::format;
use super::gate::Permit;
use super::half_rows::HalfRows;
use crate::arch::blueprint::Layout;

/// Rows that are ready to multiply with.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// A tensor, in the dtype of products.
    Tensor(Tensor<2>),
    /// On the processor, in half precision.
    Half(HalfRows),
}

impl Weight {
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Tensor(tensor) => tensor.device(),
            Self::Half(_) => Device::flex(),
        }
    }

    /// The product with `x`, `[inputs, columns]`: for [`Layout::OutIn`] of these rows, which
    /// are outputs; for [`Layout::InOut`] the sum over these rows, which are inputs.
    pub(crate) fn times(&self, layout: Layout, x: Tensor<2>) -> Tensor<2> {
        match (self, layout) {
            (Self::Tensor(weight), Layout::OutIn) => product(weight.clone(), x),
            (Self::Tensor(weight), Layout::InOut) => weight.clone().transpose().matmul(x),
            (Self::Half(rows), layout) => rows.times(layout, x),
        }
    }
}

/// Rows that pass through, and the room they take.
#[derive(Debug)]
pub(crate) struct Passing {
    pub(crate) weight: Weight,
    /// Where the tensor's memory is a device's, which doesn't give it back itself.
    pub(crate) _permit: Option<Permit>,
}

/// Below this a product is over before other threads have begun.
const WORTH_SPLITTING: usize = 1 << 18;

/// `[outputs, inputs]` × `[inputs, columns]`. Burn's CPU backend multiplies with a single column
/// on one thread, though that is most of decoding: the rows are shared out instead.
fn product(weight: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    let [rows, inputs] = weight.dims();
    let threads = rayon::current_num_threads();
    let alone = x.dims()[1] > 1 || rows * inputs < WORTH_SPLITTING || rows < threads;
    if alone || threads == 1 || !format::is_host(&weight.device()) {
        return weight.matmul(x);
    }
    let share = rows.div_ceil(threads);
    let parts: Vec<Tensor<2>> = (0..rows.div_ceil(share))
        .into_par_iter()
        .map(|part| {
            let from = part * share;
            weight.clone().narrow(0, from, share.min(rows - from)).matmul(x.clone())
        })
        .collect();
    Tensor::cat(parts, 0)
}
