//! Optimizers: AdamW, and SGD with momentum.
//!
//! Weights, gradients and moments are flat tensors in the order in which the model shows its
//! parameters. An update makes new tensors and leaves the old ones alone, so that a step that
//! turns out to have failed can be done again from what was.

use burn::tensor::{Device, Tensor};
use surefoot_ops::{AdamW, Clip, Packed, Sgd, adamw, adamw_packed, sgd};

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
    /// The same, packed, where the last update was one of packed parameters; and which ones those were.
    packed: Option<(Vec<usize>, [Packed; 2])>,
}

impl Moments {
    /// Moments after so many updates.
    pub fn new(
        first: Vec<Option<Tensor<1>>>,
        second: Vec<Option<Tensor<1>>>,
        updates: u64,
    ) -> Self {
        Self { first, second, updates, packed: None }
    }

    /// Both moments, packed as the gradients are. A parameter without moments has zeros.
    fn packed_as(&self, gradients: &PackedGradients, values: &[Tensor<1>]) -> Option<[Packed; 2]> {
        if let Some((order, packed)) = &self.packed
            && *order == gradients.order
            && packed.iter().all(|packed| packed.is_alike(&gradients.packed))
        {
            return Some(packed.clone());
        }
        let pack = |moments: &[Option<Tensor<1>>]| {
            if moments.iter().all(Option::is_none) {
                return Some(gradients.packed.zeros());
            }
            let moment = |at: &usize| {
                let moment = moments.get(*at).cloned().flatten();
                moment.unwrap_or_else(|| values[*at].zeros_like())
            };
            Packed::new(&gradients.order.iter().map(moment).collect::<Vec<_>>())
        };
        Some([pack(&self.first)?, pack(&self.second)?])
    }

    /// The same on another device.
    #[must_use]
    pub fn to_device(self, device: &Device) -> Self {
        let moved = |moments: Vec<Option<Tensor<1>>>| {
            let to = |tensor: Tensor<1>| tensor.to_device(device);
            moments.into_iter().map(|moment| moment.map(to)).collect()
        };
        Self::new(moved(self.first), moved(self.second), self.updates)
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

/// The gradients of a step, packed on devices where that saves launches.
#[derive(Clone, Debug)]
pub struct PackedGradients {
    packed: Packed,
    /// Which parameters have a gradient: first those that decay.
    order: Vec<usize>,
    decaying: usize,
}

impl PackedGradients {
    /// Packs copies of them. `decays` says of each parameter whether weight decay applies to it. None where nothing would
    /// be gained, or nothing can be packed.
    pub fn new(gradients: &[Option<Tensor<1>>], decays: impl Fn(usize) -> bool) -> Option<Self> {
        let given = (0..gradients.len()).filter(|at| gradients[*at].is_some());
        let (mut order, rest): (Vec<_>, Vec<_>) = given.partition(|at| decays(*at));
        let decaying = order.len();
        order.extend(rest);
        let tensors: Vec<Tensor<1>> =
            order.iter().filter_map(|at| gradients[*at].clone()).collect();
        Some(Self { packed: Packed::new(&tensors)?, order, decaying })
    }

    /// The gradients of `count` parameters, unpacked.
    pub fn unpacked(&self, count: usize) -> Vec<Option<Tensor<1>>> {
        let mut gradients = vec![None; count];
        for (at, gradient) in self.order.iter().zip(self.packed.parts()) {
            gradients[*at] = Some(gradient);
        }
        gradients
    }

    /// The sum of all numbers, or of their squares.
    pub fn sum(&self, squared: bool) -> Tensor<1> {
        self.packed.sum(squared)
    }
}

/// What an update of packed parameters made.
#[derive(Clone, Debug)]
pub struct PackedUpdate {
    /// The new values, of all parameters.
    pub values: Vec<Tensor<1>>,
    /// The new moments.
    pub moments: Moments,
    /// Tensors whose first numbers can be read only if all of it was made.
    pub witnesses: [Tensor<1>; 3],
}

impl UpdateRule {
    /// Whether [`update_packed`](Self::update_packed) knows the rule.
    pub fn takes_packed(&self) -> bool {
        matches!(self, Self::AdamW { .. })
    }

    /// Like [`update`](Self::update), for all parameters in one launch, with clipping on the device. None if the values can't
    /// be packed as the gradients are, or the rule is not known here.
    pub fn update_packed(
        &self,
        lr: f64,
        factor: f64,
        clip: Option<Clip>,
        mut values: Vec<Tensor<1>>,
        gradients: &PackedGradients,
        moments: &Moments,
    ) -> Option<PackedUpdate> {
        let Self::AdamW { beta1, beta2, epsilon, weight_decay } = *self else { return None };
        let packed = gradients.order.iter().map(|at| values[*at].clone()).collect::<Vec<_>>();
        let packed = Packed::new(&packed).filter(|packed| packed.is_alike(&gradients.packed))?;
        let [first, second] = moments.packed_as(gradients, &values)?;
        let updates = moments.updates + 1;
        let step = start_of(beta1, beta2, epsilon, lr, updates);
        let step = AdamW { factor, keep: 1.0 - lr * weight_decay, ..step };
        let inputs = [&packed, &gradients.packed, &first, &second];
        let [value, first, second] = adamw_packed(inputs, clip, step, gradients.decaying);
        let mut after = Moments::new(moments.first.clone(), moments.second.clone(), updates);
        after.first.resize(values.len(), None);
        after.second.resize(values.len(), None);
        let parts = value.parts().into_iter().zip(first.parts()).zip(second.parts());
        for (at, ((value, first), second)) in gradients.order.iter().zip(parts) {
            values[*at] = value;
            after.first[*at] = Some(first);
            after.second[*at] = Some(second);
        }
        let witnesses = [&value, &first, &second].map(Packed::whole);
        after.packed = Some((gradients.order.clone(), [first, second]));
        Some(PackedUpdate { values, moments: after, witnesses })
    }

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
        let updates = moments.updates + 1;
        let mut after = Moments::new(Vec::with_capacity(count), Vec::with_capacity(count), updates);
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
                    let keep = if decays { 1.0 - lr * weight_decay } else { 1.0 };
                    let step = start_of(beta1, beta2, epsilon, lr, updates);
                    let step = AdamW { factor, keep, ..step };
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

/// The numbers of an update of AdamW, the first of which is number 1; without decay, with gradients as they are.
fn start_of(beta1: f64, beta2: f64, epsilon: f64, lr: f64, updates: u64) -> AdamW {
    // Both means start at 0: the early ones are too small by these factors.
    let age = updates.min(1 << 30) as i32;
    let (start1, start) = (1.0 - beta1.powi(age), 1.0 - beta2.powi(age));
    AdamW { factor: 1.0, beta1, beta2, epsilon, keep: 1.0, rate: lr / start1, start }
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
