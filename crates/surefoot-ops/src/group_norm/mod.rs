//! Group normalisation of images, with what comes after it in a residual network: adding the residual
//! connection, and ReLU.
//!
//! Only the means and deviations are kept for the backward pass; where ReLU let nothing through
//! is computed again from the input.

mod processor;

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
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;
use crate::optional::{Optional, optional};
use processor::{Inputs, backward, forward};

/// What a normalisation is besides its tensors.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    /// Groups of channels, each with a mean and a deviation of its own.
    pub groups: usize,
    /// Keeps the division finite.
    pub epsilon: f64,
    /// Whether ReLU comes last.
    pub relu: bool,
}

/// The backends' side of [`group_norm`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait GroupNormed: Backend {
    /// See [`group_norm`].
    fn grouped(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] around: Optional<Self>,
        norm: GroupNorm,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, gamma, beta, around.into_option(), norm)
    }
}

/// Normalises `[samples, channels, rows, columns]` over each sample's groups of channels, scales
/// by `gamma` and shifts by `beta` for each channel, adds `around`, and applies ReLU.
pub fn group_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    around: Option<Tensor<4>>,
    norm: GroupNorm,
) -> Tensor<4> {
    point(Point::Operation);
    let around = optional(around);
    let (x, gamma, beta) = (x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch());
    Tensor::from_dispatch(<Dispatch as GroupNormed>::grouped(x, gamma, beta, around, norm))
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    around: Option<FloatTensor<B>>,
    norm: GroupNorm,
) -> FloatTensor<B> {
    let shape = x.shape();
    let (samples, channels) = (shape[0], shape[1]);
    let size = shape.num_elements() / (samples * norm.groups);
    let x = B::float_reshape(x, Shape::new([samples, norm.groups, size]));
    let x = B::float_sub(x.clone(), B::float_mean_dim(x, 2));
    let square = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), 2);
    let deviation = B::float_sqrt(B::float_add_scalar(square, norm.epsilon.into()));
    let x = B::float_reshape(B::float_div(x, deviation), shape);
    let each = Shape::new([1, channels, 1, 1]);
    let x = B::float_mul(x, B::float_reshape(gamma, each.clone()));
    let x = B::float_add(x, B::float_reshape(beta, each));
    let x = match around {
        Some(around) => B::float_add(x, around),
        None => x,
    };
    if norm.relu { B::relu(x) } else { x }
}

/// Kernels of a backend. Inputs are x, gamma and beta; `around` is what is added.
pub(crate) trait Kernels: Backend {
    /// For each group its mean and the inverse of its deviation.
    type Stats: Clone + Debug + Send + 'static;

    /// Whether the kernels take this tensor.
    fn takes(tensor: &FloatTensor<Self>) -> bool;

    /// The result, and what the backward pass needs of it.
    fn forward(
        inputs: [FloatTensor<Self>; 3],
        around: Option<FloatTensor<Self>>,
        norm: GroupNorm,
    ) -> (FloatTensor<Self>, Self::Stats);

    /// The gradients by x, gamma, beta and the residual.
    fn backward(
        inputs: [FloatTensor<Self>; 3],
        around: Option<FloatTensor<Self>>,
        norm: GroupNorm,
        stats: Self::Stats,
        gradient: FloatTensor<Self>,
    ) -> [Option<FloatTensor<Self>>; 4];
}

impl Kernels for Flex {
    type Stats = Vec<f32>;

    fn takes(tensor: &FlexTensor) -> bool {
        flat::is_ours(tensor)
    }

    fn forward(
        inputs: [FlexTensor; 3],
        around: Option<FlexTensor>,
        norm: GroupNorm,
    ) -> (FlexTensor, Vec<f32>) {
        forward(&Inputs::new(inputs, around), norm)
    }

