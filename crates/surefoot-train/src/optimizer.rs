//! Optimizers: AdamW, and SGD with momentum.
//!
//! Weights, gradients and moments are flat tensors in the order in which the model shows its
//! parameters. An update makes new tensors and leaves the old ones alone, so that a step that
//! turns out to have failed can be done again from what was.

use burn::tensor::{Device, Tensor};
use surefoot_ops::{AdamW, Sgd, adamw, sgd};

/// A rule for changing weights. Weight decay is applied to matrices and kernels, not to biases
/// and norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    AdamW {
        /// How slowly the mean of gradients forgets.
        beta1: f64,
        /// How slowly the mean of their squares forgets.
        beta2: f64,
        /// Keeps the division finite.
        epsilon: f64,
        /// The share of each weight that goes with each step, times the learning rate.
        weight_decay: f64,
    },
    /// Gradient descent with momentum.
    Sgd {
        /// How slowly the sum of gradients forgets; 0 for none.
        momentum: f64,
        /// Added to the gradient, times the weight.
        weight_decay: f64,
    },
}

/// How the learning rate changes over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// It doesn't.
    Constant,
    /// It falls to 0 evenly.
    Linear,
    /// It falls to 0 along half a cosine.
    Cosine,
}

impl Schedule {
    /// The learning rate of a step, counted from 0, in a run of `total` steps that warms up over
    /// the first `warmup`.
    pub fn rate(self, peak: f64, step: u64, warmup: u64, total: u64) -> f64 {
        if step < warmup {
            return peak * (step + 1) as f64 / warmup as f64;
        }
        let left = total.saturating_sub(warmup).max(1) as f64;
        let done = ((step - warmup) as f64 / left).min(1.0);
        match self {
            Self::Constant => peak,
            Self::Linear => peak * (1.0 - done),
            Self::Cosine => peak * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        }
    }
}

/// What a rule remembers between steps.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    /// Means of gradients, or their sums; none for a parameter that had no gradient yet.
    pub first: Vec<Option<Tensor<1>>>,
    /// Means of squares, for AdamW.
    pub second: Vec<Option<Tensor<1>>>,
    /// How often weights were changed.
    pub updates: u64,
}

impl Moments {
    /// The same on another device.
    #[must_use]
    pub fn to_device(self, device: &Device) -> Self {
        let moved = |moments: Vec<Option<Tensor<1>>>| {
            let to = |tensor: Tensor<1>| tensor.to_device(device);
            moments.into_iter().map(|moment| moment.map(to)).collect()
        };
        Self { first: moved(self.first), second: moved(self.second), updates: self.updates }
    }
}

/// One parameter's part in a step.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Its value.
    pub value: Tensor<1>,
    /// Its gradient, if it had one.
    pub gradient: Option<Tensor<1>>,
    /// Whether weight decay applies to it.
    pub decays: bool,
}

