//! Convolution of images without a copy of each window.
//!
//! Burn's CPU convolution copies every window of the image into a matrix (nine numbers for each
//! one of a 3×3 kernel) and multiplies that. `surefoot_kernels::conv` copies none, and on GPUs `cube/conv.rs` does it.

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_flex::FlexTensor;

use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;
use surefoot_kernels::conv;
pub(crate) use surefoot_kernels::conv::Sizes;

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;

/// The backends' side of [`conv2d`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait Conv: Backend {
    /// See [`conv2d`].
    fn plain_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        stride: usize,
        padding: usize,
        compute: DType,
    ) -> FloatTensor<Self> {
        composed::<Self>(x, weight, stride, padding, compute)
    }
}

/// A convolution of `[samples, inputs, rows, columns]` with `[outputs, inputs, rows, columns]`,
/// without a bias.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, stride: usize, padding: usize) -> Tensor<4> {
    point(Point::Operation);
    let compute = x.dtype();
    convolved(x, weight, stride, padding, compute)
}

/// The same in mixed precision: the numbers of tensors in fp32 are rounded to `compute` before they are multiplied, forwards and for
/// gradients. The result is in fp32.
pub fn half_conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    stride: usize,
    padding: usize,
    compute: FloatDType,
) -> Tensor<4> {
    point(Point::Operation);
    convolved(x, weight, stride, padding, compute.into())
}

fn convolved(
    x: Tensor<4>,
    weight: Tensor<4>,
    stride: usize,
    padding: usize,
    compute: DType,
) -> Tensor<4> {
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    let out = <Dispatch as Conv>::plain_conv2d(x, weight, stride, padding, compute);
    Tensor::from_dispatch(out)
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    stride: usize,
    padding: usize,
    compute: DType,
) -> FloatTensor<B> {
    let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
    if x.dtype() == compute {
        return B::conv2d(x, weight, None, options);
    }
    let [x, weight] = [x, weight].map(|tensor| B::float_cast(tensor, compute.into()));
    B::float_cast(B::conv2d(x, weight, None, options), FloatDType::F32)
}

/// A convolution that kernels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convolution {
    pub(crate) sizes: Sizes,
    /// What numbers are rounded to before they are multiplied. The kernels for the CPU take f32.
    pub(crate) compute: DType,
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the kernels take a convolution of these tensors.
    fn take(x: &FloatTensor<Self>, weight: &FloatTensor<Self>, of: &Convolution) -> bool;

    /// The result.
    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        of: &Convolution,
    ) -> FloatTensor<Self>;

    /// The gradient by the images.
    fn x_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        of: &Convolution,
    ) -> FloatTensor<Self>;

    /// The gradient by the weights.
    fn weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        of: &Convolution,
    ) -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn take(x: &FlexTensor, weight: &FlexTensor, of: &Convolution) -> bool {
        flat::is_ours(x) && flat::is_ours(weight) && of.compute == DType::F32
    }

    fn forward(x: FlexTensor, weight: FlexTensor, of: &Convolution) -> FlexTensor {
        forward(of, x, weight)
    }

    fn x_gradient(weight: FlexTensor, gradient: FlexTensor, of: &Convolution) -> FlexTensor {
        x_gradient(of, weight, gradient)
    }

    fn weight_gradient(x: FlexTensor, gradient: FlexTensor, of: &Convolution) -> FlexTensor {
        weight_gradient(of, x, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn take(x: &FloatTensor<Self>, weight: &FloatTensor<Self>, of: &Convolution) -> bool {
        let [rows, columns] = of.sizes.kernel;
        let fits = |tensor| cube::convolves_in(tensor, of.compute);
        fits(x) && fits(weight) && rows * columns <= cube::MOST_TAPS
    }

    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        of: &Convolution,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::convolution(x, weight, *of)
    }

    fn x_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        of: &Convolution,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::convolution_x_gradient(weight, gradient, *of)
    }

    fn weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        of: &Convolution,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::convolution_weight_gradient(x, gradient, *of)
    }
}

/// By the backend's kernels, or composed.
fn plain<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    stride: usize,
    padding: usize,
    compute: DType,
) -> FloatTensor<B> {
    match convolution::<B>(&x, &weight, stride, padding, compute) {
        Some(of) => B::forward(x, weight, &of),
        None => composed::<B>(x, weight, stride, padding, compute),
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Conv for Cube {
    fn plain_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        stride: usize,
        padding: usize,
        compute: DType,
    ) -> FloatTensor<Self> {
        plain::<Self>(x, weight, stride, padding, compute)
    }
}

impl Conv for Flex {
    fn plain_conv2d(
        x: FlexTensor,
        weight: FlexTensor,
        stride: usize,
        padding: usize,
        compute: DType,
    ) -> FlexTensor {
        plain::<Self>(x, weight, stride, padding, compute)
    }
}

impl<B: Kernels, C: CheckpointStrategy> Conv for Autodiff<B, C> {
    fn plain_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        stride: usize,
        padding: usize,
        compute: DType,
    ) -> FloatTensor<Self> {
        let (of_x, of_weight) = (x.primitive(), weight.primitive());
        let Some(of) = convolution::<B>(of_x, of_weight, stride, padding, compute) else {
            return composed::<Self>(x, weight, stride, padding, compute);
        };
        match ConvBackward.prepare::<C>([x.node(), weight.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&x), prep.checkpoint(&weight), of);
                prep.finish(state, B::forward(x.into_primitive(), weight.into_primitive(), &of))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::forward(x.into_primitive(), weight.into_primitive(), &of))
            }
        }
    }
}

