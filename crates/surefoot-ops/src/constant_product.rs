//! A product with a matrix that is never trained, whatever its numbers are kept as.
//!
//! The matrix is an object that multiplies, not a tensor: rows in half precision or in blocks of a few bits
//! stay as they are, and rows that are streamed are brought in once for the forward pass and once more for the backward
//! pass. Nothing of the activations is kept: the gradient of `W · x` is `Wᵀ · gradient`.
//!
//! Only for the CPU. Other devices hold such matrices as tensors, for which [`product`](crate::product()) does.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    Flex, backend_extension,
};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

/// A matrix that can be multiplied with and is not trained. Its tensors are on the CPU and have no autodiff.
pub trait ConstantMatrix: Debug + Send + Sync {
    /// `W · x`.
    fn times(&self, x: Tensor<2>) -> Tensor<2>;

    /// `Wᵀ · y`.
    fn transposed_times(&self, y: Tensor<2>) -> Tensor<2>;
}

/// The backends' side of [`constant_product`].
#[backend_extension(Flex, Autodiff)]
pub(crate) trait ConstantProduct: Backend {
    /// See [`constant_product`].
    fn multiplied(weight: Arc<dyn ConstantMatrix>, x: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// `weight · x`, through which gradients pass to `x`. Panics on a device that is not the CPU.
pub fn constant_product(weight: Arc<dyn ConstantMatrix>, x: Tensor<2>) -> Tensor<2> {
    point(Point::Operation);
    let product = <Dispatch as ConstantProduct>::multiplied(weight, x.into_dispatch());
    Tensor::from_dispatch(product)
}

fn public(tensor: FlexTensor) -> Tensor<2> {
    Tensor::from_dispatch(DispatchTensor {
        kind: DispatchTensorKind::Flex(BackendTensor::Float(tensor)),
        autodiff: DispatchAutodiffContext::Disabled,
    })
}

fn primitive(tensor: Tensor<2>) -> FlexTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Flex(tensor) => tensor.float(),
        #[allow(unreachable_patterns, reason = "builds with a GPU have more kinds")]
        _ => panic!("a constant matrix gave a tensor that is not on the CPU"),
    }
}

impl ConstantProduct for Flex {
    fn multiplied(weight: Arc<dyn ConstantMatrix>, x: FlexTensor) -> FlexTensor {
        primitive(weight.times(public(x)))
    }
}

impl<C: CheckpointStrategy> ConstantProduct for Autodiff<Flex, C> {
    fn multiplied(weight: Arc<dyn ConstantMatrix>, x: FloatTensor<Self>) -> FloatTensor<Self> {
        let out = Flex::multiplied(Arc::clone(&weight), x.primitive().clone());
        match ConstantBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(weight, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}

#[derive(Debug)]
struct ConstantBackward;

impl Backward<Flex, 1> for ConstantBackward {
    type State = Arc<dyn ConstantMatrix>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<Flex>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            let found = primitive(ops.state.transposed_times(public(gradient)));
            grads.register::<Flex>(node.id, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[derive(Debug)]
    struct Plain(Tensor<2>);

    impl ConstantMatrix for Plain {
        fn times(&self, x: Tensor<2>) -> Tensor<2> {
            self.0.clone().matmul(x)
        }

        fn transposed_times(&self, y: Tensor<2>) -> Tensor<2> {
            self.0.clone().transpose().matmul(y)
        }
    }

    #[test]
    fn the_gradient_is_that_of_a_plain_product() {
        let device = Device::flex();
        let weight = Tensor::<2>::from_floats([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], &device);
        let x = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]], &device);
        let factor = Tensor::<2>::from_floats([[2.0, 1.0], [-3.0, 0.25]], &device);
        let numbers = |tensor: Tensor<2>| tensor.into_data().try_to_vec::<f32>().unwrap();
        let through = |product: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let x = x.clone().autodiff().require_grad();
            let y = product(x.clone());
            let gradients = (y.clone() * factor.clone()).sum().backward();
            (numbers(y.inner()), numbers(x.grad(&gradients).unwrap().inner()))
        };
        let ours = through(&|x| constant_product(Arc::new(Plain(weight.clone())), x));
        let plain = through(&|x| weight.clone().matmul(x));
        assert_eq!(ours, plain);
        assert_eq!(ours.1[..2], [2.0 - 1.5, 1.0 + 0.125]);
        let untracked = constant_product(Arc::new(Plain(weight.clone())), x.clone());
        assert_eq!(numbers(untracked), plain.0);
    }
}
