//! Products under autodiff on Cube devices: forward and backward by the kernels that multiply without autodiff, where Burn's own product
//! would round factors in f32 to TF32.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

use super::{Product, composed};
use crate::cube::CubeKernels;

impl<C: CheckpointStrategy> Product for Autodiff<Cube, C> {
    fn multiplied(
        weight: FloatTensor<Self>,
        turned: bool,
        x: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        if [&weight, &x].into_iter().any(|side| side.dtype() != DType::F32) {
            return composed::<Self>(weight, turned, x);
        }
        let weight = if turned { Self::float_swap_dims(weight, 0, 1) } else { weight };
        record::<C>(weight, x)
    }

    fn matrices(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        let rank = left.shape().len();
        let is_plain = rank >= 2
            && right.shape().len() == rank
            && [&left, &right].into_iter().all(|side| side.dtype() == DType::F32);
        if !is_plain {
            return Self::float_matmul(left, right);
        }
        let batch = |at: usize| left.shape()[at].max(right.shape()[at]);
        let batches: Vec<usize> = (0..rank - 2).map(batch).collect();
        let [left, right] = [left, right].map(|side| with_batches::<C>(side, &batches));
        record::<C>(left, right)
    }
}

/// Matrices repeated for the batches of the other side, if they are fewer.
fn with_batches<C: CheckpointStrategy>(
    side: FloatTensor<Autodiff<Cube, C>>,
    batches: &[usize],
) -> FloatTensor<Autodiff<Cube, C>> {
    let shape = side.shape();
    if shape[..batches.len()] == *batches {
        return side;
    }
    let whole = [batches, &shape[batches.len()..]].concat();
    <Autodiff<Cube, C> as FloatTensorOps<_>>::float_expand(side, Shape::from(whole))
}

/// The product, which remembers each side for the gradient by the other one.
fn record<C: CheckpointStrategy>(
    left: FloatTensor<Autodiff<Cube, C>>,
    right: FloatTensor<Autodiff<Cube, C>>,
) -> FloatTensor<Autodiff<Cube, C>> {
    let of_left = right.is_tracked();
    let of_right = left.is_tracked();
    let out = <Cube as CubeKernels>::product(left.primitive().clone(), right.primitive().clone());
    match ProductBackward.prepare::<C>([left.node(), right.node()]).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let left = of_left.then(|| prep.checkpoint(&left));
            let right = of_right.then(|| prep.checkpoint(&right));
            prep.finish([left, right], out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

#[derive(Debug)]
struct ProductBackward;

impl Backward<Cube, 2> for ProductBackward {
    type State = [Option<NodeId>; 2];

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<Cube>(&ops.node);
        let [left, right] = ops.state.map(|id| {
            let side = id.map(|id| checkpointer.retrieve_node_output::<FloatTensor<Cube>>(id));
            side.map(<Cube as FloatTensorOps<Cube>>::float_transpose)
        });
        let [of_left, of_right] = ops.parents;
        if let (Some(node), Some(right)) = (of_left, right) {
            let found = <Cube as CubeKernels>::product(gradient.clone(), right);
            grads.register::<Cube>(node.id, found);
        }
        if let (Some(node), Some(left)) = (of_right, left) {
            grads.register::<Cube>(node.id, <Cube as CubeKernels>::product(left, gradient));
        }
    }
}
