//! A linear layer with its bias and a residual connection, added in one pass.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

use crate::flat;
use crate::math::{column_sums, fast, rows_at_once};
use crate::optional::{Optional, optional};

/// The backends' side of [`linear`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Linear: Backend {
    /// See [`linear`].
    fn applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] around: Optional<Self>,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, weight, bias, around.into_option())
    }
}

/// `x · weight + bias`, with a residual added to it. `x` has a row for each result.
pub fn linear(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    around: Option<Tensor<2>>,
) -> Tensor<2> {
    point(Point::Operation);
    let around = optional(around);
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Linear>::applied(x, weight, bias, around))
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    around: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let row = Shape::new([1, weight.shape()[1]]);
    let out = B::float_add(B::float_matmul(x, weight), B::float_reshape(bias, row));
    match around {
        Some(around) => B::float_add(out, around),
        None => out,
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Linear for burn::backend::Cube {}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl<C: CheckpointStrategy> Linear for Autodiff<burn::backend::Cube, C> {}

impl Linear for Flex {
    fn applied(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        around: Optional<Self>,
    ) -> FlexTensor {
        let around = around.into_option();
        let ours = [&x, &weight, &bias].into_iter().chain(&around).all(flat::is_ours);
        match ours {
            true => forward(x, weight, bias, around),
            false => composed::<Self>(x, weight, bias, around),
        }
    }
}

impl<C: CheckpointStrategy> Linear for Autodiff<Flex, C> {
    fn applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        around: Optional<Self>,
    ) -> FloatTensor<Self> {
        let around = around.into_option();
        let is_ours = |tensor: &FloatTensor<Self>| flat::is_ours(tensor.primitive());
        let ours = [&x, &weight, &bias].into_iter().chain(&around).all(is_ours);
        if !ours {
            return composed::<Self>(x, weight, bias, around);
        }
        match around {
            Some(around) => record::<C, 4>([x, weight, bias, around]),
            None => record::<C, 3>([x, weight, bias]),
        }
    }
}

fn record<C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<Flex, C>>; N],
) -> FloatTensor<Autodiff<Flex, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let [x, weight, bias] = [0, 1, 2].map(|at| inputs[at].primitive().clone());
    let around = inputs.get(3).map(|around| around.primitive().clone());
    let out = forward(x, weight, bias, around);
    match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = [prep.checkpoint(&inputs[0]), prep.checkpoint(&inputs[1])];
            prep.finish(state, out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

#[derive(Debug)]
struct LinearBackward;

impl<const N: usize> Backward<Flex, N> for LinearBackward {
    type State = [NodeId; 2];

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = flat::contiguous(grads.consume::<Flex>(&ops.node));
        let [x, weight] = ops.state.map(|id| checkpointer.retrieve_node_output::<FlexTensor>(id));
        for (at, parent) in ops.parents.into_iter().enumerate() {
            let Some(node) = parent else { continue };
            let found = match at {
                0 => product(gradient.clone(), turned(weight.clone())),
                1 => product(turned(x.clone()), gradient.clone()),
                2 => sum_of_rows(&gradient),
                _ => gradient.clone(),
            };
            grads.register::<Flex>(node.id, found);
        }
    }
}

fn product(left: FlexTensor, right: FlexTensor) -> FlexTensor {
    <Flex as FloatTensorOps<Flex>>::float_matmul(left, right)
}

fn turned(tensor: FlexTensor) -> FlexTensor {
    <Flex as FloatTensorOps<Flex>>::float_swap_dims(tensor, 0, 1)
}

fn forward(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    around: Option<FlexTensor>,
) -> FlexTensor {
    let mut out = product(x, weight);
    let [_, width] = flat::dims(&out);
    let (bias, around) = (flat::contiguous(bias), around.map(flat::contiguous));
    let (bias, around) = (flat::numbers(&bias), around.as_ref().map(flat::numbers));
    let part = (rows_at_once(width) * width).max(1);
    // The product has just been made and is shared with nobody: this copies nothing.
    out.storage_mut::<f32>().par_chunks_mut(part).enumerate().for_each(|(at, rows)| {
        fast(
            #[inline(always)]
            || {
                for row in rows.chunks_exact_mut(width) {
                    row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
                }
                if let Some(around) = around {
                    rows.iter_mut().zip(&around[at * part..]).for_each(|(to, from)| *to += from);
                }
            },
        );
    });
    out
}

fn sum_of_rows(gradient: &FlexTensor) -> FlexTensor {
    let [rows, width] = flat::dims(gradient);
    let numbers = flat::numbers(gradient);
    let [sum] = column_sums(rows, width, |range, [sum]| {
        fast(
            #[inline(always)]
            || {
                for row in range {
                    let row = &numbers[row * width..][..width];
                    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
            },
        );
    });
    flat::tensor(sum, [width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn values_and_gradients_are_those_of_burns_operations(
            seed in any::<u64>(),
            rows in 1usize..40,
            inputs in 1usize..40,
            outputs in 1usize..40,
            is_around in any::<bool>(),
        ) {
            let sizes = [rows * inputs, inputs * outputs, outputs, rows * outputs];
            let parts = |t: &[Tensor<1>]| {
                let x = t[0].clone().reshape([rows, inputs]);
                let weight = t[1].clone().reshape([inputs, outputs]);
                let around = t.get(3).map(|around| around.clone().reshape([rows, outputs]));
                (x, weight, t[2].clone(), around)
            };
            agree(
                seed,
                &sizes[..if is_around { 4 } else { 3 }],
                |t| {
                    let (x, weight, bias, around) = parts(t);
                    linear(x, weight, bias, around).flatten(0, 1)
                },
                |t| {
                    let (x, weight, bias, around) = parts(t);
                    let out = x.matmul(weight) + bias.reshape([1, outputs]);
                    match around {
                        Some(around) => (out + around).flatten(0, 1),
                        None => out.flatten(0, 1),
                    }
                },
            )?;
        }
    }
}
