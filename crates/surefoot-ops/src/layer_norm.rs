//! Layer normalisation over the last dimension, in one pass over each row.

use std::fmt::Debug;
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
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;
use surefoot_kernels::math::{column_sums, each, fast, rows_at_once, sums};

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;

/// The backends' side of [`layer_norm`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait LayerNormed: Backend {
    /// See [`layer_norm`].
    fn layered(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, gamma, beta, epsilon)
    }
}

/// Normalises each row of `x`, scales it by `gamma` and shifts it by `beta`.
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f64) -> Tensor<2> {
    point(Point::Operation);
    let (x, gamma, beta) = (x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch());
    Tensor::from_dispatch(<Dispatch as LayerNormed>::layered(x, gamma, beta, epsilon))
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let row = Shape::new([1, x.shape()[1]]);
    let x = B::float_sub(x.clone(), B::float_mean_dim(x, 1));
    let square = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), 1);
    let deviation = B::float_sqrt(B::float_add_scalar(square, epsilon.into()));
    let x = B::float_mul(B::float_div(x, deviation), B::float_reshape(gamma, row.clone()));
    B::float_add(x, B::float_reshape(beta, row))
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// For each row its mean and the inverse of its deviation.
    type Stats: Clone + Debug + Send + 'static;

    /// Whether the kernels take this tensor.
    fn takes(tensor: &FloatTensor<Self>) -> bool;

    /// The result, and what the backward pass needs of it.
    fn forward(inputs: [FloatTensor<Self>; 3], epsilon: f64) -> (FloatTensor<Self>, Self::Stats);

    /// The gradients by x, gamma and beta.
    fn backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        stats: Self::Stats,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];
}

impl Kernels for Flex {
    type Stats = Vec<f32>;

    fn takes(tensor: &FlexTensor) -> bool {
        flat::is_ours(tensor)
    }

    fn forward(inputs: [FlexTensor; 3], epsilon: f64) -> (FlexTensor, Vec<f32>) {
        forward(inputs, epsilon)
    }

