//! Convolution of images without a copy of each window.
//!
//! Burn's CPU convolution copies every window of the image into a matrix (nine numbers for each
//! one of a 3×3 kernel) and multiplies that. Here a kernel's tap is a shift of the padded image,
//! and what is worked on stays in the cache; see `layout` and `kernel`.

mod kernel;
mod layout;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use burn::tensor::ops::ConvOptions;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use self::kernel::{Correlate, Products};
use self::layout::{InputGradient, Sizes};
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

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
    ) -> FloatTensor<Self> {
        composed::<Self>(x, weight, stride, padding)
    }
}

/// A convolution of `[samples, inputs, rows, columns]` with `[outputs, inputs, rows, columns]`,
/// without a bias.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, stride: usize, padding: usize) -> Tensor<4> {
    point(Point::Operation);
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Conv>::plain_conv2d(x, weight, stride, padding))
}

fn composed<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    stride: usize,
    padding: usize,
) -> FloatTensor<B> {
    B::conv2d(x, weight, None, ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1))
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Conv for burn::backend::Cube {}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl<C: CheckpointStrategy> Conv for Autodiff<burn::backend::Cube, C> {}

impl Conv for Flex {
    fn plain_conv2d(
        x: FlexTensor,
        weight: FlexTensor,
        stride: usize,
        padding: usize,
    ) -> FlexTensor {
        match sizes(&x, &weight, stride, padding) {
            Some(sizes) => forward(&sizes, x, weight),
            None => composed::<Self>(x, weight, stride, padding),
        }
    }
}

impl<C: CheckpointStrategy> Conv for Autodiff<Flex, C> {
    fn plain_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
        let Some(sizes) = sizes(x.primitive(), weight.primitive(), stride, padding) else {
            return composed::<Self>(x, weight, stride, padding);
        };
        match ConvBackward.prepare::<C>([x.node(), weight.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&x), prep.checkpoint(&weight), sizes);
                prep.finish(state, forward(&sizes, x.into_primitive(), weight.into_primitive()))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(forward(&sizes, x.into_primitive(), weight.into_primitive()))
            }
        }
    }
}

#[derive(Debug)]
struct ConvBackward;

impl Backward<Flex, 2> for ConvBackward {
    type State = (NodeId, NodeId, Sizes);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let [of_x, of_weight] = ops.parents;
        let gradient = grads.consume::<Flex>(&ops.node);
        let (x, weight, sizes) = ops.state;
        let x = checkpointer.retrieve_node_output::<FlexTensor>(x);
        let weight = checkpointer.retrieve_node_output::<FlexTensor>(weight);
        if let Some(node) = of_x {
            grads.register::<Flex>(node.id, x_gradient(&sizes, weight, gradient.clone()));
        }
        if let Some(node) = of_weight {
            grads.register::<Flex>(node.id, weight_gradient(&sizes, x, gradient));
        }
    }
}

/// The sizes of a convolution that the kernels here do.
fn sizes(x: &FlexTensor, weight: &FlexTensor, stride: usize, padding: usize) -> Option<Sizes> {
    let [samples, inputs, height, width] = flat::dims(x);
    let [outputs, same, rows, columns] = flat::dims(weight);
    let fits = inputs == same
        && [rows, columns].iter().all(|size| *size > 0)
        && height + 2 * padding >= rows
        && width + 2 * padding >= columns
        && samples * inputs * outputs * height * width * stride > 0;
    (fits && flat::is_ours(x) && flat::is_ours(weight)).then_some(Sizes {
        samples,
        inputs,
        outputs,
        image: [height, width],
        kernel: [rows, columns],
        stride,
        padding,
    })
}

