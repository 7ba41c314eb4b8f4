//! Cross entropy of logits, summed over rows: the softmax, its logarithm and the gradient in one
//! pass.

#[cfg(any(feature = "gpu", target_os = "macos"))]
use burn::backend::Cube;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;
use surefoot_kernels::math::{each, exp, fast, rows_at_once, sums};

#[cfg(any(feature = "gpu", target_os = "macos"))]
use crate::cube::{self, CubeKernels};
use crate::flat;

/// The backends' side of [`cross_entropy`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")), Autodiff)]
pub(crate) trait CrossEntropy: Backend {
    /// See [`cross_entropy`].
    fn missed(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        composed::<Self>(logits, targets)
    }
}

/// The cross entropy of each row of logits and its target, summed over the rows.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    point(Point::Operation);
    let (logits, targets) = (logits.into_dispatch(), targets.into_dispatch());
    Tensor::from_dispatch(<Dispatch as CrossEntropy>::missed(logits, targets))
}

fn composed<B: Backend>(logits: FloatTensor<B>, targets: IntTensor<B>) -> FloatTensor<B> {
    let rows = logits.shape()[0];
    let targets = B::int_reshape(targets, Shape::new([rows, 1]));
    let right = B::float_gather(1, B::log_softmax(logits, 1), targets);
    B::float_neg(B::float_sum(right))
}

/// Kernels of a backend.
pub(crate) trait Kernels: Backend {
    /// The loss and its gradient by the logits, if the kernels take these tensors.
    fn forward(
        logits: &FloatTensor<Self>,
        targets: &IntTensor<Self>,
    ) -> Option<(FloatTensor<Self>, FloatTensor<Self>)>;

    /// The gradient by the logits, given the one by the loss.
    fn backward(slopes: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl Kernels for Flex {
    fn forward(logits: &FlexTensor, targets: &FlexTensor) -> Option<(FlexTensor, FlexTensor)> {
        let classes = classes(logits, targets)?;
        Some(forward(logits.clone(), &classes))
    }

    fn backward(mut slopes: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let gradient = flat::contiguous(gradient);
        let factor = flat::numbers(&gradient)[0];
        fast(
            #[inline(always)]
            || slopes.storage_mut::<f32>().iter_mut().for_each(|slope| *slope *= factor),
        );
        slopes
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Kernels for Cube {
    fn forward(
        logits: &FloatTensor<Self>,
        targets: &IntTensor<Self>,
    ) -> Option<(FloatTensor<Self>, FloatTensor<Self>)> {
        let ours = cube::is_ours(logits) && targets.dtype() == DType::I32;
        ours.then(|| <Self as CubeKernels>::cross_entropy(logits.clone(), targets.clone()))
    }

    fn backward(slopes: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as CubeKernels>::cross_entropy_gradient(slopes, gradient)
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl CrossEntropy for Cube {
    fn missed(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        match <Self as Kernels>::forward(&logits, &targets) {
            Some((loss, _)) => loss,
            None => composed::<Self>(logits, targets),
        }
    }
}

impl CrossEntropy for Flex {
    fn missed(logits: FlexTensor, targets: FlexTensor) -> FlexTensor {
        match <Self as Kernels>::forward(&logits, &targets) {
            Some((loss, _)) => loss,
            None => composed::<Self>(logits, targets),
        }
    }
}

impl<B: Kernels, C: CheckpointStrategy> CrossEntropy for Autodiff<B, C> {
    fn missed(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        let Some((loss, slopes)) = B::forward(logits.primitive(), &targets) else {
            return composed::<Self>(logits, targets);
        };
        match EntropyBackward.prepare::<C>([logits.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(slopes, loss),
            OpsKind::UnTracked(prep) => prep.finish(loss),
        }
    }
}

#[derive(Debug)]
struct EntropyBackward;

impl<B: Kernels> Backward<B, 1> for EntropyBackward {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        point(Point::Operation);
        let gradient = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            grads.register::<B>(node.id, B::backward(ops.state, gradient));
        }
    }
}

/// The targets as numbers, if the kernel here takes them.
fn classes(logits: &FlexTensor, targets: &FlexTensor) -> Option<Vec<usize>> {
    let [_, width] = flat::dims(logits);
    let targets = flat::contiguous(targets.clone());
    let classes: Vec<usize> = match targets.dtype() {
        DType::I32 => targets.as_slice::<i32>()?.iter().map(|class| *class as usize).collect(),
        DType::I64 => targets.as_slice::<i64>()?.iter().map(|class| *class as usize).collect(),
        _ => return None,
    };
    let fit = flat::is_ours(logits) && classes.iter().all(|class| *class < width);
    fit.then_some(classes)
}

/// The loss, and its gradient by the logits.
fn forward(logits: FlexTensor, classes: &[usize]) -> (FlexTensor, FlexTensor) {
    let logits = flat::contiguous(logits);
    let [rows, width] = flat::dims(&logits);
    let numbers = flat::numbers(&logits);
    let at_once = rows_at_once(width);
    let mut slopes = vec![0.0; rows * width];
    let losses: Vec<f32> = slopes
        .par_chunks_mut(at_once * width)
        .zip(numbers.par_chunks(at_once * width))
        .zip(classes.par_chunks(at_once))
        .map(|((slopes, logits), classes)| {
            fast(
                #[inline(always)]
                || {
                    let mut loss = 0.0;
                    let rows = slopes.chunks_exact_mut(width).zip(logits.chunks_exact(width));
                    for ((slopes, logits), class) in rows.zip(classes) {
                        let most = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
                        each(slopes, [logits], |[logit]| exp(logit - most));
                        let [sum] = sums([&*slopes], |[power]| [power]);
                        let inverse = 1.0 / sum;
                        slopes.iter_mut().for_each(|slope| *slope *= inverse);
                        slopes[*class] -= 1.0;
                        loss += sum.ln() - (logits[*class] - most);
                    }
                    loss
                },
            )
        })
        .collect();
    let loss = losses.iter().sum();
    (flat::tensor(vec![loss], [1]), flat::tensor(slopes, [rows, width]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agree;
    use burn::tensor::activation::log_softmax;
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn values_and_gradients_are_those_of_burns_operations(
            seed in any::<u64>(),
            rows in 1usize..30,
            width in 1usize..40,
        ) {
            let classes: Vec<i32> = (0..rows).map(|row| (row * 7 % width) as i32).collect();
            let targets = |device: &Device| {
                Tensor::<1, Int>::from_data(TensorData::new(classes.clone(), [rows]), device)
            };
            agree(
                seed,
                &[rows * width],
                |t| {
                    let logits = t[0].clone().mul_scalar(9.0).reshape([rows, width]);
                    cross_entropy(logits, targets(&t[0].device()))
                },
                |t| {
                    let logits = t[0].clone().mul_scalar(9.0).reshape([rows, width]);
                    let targets = targets(&t[0].device()).reshape([rows, 1]);
                    log_softmax(logits, 1).gather(1, targets).sum().neg()
                },
            )?;
        }
    }

    #[test]
    fn a_number_that_is_none_makes_the_loss_none() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[f32::NAN, 0.0]], &device);
        let targets = Tensor::<1, Int>::from_data([1], &device);
        assert!(cross_entropy(logits, targets).into_scalar::<f32>().is_nan());
    }
}