impl UpdateRule {
    /// New values and moments after a step at rate `lr`. Gradients are taken times `factor`,
    /// which undoes the loss scale and clips.
    pub fn update(
        &self,
        lr: f64,
        factor: f64,
        slices: Vec<Slice>,
        moments: &Moments,
    ) -> (Vec<Tensor<1>>, Moments) {
        let count = slices.len();
        let mut after = Moments {
            first: Vec::with_capacity(count),
            second: Vec::with_capacity(count),
            updates: moments.updates + 1,
        };
        let mut values = Vec::with_capacity(count);
        for (at, Slice { value, gradient, decays }) in slices.into_iter().enumerate() {
            let first = moments.first.get(at).cloned().flatten();
            let second = moments.second.get(at).cloned().flatten();
            let Some(gradient) = gradient else {
                values.push(value);
                after.first.push(first);
                after.second.push(second);
                continue;
            };
            let start = |moment: Option<Tensor<1>>| moment.unwrap_or_else(|| value.zeros_like());
            let (value, first, second) = match *self {
                Self::AdamW { beta1, beta2, epsilon, weight_decay } => {
                    // Both means start at 0: the early ones are too small by these factors.
                    let age = after.updates.min(1 << 30) as i32;
                    let (start1, start2) = (1.0 - beta1.powi(age), 1.0 - beta2.powi(age));
                    let keep = if decays { 1.0 - lr * weight_decay } else { 1.0 };
                    let rate = lr / start1;
                    let step = AdamW { factor, beta1, beta2, epsilon, keep, rate, start: start2 };
                    let (first, second) = (start(first), start(second));
                    let (value, first, second) = adamw(value, gradient, first, second, step);
                    (value, Some(first), Some(second))
                }
                Self::Sgd { momentum, weight_decay } => {
                    let decay = if decays { weight_decay } else { 0.0 };
                    let step = Sgd { factor, momentum, decay, rate: lr };
                    let speed = start(first);
                    let (value, speed) = sgd(value, gradient, speed, step);
                    (value, (momentum > 0.0).then_some(speed), None)
                }
            };
            values.push(value);
            after.first.push(first);
            after.second.push(second);
        }
        (values, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(tensor: &Tensor<1>) -> Vec<f32> {
        tensor.to_data_as::<f32>().try_to_vec().unwrap()
    }

    fn run(rule: UpdateRule, steps: usize) -> f32 {
        let device = Device::flex();
        let mut value = Tensor::<1>::from_floats([1.0], &device);
        let mut moments = Moments::default();
        for step in 0..steps {
            let gradient = Tensor::from_floats([0.1 * (step + 1) as f32], &device);
            let slice = Slice { value, gradient: Some(gradient), decays: true };
            let (mut values, after) = rule.update(0.1, 1.0, vec![slice], &moments);
            (value, moments) = (values.remove(0), after);
        }
        numbers(&value)[0]
    }

    /// The rule, written down once more for one number in fp64.
    fn adamw_by_hand(steps: usize) -> f64 {
        let (mut w, mut m, mut v) = (1.0f64, 0.0, 0.0);
        for step in 1..=steps {
            let g = 0.1 * step as f64;
            m = 0.9 * m + 0.1 * g;
            v = 0.99 * v + 0.01 * g * g;
            let (mh, vh) =
                (m / (1.0 - 0.9f64.powi(step as i32)), v / (1.0 - 0.99f64.powi(step as i32)));
            w -= 0.1 * 0.5 * w;
            w -= 0.1 * mh / (vh.sqrt() + 1e-8);
        }
        w
    }

    #[test]
    fn adamw_follows_its_formula() {
        let rule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.5 };
        let (is, should) = (f64::from(run(rule, 5)), adamw_by_hand(5));
        assert!((is - should).abs() < 1e-5, "{is} {should}");
    }

    #[test]
    fn sgd_follows_its_formula() {
        let (mut w, mut speed) = (1.0f64, 0.0);
        for step in 1..=4 {
            speed = 0.9 * speed + 0.1 * f64::from(step) + 0.5 * w;
            w -= 0.1 * speed;
        }
        let is = f64::from(run(UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.5 }, 4));
        assert!((is - w).abs() < 1e-5, "{is} {w}");
    }

    #[test]
    fn a_parameter_without_a_gradient_stays() {
        let device = Device::flex();
        let value = Tensor::<1>::from_floats([1.0, 2.0], &device);
        let slice = Slice { value, gradient: None, decays: true };
        let rule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.5 };
        let (values, moments) = rule.update(0.1, 1.0, vec![slice], &Moments::default());
        assert_eq!(numbers(&values[0]), [1.0, 2.0]);
        assert!(moments.first[0].is_none());
    }

    proptest! {
        #[test]
        fn a_rate_stays_between_0_and_its_peak(step in 0u64..2000, warmup in 0u64..100, total in 1u64..1000) {
            for schedule in [Schedule::Constant, Schedule::Linear, Schedule::Cosine] {
                let rate = schedule.rate(0.3, step, warmup, total);
                prop_assert!((0.0..=0.3).contains(&rate), "{rate}");
            }
        }
    }
}
