//! GELU, `x · Φ(x)`, and its approximation by a hyperbolic tangent, with one power of e for each number.

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
use surefoot_kernels::gelu::{CUBE, SLOPE, tanh_cdf_and_slope};
use surefoot_kernels::math::{TASK, change, fast, map, normal};

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `x · Φ(x)`.
    Exact,
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`.
    Tanh,
}

/// The backends' side of [`gelu`] and [`gelu_tanh`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Gelu: Backend {
    /// See [`gelu`] and [`gelu_tanh`].
    fn smooth(x: FloatTensor<Self>, form: Form) -> FloatTensor<Self> {
        composed::<Self>(x, form)
    }
}

/// `x · Φ(x)`, where Φ is the normal distribution.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    point(Point::Operation);
    Tensor::from_dispatch(<Dispatch as Gelu>::smooth(x.into_dispatch(), Form::Exact))
}

/// GELU as GPT-2 has it (`gelu_new`): `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`.
pub fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    point(Point::Operation);
    Tensor::from_dispatch(<Dispatch as Gelu>::smooth(x.into_dispatch(), Form::Tanh))
}

/// Burn's own GELU differentiates by an approximation on most devices, so it is not used.
fn composed<B: Backend>(x: FloatTensor<B>, form: Form) -> FloatTensor<B> {
    let scaled = |tensor, factor: f64| B::float_mul_scalar(tensor, factor.into());
    let part = match form {
        Form::Exact => B::float_erf(scaled(x.clone(), FRAC_1_SQRT_2)),
        Form::Tanh => {
            let cube = B::float_mul(B::float_mul(x.clone(), x.clone()), x.clone());
            let inner = B::float_add(x.clone(), scaled(cube, CUBE));
            B::float_tanh(scaled(inner, SLOPE))
        }
    };
    let cdf = scaled(B::float_add_scalar(part, 1.0.into()), 0.5);
    B::float_mul(x, cdf)
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the kernels take this tensor.
    fn takes(tensor: &FloatTensor<Self>, form: Form) -> bool;

    /// The result.
    fn forward(x: FloatTensor<Self>, form: Form) -> FloatTensor<Self>;

    /// The gradient by x.
    fn backward(x: FloatTensor<Self>, gradient: FloatTensor<Self>, form: Form)
    -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn takes(tensor: &FlexTensor, _: Form) -> bool {
        flat::is_ours(tensor)
    }

    fn forward(x: FlexTensor, form: Form) -> FlexTensor {
        forward(x, form)
    }

    fn backward(x: FlexTensor, gradient: FlexTensor, form: Form) -> FlexTensor {
        backward(x, gradient, form)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    /// There is no kernel for the tangent.
    fn takes(tensor: &FloatTensor<Self>, form: Form) -> bool {
        form == Form::Exact && cube::is_ours(tensor)
    }

    fn forward(x: FloatTensor<Self>, _: Form) -> FloatTensor<Self> {
        <Self as CubeKernels>::gelu(x)
    }

    fn backward(x: FloatTensor<Self>, gradient: FloatTensor<Self>, _: Form) -> FloatTensor<Self> {
        <Self as CubeKernels>::gelu_gradient(x, gradient)
    }
}

fn kernel_or_composed<B: Kernels>(x: FloatTensor<B>, form: Form) -> FloatTensor<B> {
    if B::takes(&x, form) { B::forward(x, form) } else { composed::<B>(x, form) }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Gelu for Cube {
    fn smooth(x: FloatTensor<Self>, form: Form) -> FloatTensor<Self> {
        kernel_or_composed::<Self>(x, form)
    }
}

impl Gelu for Flex {
    fn smooth(x: FlexTensor, form: Form) -> FlexTensor {
        kernel_or_composed::<Self>(x, form)
    }
}

impl<B: Kernels, C: CheckpointStrategy> Gelu for Autodiff<B, C> {
    fn smooth(x: FloatTensor<Self>, form: Form) -> FloatTensor<Self> {
        if !B::takes(x.primitive(), form) {
            return composed::<Self>(x, form);
        }
        let prep = GeluBackward(form)
            .prepare::<C>([x.node()])
            .memory_bound()
            .retro_forward(Recompute::<B>(x.id(), form, PhantomData))
            .parents([&x])
            .stateful();
        match prep {
            OpsKind::Tracked(mut prep) => {
                let id = prep.checkpoint(&x);
                prep.finish(id, B::forward(x.into_primitive(), form))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::forward(x.into_primitive(), form)),
        }
    }
}

/// Does the forward pass again, when activations are recomputed.
#[derive(Debug)]
struct Recompute<B>(NodeId, Form, PhantomData<B>);

impl<B: Kernels> RetroForward for Recompute<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let x = states.get_state::<FloatTensor<B>>(&self.0);
        states.save(out, B::forward(x, self.1));
    }
}

#[derive(Debug)]
struct GeluBackward(Form);

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
            grads.register::<B>(node.id, B::backward(x, gradient, self.0));
        }
    }
}

fn forward(x: FlexTensor, form: Form) -> FlexTensor {
    let x = flat::contiguous(x);
    let numbers = flat::numbers(&x);
    let out = match form {
        Form::Exact => map(numbers, |x| x * normal(x).0),
        Form::Tanh => map(numbers, |x| x * tanh_cdf_and_slope(x).0),
    };
    flat::shaped(out, x.layout().shape().clone())
}

fn backward(x: FlexTensor, gradient: FlexTensor, form: Form) -> FlexTensor {
    let (x, mut gradient) = (flat::contiguous(x), flat::owned(gradient));
    let numbers = flat::numbers(&x).par_chunks(TASK);
    let slopes = gradient.storage_mut::<f32>().par_chunks_mut(TASK);
    slopes.zip(numbers).for_each(|(slopes, x)| {
        fast(
            #[inline(always)]
            || match form {
                Form::Exact => change(slopes, [x], |gradient, [x]| {
                    let (cdf, density) = normal(x);
                    gradient * (cdf + x * density)
                }),
                Form::Tanh => change(slopes, [x], |gradient, [x]| {
                    let (cdf, slope) = tanh_cdf_and_slope(x);
                    gradient * (cdf + x * slope)
                }),
            },
        );
    });
    gradient
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use burn::tensor::Device;
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

        #[test]
        fn the_approximation_and_its_gradients_are_those_of_burns(
            seed in any::<u64>(),
            size in 50usize..200,
        ) {
            agree(
                seed,
                &[size],
                |t| gelu_tanh(t[0].clone().mul_scalar(4.0)),
                |t| {
                    let x = t[0].clone().mul_scalar(4.0);
                    let inner = (x.clone() + x.clone().powi_scalar(3).mul_scalar(0.044715)).mul_scalar(0.7978845608);
                    (inner.tanh().add_scalar(1.0) * x).mul_scalar(0.5)
                },
            )?;
        }
    }

    #[test]
    fn the_approximation_is_finite_far_out() {
        let x = Tensor::<1>::from_floats([-1e30, -40.0, 0.0, 40.0, 1e12], &Device::flex());
        let y = gelu_tanh(x).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(y, [0.0, 0.0, 0.0, 40.0, 1e12]);
    }
}
