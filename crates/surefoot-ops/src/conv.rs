//! Convolution of images without a copy of each window.
//!
//! Burn's CPU convolution copies every window of the image into a matrix (nine numbers for each
//! one of a 3×3 kernel) and multiplies that. Here a kernel's tap is a shift of the padded image,
//! and what is worked on stays in the cache; see `direct`. Where it saves time, 3×3 kernels are done by `winograd`, with
//! fewer multiplications. On GPUs `cube/conv.rs` does it.

mod direct;
mod kernel;
mod layout;
mod winograd;

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

pub(crate) use self::layout::Sizes;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

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

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// Whether the kernels take a convolution of these tensors.
    fn take(x: &FloatTensor<Self>, weight: &FloatTensor<Self>, sizes: &Sizes) -> bool;

    /// The result.
    fn forward(x: FloatTensor<Self>, weight: FloatTensor<Self>, sizes: &Sizes)
    -> FloatTensor<Self>;

    /// The gradient by the images.
    fn x_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sizes: &Sizes,
    ) -> FloatTensor<Self>;

    /// The gradient by the weights.
    fn weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sizes: &Sizes,
    ) -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn take(x: &FlexTensor, weight: &FlexTensor, sizes: &Sizes) -> bool {
        flat::is_ours(x) && flat::is_ours(weight) && sizes.compute == DType::F32
    }

    fn forward(x: FlexTensor, weight: FlexTensor, sizes: &Sizes) -> FlexTensor {
        forward(sizes, x, weight)
    }

    fn x_gradient(weight: FlexTensor, gradient: FlexTensor, sizes: &Sizes) -> FlexTensor {
        x_gradient(sizes, weight, gradient)
    }

    fn weight_gradient(x: FlexTensor, gradient: FlexTensor, sizes: &Sizes) -> FlexTensor {
        weight_gradient(sizes, x, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn take(x: &FloatTensor<Self>, weight: &FloatTensor<Self>, sizes: &Sizes) -> bool {
        let [rows, columns] = sizes.kernel;
        let fits = |tensor| cube::convolves_in(tensor, sizes.compute);
        fits(x) && fits(weight) && rows * columns <= cube::MOST_TAPS
    }

    fn forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        sizes: &Sizes,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::convolution(x, weight, *sizes)
    }

    fn x_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sizes: &Sizes,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::convolution_x_gradient(weight, gradient, *sizes)
    }

    fn weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        sizes: &Sizes,
    ) -> FloatTensor<Self> {
        <Self as CubeKernels>::convolution_weight_gradient(x, gradient, *sizes)
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
    match sizes::<B>(&x, &weight, stride, padding, compute) {
        Some(sizes) => B::forward(x, weight, &sizes),
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
        let Some(sizes) = sizes::<B>(of_x, of_weight, stride, padding, compute) else {
            return composed::<Self>(x, weight, stride, padding, compute);
        };
        match ConvBackward.prepare::<C>([x.node(), weight.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&x), prep.checkpoint(&weight), sizes);
                prep.finish(state, B::forward(x.into_primitive(), weight.into_primitive(), &sizes))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::forward(x.into_primitive(), weight.into_primitive(), &sizes))
            }
        }
    }
}

#[derive(Debug)]
struct ConvBackward;

impl<B: Kernels> Backward<B, 2> for ConvBackward {
    type State = (NodeId, NodeId, Sizes);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let [of_x, of_weight] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let (x, weight, sizes) = ops.state;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
        if let Some(node) = of_x {
            grads.register::<B>(node.id, B::x_gradient(weight, gradient.clone(), &sizes));
        }
        if let Some(node) = of_weight {
            grads.register::<B>(node.id, B::weight_gradient(x, gradient, &sizes));
        }
    }
}