#[derive(Debug)]
struct ConvBackward;

impl<B: Kernels> Backward<B, 2> for ConvBackward {
    type State = (NodeId, NodeId, Convolution);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let [of_x, of_weight] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let (x, weight, of) = ops.state;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
        if let Some(node) = of_x {
            grads.register::<B>(node.id, B::x_gradient(weight, gradient.clone(), &of));
        }
        if let Some(node) = of_weight {
            grads.register::<B>(node.id, B::weight_gradient(x, gradient, &of));
        }
    }
}

/// The convolution, if the kernels do it.
fn convolution<B: Kernels>(
    x: &FloatTensor<B>,
    weight: &FloatTensor<B>,
    stride: usize,
    padding: usize,
    compute: DType,
) -> Option<Convolution> {
    let [samples, inputs, height, width] = x.shape().dims();
    let [outputs, same, rows, columns] = weight.shape().dims();
    let fits = inputs == same
        && [rows, columns].iter().all(|size| *size > 0)
        && height + 2 * padding >= rows
        && width + 2 * padding >= columns
        && samples * inputs * outputs * height * width * stride > 0;
    let (image, kernel) = ([height, width], [rows, columns]);
    let sizes = Sizes { samples, inputs, outputs, image, kernel, stride, padding };
    let of = Convolution { sizes, compute };
    (fits && B::take(x, weight, &of)).then_some(of)
}

fn forward(of: &Convolution, x: FlexTensor, weight: FlexTensor) -> FlexTensor {
    let (x, weight) = (flat::contiguous(x), flat::contiguous(weight));
    let [rows, columns] = of.sizes.out_image();
    let out = conv::forward(&of.sizes, flat::numbers(&x), flat::numbers(&weight));
    flat::tensor(out, [of.sizes.samples, of.sizes.outputs, rows, columns])
}

fn x_gradient(of: &Convolution, weight: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (weight, gradient) = (flat::contiguous(weight), flat::contiguous(gradient));
    let [height, width] = of.sizes.image;
    let out = conv::x_gradient(&of.sizes, flat::numbers(&weight), flat::numbers(&gradient));
    flat::tensor(out, [of.sizes.samples, of.sizes.inputs, height, width])
}

fn weight_gradient(of: &Convolution, x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (x, gradient) = (flat::contiguous(x), flat::contiguous(gradient));
    let [rows, columns] = of.sizes.kernel;
    let sum = conv::weight_gradient(&of.sizes, flat::numbers(&x), flat::numbers(&gradient));
    flat::tensor(sum, [of.sizes.outputs, of.sizes.inputs, rows, columns])
}

#[cfg(test)]
mod tests {
    use crate::testing::agree;
    use burn::tensor::Tensor;
    use burn::tensor::ops::ConvOptions;
    use proptest::prelude::*;

    /// Values and gradients are those of Burn's convolution.
    fn agrees(
        seed: u64,
        [of_x, of_weight]: [[usize; 4]; 2],
        stride: usize,
        padding: usize,
    ) -> Result<(), TestCaseError> {
        let given = |t: &[Tensor<1>]| (t[0].clone().reshape(of_x), t[1].clone().reshape(of_weight));
        agree(
            seed,
            &[of_x.iter().product(), of_weight.iter().product()],
            |t| {
                let (x, weight) = given(t);
                super::conv2d(x, weight, stride, padding).flatten(0, 3)
            },
            |t| {
                let (x, weight) = given(t);
                let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
                burn::tensor::module::conv2d(x, weight, None, options).flatten(0, 3)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn values_and_gradients_are_those_of_burns_convolution(
            seed in any::<u64>(),
            samples in 1usize..20,
            inputs in 1usize..12,
            outputs in 1usize..12,
            height in 3usize..12,
            width in 3usize..12,
            kernel in 1usize..4,
            stride in 1usize..4,
            padding in 0usize..3,
        ) {
            let shapes = [[samples, inputs, height, width], [outputs, inputs, kernel, kernel]];
            agrees(seed, shapes, stride, padding)?;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn kernels_of_3_by_3_with_many_channels_agree_too(
            seed in any::<u64>(),
            samples in 1usize..9,
            inputs in 28usize..50,
            outputs in 28usize..50,
            height in 4usize..14,
            width in 4usize..14,
            padding in 0usize..3,
        ) {
            let shapes = [[samples, inputs, height, width], [outputs, inputs, 3, 3]];
            agrees(seed, shapes, 1, padding)?;
        }
    }
}
