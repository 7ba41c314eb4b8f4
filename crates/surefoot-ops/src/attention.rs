//! Causal attention over queries, keys and values that lie side by side, as a layer gives them.
//!
//! On the CPU, `processor` works on a head at a time.

mod processor;

use std::any::TypeId;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, FloatDType, Shape, Slice, Tensor};
use burn_flex::FlexTensor;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;
use processor::Parts;

/// The backends' side of [`causal_attention`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Attention: Backend {
    /// See [`causal_attention`].
    fn attended(mixed: FloatTensor<Self>, heads: usize, compute: DType) -> FloatTensor<Self> {
        composed::<Self>(mixed, heads, compute)
    }
}

/// Each token looks at itself and those before it. `mixed` is `[samples, tokens, 3 · width]`:
/// queries, keys and values, each with its heads side by side.
pub fn causal_attention(mixed: Tensor<3>, heads: usize) -> Tensor<3> {
    point(Point::Operation);
    let compute = mixed.dtype();
    let mixed = mixed.into_dispatch();
    Tensor::from_dispatch(<Dispatch as Attention>::attended(mixed, heads, compute))
}

/// The same in mixed precision: `mixed` and the result are in fp32, and factors of products are rounded to `compute` where the device
/// multiplies faster in it. On GPUs everything between the products is in fp32.
pub fn half_causal_attention(mixed: Tensor<3>, heads: usize, compute: FloatDType) -> Tensor<3> {
    point(Point::Operation);
    let mixed = mixed.into_dispatch();
    Tensor::from_dispatch(<Dispatch as Attention>::attended(mixed, heads, compute.into()))
}

