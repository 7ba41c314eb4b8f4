//! GELU, `x · Φ(x)`, with one power of e for each number.

use std::f64::consts::FRAC_1_SQRT_2;
use std::marker::PhantomData;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;
use crate::math::{TASK, change, each, fast, normal};

/// The backends' side of [`gelu`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Gelu: Backend {
    /// See [`gelu`].
    fn smooth(x: FloatTensor<Self>) -> FloatTensor<Self> {
        composed::<Self>(x)
    }
}

/// `x · Φ(x)`, where Φ is the normal distribution.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    point(Point::Operation);
    Tensor::from_dispatch(<Dispatch as Gelu>::smooth(x.into_dispatch()))
}

/// Burn's own GELU differentiates by an approximation on most devices, so it is not used.
fn composed<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let erf = B::float_erf(B::float_mul_scalar(x.clone(), FRAC_1_SQRT_2.into()));
    let share = B::float_mul_scalar(B::float_add_scalar(erf, 1.0.into()), 0.5.into());
    B::float_mul(x, share)
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the kernels take this tensor.
    fn takes(tensor: &FloatTensor<Self>) -> bool;

    /// The result.
    fn forward(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradient by x.
    fn backward(x: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn takes(tensor: &FlexTensor) -> bool {
        flat::is_ours(tensor)
    }

    fn forward(x: FlexTensor) -> FlexTensor {
        forward(x)
    }

    fn backward(x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        backward(x, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn takes(tensor: &FloatTensor<Self>) -> bool {
        cube::is_ours(tensor)
    }

    fn forward(x: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as CubeKernels>::gelu(x)
    }

    fn backward(x: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as CubeKernels>::gelu_gradient(x, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Gelu for Cube {
    fn smooth(x: FloatTensor<Self>) -> FloatTensor<Self> {
        if Self::takes(&x) { <Self as Kernels>::forward(x) } else { composed::<Self>(x) }
    }
}

impl Gelu for Flex {
    fn smooth(x: FlexTensor) -> FlexTensor {
        if Self::takes(&x) { <Self as Kernels>::forward(x) } else { composed::<Self>(x) }
    }
}

impl<B: Kernels, C: CheckpointStrategy> Gelu for Autodiff<B, C> {
    fn smooth(x: FloatTensor<Self>) -> FloatTensor<Self> {
        if !B::takes(x.primitive()) {
            return composed::<Self>(x);
        }
        let prep = GeluBackward
            .prepare::<C>([x.node()])
            .memory_bound()
            .retro_forward(Recompute::<B>(x.id(), PhantomData))
            .parents([&x])
            .stateful();
        match prep {
            OpsKind::Tracked(mut prep) => {
                let id = prep.checkpoint(&x);
                prep.finish(id, B::forward(x.into_primitive()))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::forward(x.into_primitive())),
        }
    }
}

/// Does the forward pass again, when activations are recomputed.
#[derive(Debug)]
struct Recompute<B>(NodeId, PhantomData<B>);

impl<B: Kernels> RetroForward for Recompute<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let x = states.get_state::<FloatTensor<B>>(&self.0);
        states.save(out, B::forward(x));
    }
}

#[derive(Debug)]
struct GeluBackward;

impl<B: Kernels> Backward<B, 1> for GeluBackward {
    type State = NodeId;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(ops.state);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            grads.register::<B>(node.id, B::backward(x, gradient));
        }
    }
}

fn forward(x: FlexTensor) -> FlexTensor {
    let x = flat::contiguous(x);
    let numbers = flat::numbers(&x);
    let mut out = vec![0.0; numbers.len()];
    out.par_chunks_mut(TASK).zip(numbers.par_chunks(TASK)).for_each(|(out, x)| {
        fast(
            #[inline(always)]
            || each(out, [x], |[x]| x * normal(x).0),
        );
    });
    flat::shaped(out, x.layout().shape().clone())
}

fn backward(x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (x, mut gradient) = (flat::contiguous(x), flat::owned(gradient));
    let numbers = flat::numbers(&x).par_chunks(TASK);
    let slopes = gradient.storage_mut::<f32>().par_chunks_mut(TASK);
    slopes.zip(numbers).for_each(|(slopes, x)| {
        fast(
            #[inline(always)]
            || {
                change(slopes, [x], |gradient, [x]| {
                    let (share, density) = normal(x);
                    gradient * (share + x * density)
                });
            },
        );
    });
    gradient
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn values_and_gradients_are_those_of_burns_gelu(
            seed in any::<u64>(),
            size in 50usize..200,
        ) {
            agree(
                seed,
                &[size],
                |t| gelu(t[0].clone().mul_scalar(4.0)),
                |t| burn::tensor::activation::gelu(t[0].clone().mul_scalar(4.0)),
            )?;
        }
    }
}