/// The sizes of a convolution that the kernels here do.
fn sizes<B: Kernels>(
    x: &FloatTensor<B>,
    weight: &FloatTensor<B>,
    stride: usize,
    padding: usize,
    compute: DType,
) -> Option<Sizes> {
    let [samples, inputs, height, width] = x.shape().dims();
    let [outputs, same, rows, columns] = weight.shape().dims();
    let fits = inputs == same
        && [rows, columns].iter().all(|size| *size > 0)
        && height + 2 * padding >= rows
        && width + 2 * padding >= columns
        && samples * inputs * outputs * height * width * stride > 0;
    let (image, kernel) = ([height, width], [rows, columns]);
    let sizes = Sizes { samples, inputs, outputs, image, kernel, stride, padding, compute };
    (fits && B::take(x, weight, &sizes)).then_some(sizes)
}

fn forward(sizes: &Sizes, x: FlexTensor, weight: FlexTensor) -> FlexTensor {
    let (x, weight) = (flat::contiguous(x), flat::contiguous(weight));
    let (x, weight) = (flat::numbers(&x), flat::numbers(&weight));
    let [rows, columns] = sizes.out_image();
    let out = match winograd::suits(sizes) {
        true => winograd::forward(sizes, x, weight),
        false => direct::forward(sizes, x, weight),
    };
    flat::tensor(out, [sizes.samples, sizes.outputs, rows, columns])
}

fn x_gradient(sizes: &Sizes, weight: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (weight, gradient) = (flat::contiguous(weight), flat::contiguous(gradient));
    let (weight, gradient) = (flat::numbers(&weight), flat::numbers(&gradient));
    let [height, width] = sizes.image;
    let out = match winograd::suits(sizes) {
        true => winograd::x_gradient(sizes, weight, gradient),
        false => direct::x_gradient(sizes, weight, gradient),
    };
    flat::tensor(out, [sizes.samples, sizes.inputs, height, width])
}

fn weight_gradient(sizes: &Sizes, x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (x, gradient) = (flat::contiguous(x), flat::contiguous(gradient));
    let (x, gradient) = (flat::numbers(&x), flat::numbers(&gradient));
    let [rows, columns] = sizes.kernel;
    let sum = match winograd::suits(sizes) {
        true => winograd::weight_gradient(sizes, x, gradient),
        false => direct::weight_gradient(sizes, x, gradient),
    };
    flat::tensor(sum, [sizes.outputs, sizes.inputs, rows, columns])
}

/// Adds up what tasks have found, in the order of the samples, whichever thread was first.
fn sum_of(parts: Vec<Vec<f32>>) -> Vec<f32> {
    let mut parts = parts.into_iter();
    let mut sum = parts.next().unwrap_or_default();
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sum
}

#[cfg(test)]
mod tests {
    use crate::testing::agree;
    use burn::tensor::ops::ConvOptions;
    use proptest::prelude::*;

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
            let (of_x, of_weight) =
                ([samples, inputs, height, width], [outputs, inputs, kernel, kernel]);
            agree(
                seed,
                &[of_x.iter().product(), of_weight.iter().product()],
                |t| {
                    let (x, weight) = (t[0].clone().reshape(of_x), t[1].clone().reshape(of_weight));
                    super::conv2d(x, weight, stride, padding).flatten(0, 3)
                },
                |t| {
                    let (x, weight) = (t[0].clone().reshape(of_x), t[1].clone().reshape(of_weight));
                    let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
                    burn::tensor::module::conv2d(x, weight, None, options).flatten(0, 3)
                },
            )?;
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
            let (of_x, of_weight) = ([samples, inputs, height, width], [outputs, inputs, 3, 3]);
            agree(
                seed,
                &[of_x.iter().product(), of_weight.iter().product()],
                |t| {
                    let (x, weight) = (t[0].clone().reshape(of_x), t[1].clone().reshape(of_weight));
                    super::conv2d(x, weight, 1, padding).flatten(0, 3)
                },
                |t| {
                    let (x, weight) = (t[0].clone().reshape(of_x), t[1].clone().reshape(of_weight));
                    let options = ConvOptions::new([1; 2], [padding; 2], [1, 1], 1);
                    burn::tensor::module::conv2d(x, weight, None, options).flatten(0, 3)
                },
            )?;
        }
    }
}