fn forward(sizes: &Sizes, x: FlexTensor, weight: FlexTensor) -> FlexTensor {
    let (x, weight) = (flat::contiguous(x), flat::contiguous(weight));
    let (x, weight) = (flat::numbers(&x), flat::numbers(&weight));
    let terms = sizes.terms();
    let packed = layout::pack(sizes.outputs, terms, |row, term| weight[row * terms + term]);
    let chunk = sizes.chunk();
    let grid = layout::input_grid(sizes, chunk);
    let offsets = layout::input_offsets(sizes, &grid);
    let (of_input, of_output) =
        (chunk * sizes.inputs * sizes.in_plane(), chunk * sizes.outputs * sizes.out_plane());
    let mut out = vec![0.0; sizes.samples * sizes.outputs * sizes.out_plane()];
    let channels = layout::padded_channels(sizes.outputs);
    let scratch = || (vec![0.0; grid.length(sizes.inputs)], vec![0.0; channels * grid.positions()]);
    out.par_chunks_mut(of_output).zip(x.par_chunks(of_input)).for_each_init(
        scratch,
        |(source, rows), (out, x)| {
            layout::place_input(sizes, &grid, x, source);
            let positions = grid.positions();
            Correlate { source, offsets: &offsets, weights: &packed, out: rows, positions }.run();
            let samples = out.len() / (sizes.outputs * sizes.out_plane());
            layout::for_each_out_row(sizes, &grid, samples, |tight, wide| {
                out[tight].copy_from_slice(&rows[wide]);
            });
        },
    );
    let [rows, columns] = sizes.out_image();
    flat::tensor(out, [sizes.samples, sizes.outputs, rows, columns])
}

fn x_gradient(sizes: &Sizes, weight: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (weight, gradient) = (flat::contiguous(weight), flat::contiguous(gradient));
    let (weight, gradient) = (flat::numbers(&weight), flat::numbers(&gradient));
    let chunk = sizes.chunk();
    let plan = InputGradient::new(sizes, chunk, weight);
    let (of_input, of_output) =
        (chunk * sizes.inputs * sizes.in_plane(), chunk * sizes.outputs * sizes.out_plane());
    let mut out = vec![0.0; sizes.samples * sizes.inputs * sizes.in_plane()];
    let positions = plan.grid.positions();
    let channels = layout::padded_channels(sizes.inputs);
    let scratch = || (vec![0.0; plan.grid.length(sizes.outputs)], vec![0.0; channels * positions]);
    out.par_chunks_mut(of_input).zip(gradient.par_chunks(of_output)).for_each_init(
        scratch,
        |(source, rows), (out, gradient)| {
            plan.place(sizes, gradient, source);
            for phase in &plan.phases {
                let (offsets, weights) = (&phase.offsets, &phase.weights);
                Correlate { source, offsets, weights, out: rows, positions }.run();
                plan.take(sizes, phase, rows, out);
            }
        },
    );
    let [height, width] = sizes.image;
    flat::tensor(out, [sizes.samples, sizes.inputs, height, width])
}

fn weight_gradient(sizes: &Sizes, x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    let (x, gradient) = (flat::contiguous(x), flat::contiguous(gradient));
    let (x, gradient) = (flat::numbers(&x), flat::numbers(&gradient));
    let chunk = sizes.chunk();
    let grid = layout::input_grid(sizes, chunk);
    let offsets = layout::input_offsets(sizes, &grid);
    let (of_input, of_output) =
        (chunk * sizes.inputs * sizes.in_plane(), chunk * sizes.outputs * sizes.out_plane());
    let (terms, positions) = (sizes.terms(), grid.positions());
    let channels = layout::padded_channels(sizes.outputs);
    let scratch = || (vec![0.0; grid.length(sizes.inputs)], vec![0.0; channels * positions]);
    let parts: Vec<Vec<f32>> = x
        .par_chunks(of_input)
        .zip(gradient.par_chunks(of_output))
        .map_init(scratch, |(source, rows), (x, gradient)| {
            layout::place_input(sizes, &grid, x, source);
            let samples = gradient.len() / (sizes.outputs * sizes.out_plane());
            if samples < chunk {
                // What an earlier, longer chunk has left behind must not count.
                rows.fill(0.0);
            }
            layout::for_each_out_row(sizes, &grid, samples, |tight, wide| {
                rows[wide].copy_from_slice(&gradient[tight]);
            });
            let mut out = vec![0.0; channels * terms];
            let offsets = &offsets;
            Products { source, offsets, grads: rows, positions, out: &mut out }.run();
            out.truncate(sizes.outputs * terms);
            out
        })
        .collect();
    // In the order of the samples, whichever thread was first.
    let mut parts = parts.into_iter();
    let mut sum = parts.next().unwrap_or_default();
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    let [rows, columns] = sizes.kernel;
    flat::tensor(sum, [sizes.outputs, sizes.inputs, rows, columns])
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
}