fn composed<B: Backend>(mixed: FloatTensor<B>, heads: usize, compute: DType) -> FloatTensor<B> {
    if mixed.dtype() != compute {
        let out = composed::<B>(B::float_cast(mixed, compute.into()), heads, compute);
        return B::float_cast(out, FloatDType::F32);
    }
    let shape = mixed.shape();
    let [samples, tokens, width] = [shape[0], shape[1], shape[2] / 3];
    let part = |at: usize| {
        let slices = [Slice::full(), Slice::full(), (at * width..(at + 1) * width).into()];
        let part = B::float_slice(mixed.clone(), &slices);
        let shape = Shape::new([samples, tokens, heads, width / heads]);
        B::float_swap_dims(B::float_reshape(part, shape), 1, 2)
    };
    let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
    let out = B::attention(part(0), part(1), part(2), None, None, options);
    B::float_reshape(B::float_swap_dims(out, 1, 2), Shape::new([samples, tokens, width]))
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the kernels take this tensor, and round the factors of products to this dtype.
    fn takes(tensor: &FloatTensor<Self>, compute: DType) -> bool;

    /// What each token gets, and the attention weights, `[samples, heads, tokens, tokens]`.
    fn forward(
        mixed: FloatTensor<Self>,
        heads: usize,
        compute: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The attention weights, once more.
    fn weights(mixed: FloatTensor<Self>, heads: usize, compute: DType) -> FloatTensor<Self>;

    /// The gradient by `mixed`.
    fn backward(
        mixed: FloatTensor<Self>,
        heads: usize,
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        compute: DType,
    ) -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn takes(tensor: &FlexTensor, compute: DType) -> bool {
        flat::is_ours(tensor) && compute == DType::F32
    }

    fn forward(mixed: FlexTensor, heads: usize, _: DType) -> (FlexTensor, FlexTensor) {
        Parts::new(mixed, heads).attend()
    }

    fn weights(mixed: FlexTensor, heads: usize, _: DType) -> FlexTensor {
        Parts::new(mixed, heads).attend().1
    }

    fn backward(
        mixed: FlexTensor,
        heads: usize,
        weights: FlexTensor,
        gradient: FlexTensor,
        _: DType,
    ) -> FlexTensor {
        Parts::new(mixed, heads).gradient(weights, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn takes(tensor: &FloatTensor<Self>, _: DType) -> bool {
        cube::is_ours(tensor)
    }

    fn forward(
        mixed: FloatTensor<Self>,
        heads: usize,
        compute: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        <Self as CubeKernels>::causal_attention(mixed, heads, compute)
    }

    fn weights(mixed: FloatTensor<Self>, heads: usize, compute: DType) -> FloatTensor<Self> {
        <Self as CubeKernels>::attention_shares(mixed, heads, compute)
    }

    fn backward(
        mixed: FloatTensor<Self>,
        heads: usize,
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        compute: DType,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::attention_gradient(mixed, weights, gradient, heads, compute)
    }
}

fn kernel_or_composed<B: Kernels>(
    mixed: FloatTensor<B>,
    heads: usize,
    compute: DType,
) -> FloatTensor<B> {
    match B::takes(&mixed, compute) {
        true => B::forward(mixed, heads, compute).0,
        false => composed::<B>(mixed, heads, compute),
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Attention for Cube {
    fn attended(mixed: FloatTensor<Self>, heads: usize, compute: DType) -> FloatTensor<Self> {
        kernel_or_composed::<Self>(mixed, heads, compute)
    }
}

impl Attention for Flex {
    fn attended(mixed: FlexTensor, heads: usize, compute: DType) -> FlexTensor {
        kernel_or_composed::<Self>(mixed, heads, compute)
    }
}

impl<B: Kernels, C: CheckpointStrategy> Attention for Autodiff<B, C> {
    fn attended(mixed: FloatTensor<Self>, heads: usize, compute: DType) -> FloatTensor<Self> {
        if !B::takes(mixed.primitive(), compute) {
            return composed::<Self>(mixed, heads, compute);
        }
        let (out, weights) = B::forward(mixed.primitive().clone(), heads, compute);
        match AttentionBackward.prepare::<C>([mixed.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                // A matrix of tokens by tokens for each head: worth recomputing when memory is
                // what lacks.
                let spare = TypeId::of::<C>() == TypeId::of::<BalancedCheckpointing>();
                let kept = (!spare).then_some(weights);
                let state = (prep.checkpoint(&mixed), (heads, compute), kept);
                prep.finish(state, out)
            }
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}

#[derive(Debug)]
struct AttentionBackward;

impl<B: Kernels> Backward<B, 1> for AttentionBackward {
    type State = (NodeId, (usize, DType), Option<FloatTensor<B>>);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let (mixed, (heads, compute), kept) = ops.state;
        let mixed = checkpointer.retrieve_node_output::<FloatTensor<B>>(mixed);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            let weights = kept.unwrap_or_else(|| B::weights(mixed.clone(), heads, compute));
            let found = B::backward(mixed, heads, weights, gradient, compute);
            grads.register::<B>(node.id, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn values_and_gradients_are_those_of_burns_attention(
            seed in any::<u64>(),
            samples in 1usize..4,
            // Fewer and more than are worked on at once.
            tokens in 1usize..110,
            heads in 1usize..4,
            each in 1usize..20,
        ) {
            let width = heads * each;
            let shape = [samples, tokens, 3 * width];
            agree(
                seed,
                &[shape.iter().product()],
                |t| causal_attention(t[0].clone().reshape(shape), heads).flatten(0, 2),
                |t| {
                    let mixed = t[0].clone().reshape(shape);
                    let part = |at: usize| {
                        let part = mixed.clone().narrow(2, at * width, width);
                        part.reshape([samples, tokens, heads, each]).swap_dims(1, 2)
                    };
                    let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
                    let (query, key, value) = (part(0), part(1), part(2));
                    burn::tensor::module::attention(query, key, value, None, None, options)
                        .swap_dims(1, 2)
                        .flatten(0, 3)
                },
            )?;
        }
    }
}