    fn backward(
        inputs: [FlexTensor; 3],
        around: Option<FlexTensor>,
        norm: GroupNorm,
        stats: Vec<f32>,
        gradient: FlexTensor,
    ) -> [Option<FlexTensor>; 4] {
        backward(&Inputs::new(inputs, around), norm, &stats, flat::contiguous(gradient))
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    type Stats = FloatTensor<Self>;

    fn takes(tensor: &FloatTensor<Self>) -> bool {
        cube::is_ours(tensor)
    }

    fn forward(
        inputs: [FloatTensor<Self>; 3],
        around: Option<FloatTensor<Self>>,
        norm: GroupNorm,
    ) -> (FloatTensor<Self>, Self::Stats) {
        let [x, gamma, beta] = inputs;
        let around = around.map_or(Optional::Absent, Optional::Given);
        let GroupNorm { groups, epsilon, relu } = norm;
        <Self as CubeKernels>::group_norm(x, gamma, beta, around, groups, epsilon, relu)
    }

    fn backward(
        inputs: [FloatTensor<Self>; 3],
        around: Option<FloatTensor<Self>>,
        norm: GroupNorm,
        stats: Self::Stats,
        gradient: FloatTensor<Self>,
    ) -> [Option<FloatTensor<Self>>; 4] {
        type Ours = Cube;
        let [x, gamma, beta] = inputs;
        let is_around = around.is_some();
        let before = match norm.relu {
            true => <Ours as CubeKernels>::group_norm_before_relu(
                x.clone(),
                gamma.clone(),
                beta,
                around.map_or(Optional::Absent, Optional::Given),
                stats.clone(),
                gradient,
                norm.groups,
            ),
            false => gradient,
        };
        let of_around = is_around.then(|| before.clone());
        let (of_x, of_gamma, of_beta) =
            <Ours as CubeKernels>::group_norm_gradient(x, gamma, stats, before, norm.groups);
        [Some(of_x), Some(of_gamma), Some(of_beta), of_around]
    }
}

/// Whether the kernels take these tensors.
fn ours<B: Kernels>(
    inputs: [&FloatTensor<B>; 3],
    around: Option<&FloatTensor<B>>,
    norm: GroupNorm,
) -> bool {
    let shape = inputs[0].shape();
    inputs.into_iter().chain(around).all(B::takes)
        && around.is_none_or(|around| around.shape() == shape)
        && shape[1].is_multiple_of(norm.groups)
        && shape.num_elements() > 0
}

fn kernel_or_composed<B: Kernels>(
    inputs: [FloatTensor<B>; 3],
    around: Option<FloatTensor<B>>,
    norm: GroupNorm,
) -> FloatTensor<B> {
    if ours::<B>(inputs.each_ref(), around.as_ref(), norm) {
        return B::forward(inputs, around, norm).0;
    }
    let [x, gamma, beta] = inputs;
    composed::<B>(x, gamma, beta, around, norm)
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl GroupNormed for Cube {
    fn grouped(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        around: Optional<Self>,
        norm: GroupNorm,
    ) -> FloatTensor<Self> {
        kernel_or_composed::<Self>([x, gamma, beta], around.into_option(), norm)
    }
}

impl GroupNormed for Flex {
    fn grouped(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        around: Optional<Self>,
        norm: GroupNorm,
    ) -> FlexTensor {
        kernel_or_composed::<Self>([x, gamma, beta], around.into_option(), norm)
    }
}

impl<B: Kernels, C: CheckpointStrategy> GroupNormed for Autodiff<B, C> {
    fn grouped(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        around: Optional<Self>,
        norm: GroupNorm,
    ) -> FloatTensor<Self> {
        let around = around.into_option();
        let three = [x.primitive(), gamma.primitive(), beta.primitive()];
        if !ours::<B>(three, around.as_ref().map(|around| around.primitive()), norm) {
            return composed::<Self>(x, gamma, beta, around, norm);
        }
        match around {
            Some(around) => record::<B, C, 4>([x, gamma, beta, around], norm),
            None => record::<B, C, 3>([x, gamma, beta], norm),
        }
    }
}

/// x, gamma and beta, and what is added to the result.
fn parts<T, const N: usize>(tensors: [T; N]) -> ([T; 3], Option<T>) {
    let mut tensors = tensors.into_iter();
    match (tensors.next(), tensors.next(), tensors.next()) {
        (Some(x), Some(gamma), Some(beta)) => ([x, gamma, beta], tensors.next()),
        _ => panic!("a norm has three tensors or four"),
    }
}

fn record<B: Kernels, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    norm: GroupNorm,
) -> FloatTensor<Autodiff<B, C>> {
    let ids = inputs.each_ref().map(|input| input.id());
    let prep = NormBackward(norm)
        .prepare::<C>(inputs.each_ref().map(|input| input.node()))
        .memory_bound()
        .retro_forward(Recompute::<B, N> { ids, norm, backend: PhantomData })
        .parents(&inputs)
        .stateful();
    let (three, around) = parts(inputs.each_ref().map(|input| input.primitive().clone()));
    let (out, stats) = B::forward(three, around, norm);
    match prep {
        OpsKind::Tracked(mut prep) => {
            let ids = inputs.each_ref().map(|input| prep.checkpoint(input));
            prep.finish((ids, stats), out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

/// Does the forward pass again, when activations are recomputed.
#[derive(Debug)]
struct Recompute<B, const N: usize> {
    ids: [NodeId; N],
    norm: GroupNorm,
    backend: PhantomData<B>,
}

impl<B: Kernels, const N: usize> RetroForward for Recompute<B, N> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let (inputs, around) = parts(self.ids.map(|id| states.get_state::<FloatTensor<B>>(&id)));
        states.save(out, B::forward(inputs, around, self.norm).0);
    }
}

#[derive(Debug)]
struct NormBackward(GroupNorm);

impl<B: Kernels, const N: usize> Backward<B, N> for NormBackward {
    type State = ([NodeId; N], B::Stats);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let (ids, stats) = ops.state;
        let (inputs, around) =
            parts(ids.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
        let found = B::backward(inputs, around, self.0, stats, gradient);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let (Some(node), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use burn::tensor::activation::relu as burns_relu;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn values_and_gradients_are_those_of_burns_operations(
            seed in any::<u64>(),
            samples in 1usize..5,
            groups in 1usize..4,
            each_group in 1usize..4,
            height in 3usize..7,
            width in 3usize..7,
            relu in any::<bool>(),
            is_around in any::<bool>(),
        ) {
            let channels = groups * each_group;
            let shape = [samples, channels, height, width];
            let size = shape.iter().product();
            let norm = GroupNorm { groups, epsilon: 1e-5, relu };
            let image = |t: &[Tensor<1>], at: usize| t[at].clone().reshape(shape);
            let sizes = [size, channels, channels, size];
            agree(
                seed,
                &sizes[..if is_around { 4 } else { 3 }],
                |t| {
                    let around = is_around.then(|| image(t, 3));
                    group_norm(image(t, 0), t[1].clone(), t[2].clone(), around, norm).flatten(0, 3)
                },
                |t| {
                    let x = image(t, 0).reshape([samples, groups, size / samples / groups]);
                    let x = x.clone() - x.mean_dim(2);
                    let x = x.clone() / (x.clone() * x).mean_dim(2).add_scalar(1e-5).sqrt();
                    let each = [1, channels, 1, 1];
                    let x = x.reshape(shape) * t[1].clone().reshape(each);
                    let x = x + t[2].clone().reshape(each);
                    let x = if is_around { x + image(t, 3) } else { x };
                    if relu { burns_relu(x).flatten(0, 3) } else { x.flatten(0, 3) }
                },
            )?;
        }
    }
}
