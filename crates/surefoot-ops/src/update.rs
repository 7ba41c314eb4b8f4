//! The optimizer's update in one pass over each parameter.
//!
//! New tensors are made and the old ones left alone, so that a step can be done again. Nothing is
//! differentiated here.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;
use surefoot_kernels::math::{TASK, fast};

use crate::flat;

/// A step of Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// What gradients are taken times.
    pub factor: f64,
    /// How slowly the mean of gradients forgets.
    pub beta1: f64,
    /// How slowly the mean of their squares forgets.
    pub beta2: f64,
    /// Keeps the division finite.
    pub epsilon: f64,
    /// What values are taken times before they are changed.
    pub keep: f64,
    /// The learning rate over the part of the mean that is there yet.
    pub rate: f64,
    /// The part of the mean of squares that is there yet.
    pub start: f64,
}

/// A step of gradient descent with momentum.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// What gradients are taken times.
    pub factor: f64,
    /// How slowly the sum of gradients forgets.
    pub momentum: f64,
    /// What values are added to the gradient times.
    pub decay: f64,
    /// The learning rate.
    pub rate: f64,
}

/// The backends' side of [`adamw`] and [`sgd`].
#[backend_extension(Flex, Cube: cfg(any(feature = "gpu", target_os = "macos")))]
pub(crate) trait Update: Backend {
    /// See [`adamw`].
    fn adamw_step(
        value: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: AdamW,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        composed_adamw::<Self>(value, gradient, first, second, step)
    }

    /// See [`sgd`].
    fn sgd_step(
        value: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        speed: FloatTensor<Self>,
        step: Sgd,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        composed_sgd::<Self>(value, gradient, speed, step)
    }
}

/// The new value and moments of a parameter.
pub fn adamw(
    value: Tensor<1>,
    gradient: Tensor<1>,
    first: Tensor<1>,
    second: Tensor<1>,
    step: AdamW,
) -> (Tensor<1>, Tensor<1>, Tensor<1>) {
    point(Point::Operation);
    let (value, first, second) = <Dispatch as Update>::adamw_step(
        value.into_dispatch(),
        gradient.into_dispatch(),
        first.into_dispatch(),
        second.into_dispatch(),
        step,
    );
    (Tensor::from_dispatch(value), Tensor::from_dispatch(first), Tensor::from_dispatch(second))
}

/// The new value and speed of a parameter.
pub fn sgd(
    value: Tensor<1>,
    gradient: Tensor<1>,
    speed: Tensor<1>,
    step: Sgd,
) -> (Tensor<1>, Tensor<1>) {
    point(Point::Operation);
    let (value, gradient) = (value.into_dispatch(), gradient.into_dispatch());
    let (value, speed) =
        <Dispatch as Update>::sgd_step(value, gradient, speed.into_dispatch(), step);
    (Tensor::from_dispatch(value), Tensor::from_dispatch(speed))
}

fn composed_adamw<B: Backend>(
    value: FloatTensor<B>,
    gradient: FloatTensor<B>,
    first: FloatTensor<B>,
    second: FloatTensor<B>,
    step: AdamW,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let scaled = |tensor, factor: f64| B::float_mul_scalar(tensor, factor.into());
    let gradient = scaled(gradient, step.factor);
    let squares = B::float_mul(gradient.clone(), gradient.clone());
    let first = B::float_add(scaled(first, step.beta1), scaled(gradient, 1.0 - step.beta1));
    let second = B::float_add(scaled(second, step.beta2), scaled(squares, 1.0 - step.beta2));
    let size = scaled(B::float_sqrt(second.clone()), 1.0 / step.start.sqrt());
    let size = B::float_add_scalar(size, step.epsilon.into());
    let change = scaled(B::float_div(first.clone(), size), step.rate);
    (B::float_sub(scaled(value, step.keep), change), first, second)
}