    fn backward(
        x: FlexTensor,
        gamma: FlexTensor,
        stats: Vec<f32>,
        gradient: FlexTensor,
    ) -> [FlexTensor; 3] {
        backward(x, gamma, &stats, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    type Stats = FloatTensor<Self>;

    fn takes(tensor: &FloatTensor<Self>) -> bool {
        cube::is_ours(tensor)
    }

    fn forward(inputs: [FloatTensor<Self>; 3], epsilon: f64) -> (FloatTensor<Self>, Self::Stats) {
        let [x, gamma, beta] = inputs;
        <Self as CubeKernels>::layer_norm(x, gamma, beta, epsilon)
    }

    fn backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        stats: Self::Stats,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3] {
        <Self as CubeKernels>::layer_norm_gradient(x, gamma, stats, gradient).into()
    }
}

fn kernel_or_composed<B: Kernels>(inputs: [FloatTensor<B>; 3], epsilon: f64) -> FloatTensor<B> {
    if inputs.iter().all(B::takes) {
        return B::forward(inputs, epsilon).0;
    }
    let [x, gamma, beta] = inputs;
    composed::<B>(x, gamma, beta, epsilon)
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl LayerNormed for Cube {
    fn layered(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        kernel_or_composed::<Self>([x, gamma, beta], epsilon)
    }
}

impl LayerNormed for Flex {
    fn layered(x: FlexTensor, gamma: FlexTensor, beta: FlexTensor, epsilon: f64) -> FlexTensor {
        kernel_or_composed::<Self>([x, gamma, beta], epsilon)
    }
}

impl<B: Kernels, C: CheckpointStrategy> LayerNormed for Autodiff<B, C> {
    fn layered(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let inputs = [x, gamma, beta];
        if !inputs.iter().all(|input| B::takes(input.primitive())) {
            let [x, gamma, beta] = inputs;
            return composed::<Self>(x, gamma, beta, epsilon);
        }
        let ids = inputs.each_ref().map(|input| input.id());
        let prep = NormBackward
            .prepare::<C>(inputs.each_ref().map(|input| input.node()))
            .memory_bound()
            .retro_forward(Recompute::<B> { ids, epsilon, backend: PhantomData })
            .parents(&inputs)
            .stateful();
        let primitives = inputs.each_ref().map(|input| input.primitive().clone());
        let (out, stats) = B::forward(primitives, epsilon);
        match prep {
            OpsKind::Tracked(mut prep) => {
                let [x, gamma, _] = &inputs;
                let state = ([prep.checkpoint(x), prep.checkpoint(gamma)], stats);
                prep.finish(state, out)
            }
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}

/// Does the forward pass again, when activations are recomputed.
#[derive(Debug)]
struct Recompute<B> {
    ids: [NodeId; 3],
    epsilon: f64,
    backend: PhantomData<B>,
}

impl<B: Kernels> RetroForward for Recompute<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let inputs = self.ids.map(|id| states.get_state::<FloatTensor<B>>(&id));
        states.save(out, B::forward(inputs, self.epsilon).0);
    }
}

#[derive(Debug)]
struct NormBackward;

impl<B: Kernels> Backward<B, 3> for NormBackward {
    type State = ([NodeId; 2], B::Stats);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let (ids, stats) = ops.state;
        let [x, gamma] = ids.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let found = B::backward(x, gamma, stats, gradient);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// The result, and for each row its mean and the inverse of its deviation.
fn forward(inputs: [FlexTensor; 3], epsilon: f64) -> (FlexTensor, Vec<f32>) {
    let inputs = inputs.map(flat::contiguous);
    let [x, gamma, beta] = inputs.each_ref().map(flat::numbers);
    let [rows, width] = flat::dims(&inputs[0]);
    let at_once = rows_at_once(width);
    let mut out = vec![0.0; x.len()];
    let mut stats = vec![0.0; rows * 2];
    out.par_chunks_mut((at_once * width).max(1))
        .zip(stats.par_chunks_mut(at_once * 2))
        .zip(x.par_chunks((at_once * width).max(1)))
        .for_each(|((out, stats), x)| {
            fast(
                #[inline(always)]
                || {
                    let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width));
                    for ((out, x), stats) in rows.zip(stats.chunks_exact_mut(2)) {
                        let [sum] = sums([x], |[x]| [x]);
                        let mean = sum / width as f32;
                        let [square] = sums([x], |[x]| [(x - mean) * (x - mean)]);
                        let inverse = 1.0 / (square / width as f32 + epsilon as f32).sqrt();
                        each(out, [x, gamma, beta], |[x, gamma, beta]| {
                            (x - mean) * inverse * gamma + beta
                        });
                        stats.copy_from_slice(&[mean, inverse]);
                    }
                },
            );
        });
    (flat::tensor(out, [rows, width]), stats)
}

/// The gradients by x, gamma and beta.
fn backward(
    x: FlexTensor,
    gamma: FlexTensor,
    stats: &[f32],
    gradient: FlexTensor,
) -> [FlexTensor; 3] {
    let inputs = [x, gamma, gradient].map(flat::contiguous);
    let [x, gamma, gradient] = inputs.each_ref().map(flat::numbers);
    let [rows, width] = flat::dims(&inputs[0]);
    let mut of_x = vec![0.0; x.len()];
    let at_once = rows_at_once(width);
    of_x.par_chunks_mut((at_once * width).max(1)).enumerate().for_each(|(at, of_x)| {
        let first = at * at_once;
        fast(
            #[inline(always)]
            || {
                for (row, of_x) in of_x.chunks_exact_mut(width).enumerate() {
                    let row = first + row;
                    let (mean, inverse) = (stats[2 * row], stats[2 * row + 1]);
                    let slices = [&x[row * width..][..width], &gradient[row * width..][..width]];
                    let [x, gradient] = slices;
                    let found = sums([x, gradient, gamma], |[x, gradient, gamma]| {
                        let scaled = gradient * gamma;
                        [scaled, scaled * (x - mean) * inverse]
                    });
                    let [shift, slope] = [found[0] / width as f32, found[1] / width as f32];
                    each(of_x, [x, gradient, gamma], |[x, gradient, gamma]| {
                        let normal = (x - mean) * inverse;
                        inverse * (gradient * gamma - shift - normal * slope)
                    });
                }
            },
        );
    });
    let [of_gamma, of_beta] = column_sums(rows, width, |range, [of_gamma, of_beta]| {
        fast(
            #[inline(always)]
            || {
                for row in range {
                    let (mean, inverse) = (stats[2 * row], stats[2 * row + 1]);
                    let (x, gradient) =
                        (&x[row * width..][..width], &gradient[row * width..][..width]);
                    for ((sum, x), gradient) in of_gamma.iter_mut().zip(x).zip(gradient) {
                        *sum += gradient * (x - mean) * inverse;
                    }
                    for (sum, gradient) in of_beta.iter_mut().zip(gradient) {
                        *sum += gradient;
                    }
                }
            },
        );
    });
    [
        flat::tensor(of_x, [rows, width]),
        flat::tensor(of_gamma, [width]),
        flat::tensor(of_beta, [width]),
    ]
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
            rows in 1usize..9,
            width in 4usize..70,
        ) {
            agree(
                seed,
                &[rows * width, width, width],
                |t| {
                    let x = t[0].clone().reshape([rows, width]);
                    layer_norm(x, t[1].clone(), t[2].clone(), 1e-5).flatten(0, 1)
                },
                |t| {
                    let x = t[0].clone().reshape([rows, width]);
                    let x = x.clone() - x.mean_dim(1);
                    let x = x.clone() / (x.clone() * x).mean_dim(1).add_scalar(1e-5).sqrt();
                    let x = x * t[1].clone().reshape([1, width]);
                    (x + t[2].clone().reshape([1, width])).flatten(0, 1)
                },
            )?;
        }
    }
}
