//! Operations of models that are run, not trained: each in one launch on devices of CubeCL, and in one pass over its numbers on the
//! processor (`processor`), which has no kernel for [`attend_to_all`].
//!
//! Each gives none where it has no kernel: under autodiff and in other dtypes than f32. The caller then
//! composes it of Burn's own operations.

mod append_prompts;
mod choice;
mod decode;
mod processor;
mod prompt;

pub use append_prompts::{AppendedPromptTensors, AppendedPrompts};
pub use choice::{first_largest, largest_of_rows};
#[cfg(any(feature = "gpu", target_os = "macos"))]
pub(crate) use decode::MOST_TOKENS;
pub use decode::{AppendedAttention, AppendedTensors, DecodeProducts, MOST_DECODED};
pub use prompt::PromptAttention;

use burn::tensor::Tensor;

/// Queries that [`attend_to_all`] takes: more are worth matrix products.
pub const MOST_QUERIES: usize = 4;

#[cfg(not(any(feature = "gpu", target_os = "macos")))]
mod absent {
    use burn::tensor::Tensor;

    pub(super) fn rms_norm<const D: usize>(
        _: &Tensor<D>,
        _: &Tensor<1>,
        _: f64,
    ) -> Option<Tensor<D>> {
        None
    }

    pub(super) fn rotate(
        _: &Tensor<4>,
        _: &Tensor<4>,
        _: &Tensor<4>,
        _: bool,
    ) -> Option<Tensor<4>> {
        None
    }

    pub(super) fn gated_silu(_: &Tensor<2>, _: &Tensor<2>) -> Option<Tensor<2>> {
        None
    }

    pub(super) fn attend_to_all(
        _: &Tensor<4>,
        _: &Tensor<4>,
        _: &Tensor<4>,
        _: f64,
    ) -> Option<Tensor<4>> {
        None
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod launched {
    use burn::backend::Dispatch;
    use burn::tensor::{DType, Device, Tensor};

    use super::MOST_QUERIES;
    use crate::buffer;
    use crate::cube::{self, CubeKernels, LARGEST_HEAD};

    /// Whether it is on a device of CubeCL, without autodiff.
    pub(super) fn is_device<const D: usize>(tensor: &Tensor<D>) -> bool {
        let device = tensor.device();
        !device.is_autodiff() && device != Device::flex()
    }

    pub(super) fn is_ours<const D: usize>(tensor: &Tensor<D>) -> bool {
        tensor.dtype() == DType::F32 && is_device(tensor)
    }

    /// Whether the device of a cache has room for attention of prompts with heads of so many dimensions.
    pub(super) fn attends_to_prompts(keys: &Tensor<4>, each: usize) -> bool {
        let keys = buffer::cube::find(keys.clone());
        keys.is_some_and(|keys| cube::attends_to_prompts(&keys, each))
    }

    pub(super) fn rms_norm<const D: usize>(
        x: &Tensor<D>,
        gamma: &Tensor<1>,
        epsilon: f64,
    ) -> Option<Tensor<D>> {
        (is_ours(x) && is_ours(gamma)).then(|| {
            let (x, gamma) = (x.clone().into_dispatch(), gamma.clone().into_dispatch());
            Tensor::from_dispatch(<Dispatch as CubeKernels>::rms_norm(x, gamma, epsilon))
        })
    }

    pub(super) fn rotate(
        x: &Tensor<4>,
        cos: &Tensor<4>,
        sin: &Tensor<4>,
        interleaved: bool,
    ) -> Option<Tensor<4>> {
        [x, cos, sin].into_iter().all(is_ours).then(|| {
            let [x, cos, sin] = [x, cos, sin].map(|tensor| tensor.clone().into_dispatch());
            Tensor::from_dispatch(<Dispatch as CubeKernels>::rotate(x, cos, sin, interleaved))
        })
    }

    pub(super) fn gated_silu(gate: &Tensor<2>, value: &Tensor<2>) -> Option<Tensor<2>> {
        (is_ours(gate) && is_ours(value)).then(|| {
            let (gate, value) = (gate.clone().into_dispatch(), value.clone().into_dispatch());
            Tensor::from_dispatch(<Dispatch as CubeKernels>::gated_silu(gate, value))
        })
    }

    pub(super) fn attend_to_all(
        query: &Tensor<4>,
        keys: &Tensor<4>,
        values: &Tensor<4>,
        scale: f64,
    ) -> Option<Tensor<4>> {
        let [_, _, count, each] = query.dims();
        let fits = count <= MOST_QUERIES && each <= LARGEST_HEAD && keys.dims()[2] > 0;
        (fits && [query, keys, values].into_iter().all(is_ours)).then(|| {
            let [query, keys, values] =
                [query, keys, values].map(|tensor| tensor.clone().into_dispatch());
            let found = <Dispatch as CubeKernels>::attend_to_cache(query, keys, values, scale);
            Tensor::from_dispatch(found)
        })
    }
}

#[cfg(not(any(feature = "gpu", target_os = "macos")))]
use absent as device;
#[cfg(any(feature = "gpu", target_os = "macos"))]
use launched as device;

/// Each row of the last dimension over its root mean square, times `gamma`.
pub fn rms_norm<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    processor::rms_norm(x, gamma, epsilon).or_else(|| device::rms_norm(x, gamma, epsilon))
}

/// Turns the first `2 · pairs` numbers of each head of `x`, `[batch, heads, width, each]`, by the angles whose cosines and
/// sines are `[batch or 1, 1, width, pairs]`. Each number of the first half goes with its like in the second. Where pairs
/// are neighbours (`interleaved`), they are brought into that order and stay in it.
pub fn rotate(
    x: &Tensor<4>,
    cos: &Tensor<4>,
    sin: &Tensor<4>,
    interleaved: bool,
) -> Option<Tensor<4>> {
    processor::rotate(x, cos, sin, interleaved).or_else(|| device::rotate(x, cos, sin, interleaved))
}

/// `silu(gate) · value`.
pub fn gated_silu(gate: &Tensor<2>, value: &Tensor<2>) -> Option<Tensor<2>> {
    processor::gated_silu(gate, value).or_else(|| device::gated_silu(gate, value))
}

/// Attention of a few queries `[batch, heads, count, each]`, all of which see all keys and values
/// `[batch, kv_heads, seen, each]`, with scores times `scale`. None also for more queries, or larger heads.
pub fn attend_to_all(
    query: &Tensor<4>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    scale: f64,
) -> Option<Tensor<4>> {
    device::attend_to_all(query, keys, values, scale)
}