fn composed_sgd<B: Backend>(
    value: FloatTensor<B>,
    gradient: FloatTensor<B>,
    speed: FloatTensor<B>,
    step: Sgd,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let scaled = |tensor, factor: f64| B::float_mul_scalar(tensor, factor.into());
    let gradient = B::float_add(scaled(gradient, step.factor), scaled(value.clone(), step.decay));
    let speed = B::float_add(scaled(speed, step.momentum), gradient);
    (B::float_sub(value, scaled(speed.clone(), step.rate)), speed)
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
impl Update for burn::backend::Cube {}

impl Update for Flex {
    fn adamw_step(
        value: FlexTensor,
        gradient: FlexTensor,
        first: FlexTensor,
        second: FlexTensor,
        step: AdamW,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let inputs = [value, gradient, first, second];
        if !inputs.iter().all(flat::is_ours) {
            let [value, gradient, first, second] = inputs;
            return composed_adamw::<Self>(value, gradient, first, second, step);
        }
        let inputs = inputs.map(flat::contiguous);
        let numbers = inputs.each_ref().map(flat::numbers);
        let shape = inputs[0].layout().shape();
        let [value, first, second] = adamw_numbers(numbers, step);
        let tensor = |numbers| flat::shaped(numbers, shape.clone());
        (tensor(value), tensor(first), tensor(second))
    }

    fn sgd_step(
        value: FlexTensor,
        gradient: FlexTensor,
        speed: FlexTensor,
        step: Sgd,
    ) -> (FlexTensor, FlexTensor) {
        let inputs = [value, gradient, speed];
        if !inputs.iter().all(flat::is_ours) {
            let [value, gradient, speed] = inputs;
            return composed_sgd::<Self>(value, gradient, speed, step);
        }
        let inputs = inputs.map(flat::contiguous);
        let numbers = inputs.each_ref().map(flat::numbers);
        let shape = inputs[0].layout().shape();
        let [value, speed] = sgd_numbers(numbers, step);
        (flat::shaped(value, shape.clone()), flat::shaped(speed, shape.clone()))
    }
}

fn adamw_numbers([value, gradient, first, second]: [&[f32]; 4], step: AdamW) -> [Vec<f32>; 3] {
    let [factor, beta1, beta2, epsilon, keep, rate] =
        [step.factor, step.beta1, step.beta2, step.epsilon, step.keep, step.rate]
            .map(|number| number as f32);
    let (fresh1, fresh2) = ((1.0 - step.beta1) as f32, (1.0 - step.beta2) as f32);
    let inverse = (1.0 / step.start.sqrt()) as f32;
    let count = value.len();
    let mut out = [vec![0.0; count], vec![0.0; count], vec![0.0; count]];
    let [to_value, to_first, to_second] = &mut out;
    to_value
        .par_chunks_mut(TASK)
        .zip(to_first.par_chunks_mut(TASK))
        .zip(to_second.par_chunks_mut(TASK))
        .enumerate()
        .for_each(|(at, ((to_value, to_first), to_second))| {
            let part = at * TASK..at * TASK + to_value.len();
            let from = [&value[part.clone()], &gradient[part.clone()]];
            let means = [&first[part.clone()], &second[part]];
            fast(
                #[inline(always)]
                || {
                    let to = to_value.iter_mut().zip(to_first).zip(to_second);
                    let from = from[0].iter().zip(from[1]).zip(means[0].iter().zip(means[1]));
                    for (((to_value, to_first), to_second), ((value, gradient), means)) in
                        to.zip(from)
                    {
                        let gradient = gradient * factor;
                        let first = means.0 * beta1 + gradient * fresh1;
                        let second = means.1 * beta2 + gradient * gradient * fresh2;
                        let change = first / (second.sqrt() * inverse + epsilon) * rate;
                        *to_value = value * keep - change;
                        *to_first = first;
                        *to_second = second;
                    }
                },
            );
        });
    out
}

fn sgd_numbers([value, gradient, speed]: [&[f32]; 3], step: Sgd) -> [Vec<f32>; 2] {
    let [factor, momentum, decay, rate] =
        [step.factor, step.momentum, step.decay, step.rate].map(|number| number as f32);
    let count = value.len();
    let mut out = [vec![0.0; count], vec![0.0; count]];
    let [to_value, to_speed] = &mut out;
    to_value.par_chunks_mut(TASK).zip(to_speed.par_chunks_mut(TASK)).enumerate().for_each(
        |(at, (to_value, to_speed))| {
            let part = at * TASK..at * TASK + to_value.len();
            let (value, gradient) = (&value[part.clone()], &gradient[part.clone()]);
            let speed = &speed[part];
            fast(
                #[inline(always)]
                || {
                    let from = value.iter().zip(gradient).zip(speed);
                    for ((to_value, to_speed), ((value, gradient), speed)) in
                        to_value.iter_mut().zip(to_speed).zip(from)
                    {
                        let speed = speed * momentum + gradient * factor + value * decay;
                        *to_value = value - speed * rate;
                        *to_speed = speed;
                    }
                },
            );
        },
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Numbers;
    use burn::backend::ops::FloatTensorOps;
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;

    fn close(is: FlexTensor, should: FlexTensor) -> Result<(), TestCaseError> {
        for (is, should) in flat::numbers(&is).iter().zip(flat::numbers(&should)) {
            prop_assert!((is - should).abs() <= 2e-6 * (1.0 + should.abs()), "{is} {should}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn an_update_is_that_of_burns_operations(seed in any::<u64>(), size in 1usize..100) {
            let mut numbers = Numbers::new(seed);
            let mut tensor = || flat::tensor(numbers.take(size), [size]);
            let (value, gradient, first) = (tensor(), tensor(), tensor());
            let second = Flex::float_mul(first.clone(), first.clone());
            let step = AdamW {
                factor: 0.5, beta1: 0.9, beta2: 0.99, epsilon: 1e-3, keep: 0.98, rate: 0.1,
                start: 0.3,
            };
            let inputs = (value.clone(), gradient.clone(), first.clone(), second.clone());
            let should = composed_adamw::<Flex>(inputs.0, inputs.1, inputs.2, inputs.3, step);
            let is = Flex::adamw_step(value.clone(), gradient.clone(), first.clone(), second, step);
            close(is.0, should.0)?;
            close(is.1, should.1)?;
            close(is.2, should.2)?;
            let step = Sgd { factor: 0.5, momentum: 0.9, decay: 0.1, rate: 0.2 };
            let inputs = (value.clone(), gradient.clone(), first.clone());
            let should = composed_sgd::<Flex>(inputs.0, inputs.1, inputs.2, step);
            let is = Flex::sgd_step(value, gradient, first, step);
            close(is.0, should.0)?;
            close(is.1, should.1)?;
        }
    }

    #[test]
    fn the_wrappers_route_to_the_processor() {
        let device = Device::flex();
        let one = || Tensor::<1>::from_data(TensorData::from([1.0f32]), &device);
        let step = Sgd { factor: 1.0, momentum: 0.5, decay: 0.0, rate: 0.1 };
        let (value, speed) = sgd(one(), one(), one(), step);
        assert_eq!(value.into_scalar::<f32>(), 0.85);
        assert_eq!(speed.into_scalar::<f32>(), 1.5);
    }
}
