//! A linear layer with its bias and a residual connection, added in one pass.

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
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
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;
use surefoot_kernels::math::{column_sums, fast};

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::optional::{Optional, optional};
use crate::{dense, flat, shapes};

/// The backends' side of [`linear`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Linear: Backend {
    /// See [`linear`].
    fn applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, weight, bias, residual.into_option())
    }
}

/// `x · weight + bias`, with a residual added to it. `x` has a row for each result.
pub fn linear(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    shapes::assert_linear("linear", &x, &weight, &bias, residual.as_ref());
    point(Point::Operation);
    let residual = optional(residual);
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Linear>::applied(x, weight, bias, residual))
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let row = Shape::new([1, weight.shape()[1]]);
    let out = B::float_add(B::float_matmul(x, weight), B::float_reshape(bias, row));
    match residual {
        Some(residual) => B::float_add(out, residual),
        None => out,
    }
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the kernels take this tensor.
    fn takes(tensor: &FloatTensor<Self>) -> bool;

    /// The result.
    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self>;

    /// The gradient by x.
    fn product(gradient: FloatTensor<Self>, turned: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradients by the weight and by the bias, those of them that are asked for.
    fn gradients(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        asked: [bool; 2],
    ) -> [Option<FloatTensor<Self>>; 2];
}

impl Kernels for Flex {
    fn takes(tensor: &FlexTensor) -> bool {
        flat::is_ours(tensor)
    }

    fn forward(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: Option<FlexTensor>,
    ) -> FlexTensor {
        forward(x, weight, bias, residual)
    }

    fn product(gradient: FlexTensor, turned: FlexTensor) -> FlexTensor {
        dense::product(gradient, turned, |_, _| ())
    }

    fn gradients(
        x: FlexTensor,
        gradient: FlexTensor,
        [of_weight, of_bias]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let sum = of_bias.then(|| sum_of_rows(&flat::contiguous(gradient.clone())));
        let turned = |x| <Self as FloatTensorOps<Self>>::float_swap_dims(x, 0, 1);
        [of_weight.then(|| dense::product(turned(x), gradient, |_, _| ())), sum]
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn takes(tensor: &FloatTensor<Self>) -> bool {
        cube::is_ours(tensor)
    }

    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        let residual = residual.map_or(Optional::Absent, Optional::Given);
        <Self as CubeKernels>::linear_layer(x, weight, bias, residual)
    }

    fn product(gradient: FloatTensor<Self>, turned: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as CubeKernels>::product(gradient, turned)
    }

    fn gradients(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        _: [bool; 2],
    ) -> [Option<FloatTensor<Self>>; 2] {
        let (weight, bias) = <Self as CubeKernels>::linear_gradient(x, gradient);
        [Some(weight), Some(bias)]
    }
}

fn kernel_or_composed<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let ours = [&x, &weight, &bias].into_iter().chain(&residual).all(B::takes);
    match ours {
        true => B::forward(x, weight, bias, residual),
        false => composed::<B>(x, weight, bias, residual),
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Linear for Cube {
    fn applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Optional<Self>,
    ) -> FloatTensor<Self> {
        kernel_or_composed::<Self>(x, weight, bias, residual.into_option())
    }
}

impl Linear for Flex {
    fn applied(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: Optional<Self>,
    ) -> FlexTensor {
        kernel_or_composed::<Self>(x, weight, bias, residual.into_option())
    }
}

impl<B: Kernels, C: CheckpointStrategy> Linear for Autodiff<B, C> {
    fn applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Optional<Self>,
    ) -> FloatTensor<Self> {
        let residual = residual.into_option();
        let is_ours = |tensor: &FloatTensor<Self>| B::takes(tensor.primitive());
        if ![&x, &weight, &bias].into_iter().chain(&residual).all(is_ours) {
            return composed::<Self>(x, weight, bias, residual);
        }
        match residual {
            Some(residual) => record::<B, C, 4>([x, weight, bias, residual]),
            None => record::<B, C, 3>([x, weight, bias]),
        }
    }
}

fn record<B: Kernels, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let [x, weight, bias] = [0, 1, 2].map(|at| inputs[at].primitive().clone());
    let residual = inputs.get(3).map(|residual| residual.primitive().clone());
    let out = B::forward(x, weight, bias, residual);
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

impl<B: Kernels, const N: usize> Backward<B, N> for LinearBackward {
    type State = [NodeId; 2];

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let [x, weight] =
            ops.state.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let asked = [1, 2].map(|at| ops.parents[at].is_some());
        let [mut of_weight, mut of_bias] = match asked {
            [false, false] => [None, None],
            _ => B::gradients(x, gradient.clone(), asked),
        };
        for (at, parent) in ops.parents.into_iter().enumerate() {
            let Some(node) = parent else { continue };
            let found = match at {
                0 => Some(B::product(gradient.clone(), B::float_swap_dims(weight.clone(), 0, 1))),
                1 => of_weight.take(),
                2 => of_bias.take(),
                _ => Some(gradient.clone()),
            };
            if let Some(found) = found {
                grads.register::<B>(node.id, found);
            }
        }
    }
}

fn forward(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    residual: Option<FlexTensor>,
) -> FlexTensor {
    let (bias, residual) = (flat::contiguous(bias), residual.map(flat::contiguous));
    let (bias, residual) = (flat::numbers(&bias), residual.as_ref().map(flat::numbers));
    let width = bias.len();
    dense::product(
        x,
        weight,
        // Inlined into the product's kernel, and so compiled for the same instructions.
        #[inline(always)]
        |first, rows| {
            for row in rows.chunks_exact_mut(width) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
            if let Some(residual) = residual {
                rows.iter_mut().zip(&residual[first * width..]).for_each(|(to, from)| *to += from);
            }
        },
    )
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
            with_residual in any::<bool>(),
        ) {
            let sizes = [rows * inputs, inputs * outputs, outputs, rows * outputs];
            let parts = |t: &[Tensor<1>]| {
                let x = t[0].clone().reshape([rows, inputs]);
                let weight = t[1].clone().reshape([inputs, outputs]);
                let residual = t.get(3).map(|residual| residual.clone().reshape([rows, outputs]));
                (x, weight, t[2].clone(), residual)
            };
            agree(
                seed,
                &sizes[..if with_residual { 4 } else { 3 }],
                |t| {
                    let (x, weight, bias, residual) = parts(t);
                    linear(x, weight, bias, residual).flatten(0, 1)
                },
                |t| {
                    let (x, weight, bias, residual) = parts(t);
                    let out = x.matmul(weight) + bias.reshape([1, outputs]);
                    match residual {
                        Some(residual) => (out + residual).flatten(0, 1),
                        None => out.flatten(0, 1),
                    }
                },
            )?;
        }
    }
}
