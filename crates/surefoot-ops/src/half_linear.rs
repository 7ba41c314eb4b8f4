//! A linear layer in mixed precision: `x` and the weight are rounded to half precision for the product, and everything else is in
//! fp32: the sums inside the product where the device has them, bias, residual and gradients.

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Shape, Tensor};
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::optional::{Optional, optional};
use crate::shapes;

/// The backends' side of [`half_linear`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait HalfLinear: Backend {
    /// See [`half_linear`].
    fn half_applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        compute: DType,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, weight, bias, residual.into_option(), compute)
    }
}

/// `x · weight + bias` in fp32, with a residual added to it, whose product is made of numbers in `compute`. All tensors are in fp32.
pub fn half_linear(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    residual: Option<Tensor<2>>,
    compute: FloatDType,
) -> Tensor<2> {
    shapes::assert_linear("half_linear", &x, &weight, &bias, residual.as_ref());
    point(Point::Operation);
    let (residual, compute) = (optional(residual), DType::from(compute));
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    let out = <Dispatch as HalfLinear>::half_applied(x, weight, bias, residual, compute);
    Tensor::from_dispatch(out)
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
    compute: DType,
) -> FloatTensor<B> {
    let row = Shape::new([1, weight.shape()[1]]);
    let [x, weight, bias] = [x, weight, bias].map(|tensor| B::float_cast(tensor, compute.into()));
    let out = B::float_add(B::float_matmul(x, weight), B::float_reshape(bias, row));
    let out = B::float_cast(out, FloatDType::F32);
    match residual {
        Some(residual) => B::float_add(out, residual),
        None => out,
    }
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the device multiplies matrices in this dtype faster than in fp32, and the kernels take this tensor.
    fn takes(_tensor: &FloatTensor<Self>, _compute: DType) -> bool {
        false
    }

    /// The result.
    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
        compute: DType,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, weight, bias, residual, compute)
    }

    /// The gradients by x, weight and bias.
    fn backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        compute: DType,
    ) -> [FloatTensor<Self>; 3] {
        let half = |tensor| Self::float_cast(tensor, compute.into());
        let (left, right) = (half(gradient.clone()), Self::float_swap_dims(half(weight), 0, 1));
        let of_x = Self::float_matmul(left.clone(), right);
        let of_weight = Self::float_matmul(Self::float_swap_dims(half(x), 0, 1), left);
        let sum = Self::float_sum_dim(gradient, 0);
        let width = Shape::new([sum.shape()[1]]);
        let full = |tensor| Self::float_cast(tensor, FloatDType::F32);
        [full(of_x), full(of_weight), Self::float_reshape(sum, width)]
    }
}

impl Kernels for Flex {}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn takes(tensor: &FloatTensor<Self>, compute: DType) -> bool {
        cube::is_ours(tensor) && cube::multiplies_in(tensor, compute)
    }

    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
        compute: DType,
    ) -> FloatTensor<Self> {
        let residual = residual.map_or(Optional::Absent, Optional::Given);
        <Self as CubeKernels>::half_linear_layer(x, weight, bias, residual, compute)
    }

    fn backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        compute: DType,
    ) -> [FloatTensor<Self>; 3] {
        <Self as CubeKernels>::half_linear_gradient(x, weight, gradient, compute).into()
    }
}

impl HalfLinear for Flex {}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl HalfLinear for Cube {
    fn half_applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Optional<Self>,
        compute: DType,
    ) -> FloatTensor<Self> {
        let residual = residual.into_option();
        let takes = |tensor: &FloatTensor<Self>| <Self as Kernels>::takes(tensor, compute);
        let ours = [&x, &weight, &bias].into_iter().chain(&residual).all(takes);
        match ours {
            true => <Self as Kernels>::forward(x, weight, bias, residual, compute),
            false => composed::<Self>(x, weight, bias, residual, compute),
        }
    }
}

impl<B: Kernels, C: CheckpointStrategy> HalfLinear for Autodiff<B, C> {
    fn half_applied(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Optional<Self>,
        compute: DType,
    ) -> FloatTensor<Self> {
        let residual = residual.into_option();
        let is_ours = |tensor: &FloatTensor<Self>| B::takes(tensor.primitive(), compute);
        if ![&x, &weight, &bias].into_iter().chain(&residual).all(is_ours) {
            return composed::<Self>(x, weight, bias, residual, compute);
        }
        match residual {
            Some(residual) => record::<B, C, 4>([x, weight, bias, residual], compute),
            None => record::<B, C, 3>([x, weight, bias], compute),
        }
    }
}

fn record<B: Kernels, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    compute: DType,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let [x, weight, bias] = [0, 1, 2].map(|at| inputs[at].primitive().clone());
    let residual = inputs.get(3).map(|residual| residual.primitive().clone());
    let out = B::forward(x, weight, bias, residual, compute);
    match HalfBackward(compute).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = [prep.checkpoint(&inputs[0]), prep.checkpoint(&inputs[1])];
            prep.finish(state, out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

#[derive(Debug)]
struct HalfBackward(DType);

impl<B: Kernels, const N: usize> Backward<B, N> for HalfBackward {
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
        let found = B::backward(x, weight, gradient.clone(), self.0);
        let found = found.into_iter().chain([gradient]);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn numbers_are_rounded_for_the_product_and_nowhere_else() {
        let device = Device::flex();
        // 2049 is no number of fp16, whose next ones are 2048 and 2050.
        let x = Tensor::<2>::from_floats([[2049.0, 1.0]], &device);
        let weight = Tensor::<2>::from_floats([[1.0], [0.0]], &device);
        let bias = Tensor::<1>::from_floats([0.0], &device);
        let residual = Tensor::<2>::from_floats([[0.125]], &device);
        let out = half_linear(x, weight, bias, Some(residual), FloatDType::F16);
        assert_eq!(out.dtype(), DType::F32);
        assert_eq!(out.into_scalar::<f32>(), 2048.125);
    }
}
