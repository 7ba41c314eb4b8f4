//! One guarded step: forward, backward, update, as a function from a state to the next.
//!
//! Nothing of a step is visible until it returns, so the guard may run it again: in parts whose
//! gradients are added up, with activations recomputed, or on another device. The new state is
//! committed by the caller, once it is confirmed.

pub(crate) mod shared;

use burn::tensor::{DType, Tensor};
use surefoot::device::DeviceName;
use surefoot::fault::catch;
use surefoot::place::Dtype;
use surefoot::recover::drill::Handle;
use surefoot::recover::{Confirm, Outcome, Point, Rung, Step, StepExt};
use surefoot::{BoxError, Burn, Fault, FaultKind, Footing};
use surefoot_ops::{Clip, first_numbers};

use crate::model::Trainable;
use crate::optimizer::{PackedGradients, Slice, UpdateRule};
use crate::parameters::{self, Shape};
use crate::stage::Feed;
use crate::state::State;

/// The name of the operation in the journal and in drills.
pub const OPERATION: &str = "train step";

/// What all steps share.
#[derive(Clone, Copy, Debug)]
pub struct StepSettings {
    /// How weights change.
    pub rule: UpdateRule,
    /// Gradients together are never longer than this.
    pub clip_norm: Option<f64>,
    /// Samples that are run at once at most; a larger batch is run in parts.
    pub micro_batch: usize,
}

/// How one step is to be done.
#[derive(Clone, Copy, Debug)]
pub struct StepOrder {
    /// The learning rate.
    pub lr: f64,
    /// Start with activations recomputed, since that was needed before.
    pub checkpointing: bool,
    /// Name the first bad tensor if there is one, which reads every tensor. In fp16 that is done
    /// when the loss scale can't be to blame any longer, whatever is asked for here.
    pub name_bad: bool,
}

/// A step that was done.
#[derive(Clone, Debug)]
pub struct Done<M> {
    /// The state after it.
    pub state: State<M>,
    /// The loss, summed over all predictions.
    pub loss: f64,
    /// The number of right predictions.
    pub correct: f64,
    /// Whether all numbers were finite; if not, the weights are as before.
    pub finite: bool,
    /// The first tensor that was not finite, if that was asked for.
    pub bad: Option<String>,
    /// The precision it was computed in.
    pub compute: Dtype,
    /// Whether activations were recomputed.
    pub checkpointing: bool,
    /// One number of each new tensor: reading it proves that all were made.
    witness: Option<Tensor<1>>,
}

impl<M> Confirm<Burn> for Done<M> {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        match &self.witness {
            None => Ok(()),
            // Not by `try_to_data` alone: Burn copies the numbers only when they are looked at.
            Some(witness) => witness.confirm(operation),
        }
    }
}

/// Does one step with a batch.
pub fn step<'a, M: Trainable>(
    footing: &Footing,
    settings: &StepSettings,
    order: StepOrder,
    state: &State<M>,
    shapes: &[Shape],
    feed: impl Into<Feed<'a>>,
) -> Result<Outcome<Done<M>>, Fault> {
    let feed = feed.into();
    let samples = feed.batch.samples();
    footing
        .task(OPERATION)
        .can(Rung::Checkpoint)
        .can(Rung::Precision)
        .starting_on(state.device)
        .starting_in(samples.div_ceil(settings.micro_batch.max(1)))
        .checkpointing(order.checkpointing)
        .run_in_parts(samples, |step| attempt(step, settings, order, state, shapes, feed))
}

/// What the parts of a batch gave together.
struct Accumulated<M> {
    /// The model after its forward passes, which change running statistics.
    model: M,
    gradients: Vec<Option<Tensor<1>>>,
    losses: Tensor<1>,
    hits: Tensor<1>,
}

/// Forward and backward passes of all parts of a batch; the loss counts `scale` over the batch's weight.
fn accumulate<M: Trainable>(
    step: &Step<'_>,
    state: &State<M>,
    scale: f64,
    feed: Feed<'_>,
) -> Result<Accumulated<M>, BoxError> {
    let batch = feed.batch;
    let mut staged = feed.stage.and_then(|stage| stage.take(step.device_name()));
    let model = parameters::armed(state.model.clone(), &step.autodiff_device());
    let share = scale / batch.weight().max(f64::MIN_POSITIVE);
    let mut sums: Option<(Tensor<1>, Tensor<1>)> = None;
    let mut gradients: Vec<Option<Tensor<1>>> = Vec::new();
    for range in step.ranges(batch.samples()) {
        let whole = range == (0..batch.samples());
        let part = match staged.take().filter(|_| whole) {
            Some(staged) => staged,
            None => batch.on_device(range, step.device())?,
        };
        let (score, found) = model.learn(&part, step.autocast(), share, step.is_checkpointing())?;
        gradients = parameters::added(gradients, found);
        let (loss, correct) = (score.loss.inner(), score.correct.inner());
        sums = Some(match sums {
            None => (loss, correct),
            Some((losses, hits)) => (losses + loss, hits + correct),
        });
        if step.parts() > 1 {
            // A part's memory is only free for the next one once it is done.
            sums.as_ref().map_or(Ok(()), |(losses, _)| losses.confirm(OPERATION))?;
        }
    }
    let Some((losses, hits)) = sums else {
        return Err(Box::new(Fault::new(FaultKind::DataLoading, OPERATION, "an empty batch")));
    };
    Ok(Accumulated { model, gradients, losses, hits })
}

fn attempt<M: Trainable>(
    step: &Step<'_>,
    settings: &StepSettings,
    order: StepOrder,
    state: &State<M>,
    shapes: &[Shape],
    feed: Feed<'_>,
) -> Result<Done<M>, BoxError> {
    let state = bring(state, step)?;
    let scale = state.scale.factor(step.compute());
    let Accumulated { model, gradients, losses, hits } = accumulate(step, &state, scale, feed)?;
    let squared = settings.clip_norm.is_some();
    // Where memory is short, the next batch had better wait.
    let look_ahead = || {
        if let Some(stage) = feed.stage.filter(|_| step.parts() == 1) {
            stage.look_ahead(step.device_name(), step.device());
        }
    };
    let packed = settings
        .rule
        .takes_packed()
        .then(|| PackedGradients::new(&gradients, |at| decays(&shapes[at])));
    if let Some(packed) = packed.flatten() {
        drop(gradients);
        let check = packed.sum(squared);
        let clip = settings.clip_norm.map(|longest| Clip { squares: check.clone(), longest });
        let values = parameters::values(&state.model);
        let updated = settings.rule.update_packed(
            order.lr,
            1.0 / scale,
            clip,
            values,
            &packed,
            &state.moments,
        );
        let Some(updated) = updated else {
            let message = "weights and gradients are of different types, or on different devices";
            return Err(Box::new(Fault::new(FaultKind::DtypeMismatch, OPERATION, message)));
        };
        look_ahead();
        let seen = [&[losses, hits, check][..], &updated.witnesses].concat();
        let seen = read(first_numbers(&seen).unwrap_or_else(|| Tensor::cat(firsts(&seen), 0)))?;
        let finite = seen[0].is_finite() && seen[2].is_finite();
        let mut done = done(step, order, state, [seen[0], seen[1]], finite, |state, loss| {
            let gradients = packed.unpacked(shapes.len());
            first_bad(state, shapes, loss, |at| is_bad(gradients.get(at)))
        })?;
        if finite {
            done.state.moments = updated.moments;
            done.state.model = parameters::with_values(model.valid(), updated.values);
        }
        return Ok(done);
    }
    let check = gradient_check(&gradients, squared, &losses);
    look_ahead();
    let seen = read(Tensor::cat(vec![losses, hits, check], 0))?;
    let check = seen[2];
    let finite = seen[0].is_finite() && check.is_finite();
    let mut done = done(step, order, state, [seen[0], seen[1]], finite, |state, loss| {
        first_bad(state, shapes, loss, |at| is_bad(gradients.get(at)))
    })?;
    if finite {
        // With the running statistics of layers such as batch normalisation, which a forward pass
        // changes; the state before the step keeps its own.
        done.state.model = model.valid();
        let clip = settings.clip_norm.map_or(1.0, |longest| {
            let norm = check.sqrt() / scale;
            if norm > longest { longest / norm } else { 1.0 }
        });
        update(&mut done, settings, order.lr, clip / scale, shapes, gradients);
    }
    Ok(done)
}

/// What is known of a step once its loss was read, with the weights as they were before it.
fn done<M: Trainable>(
    step: &Step<'_>,
    order: StepOrder,
    state: State<M>,
    [loss, correct]: [f64; 2],
    finite: bool,
    first_bad: impl FnOnce(&State<M>, f64) -> Result<String, BoxError>,
) -> Result<Done<M>, BoxError> {
    let name_bad = match step.compute() {
        Dtype::F16 => state.scale.is_last_try(),
        _ => order.name_bad,
    };
    let bad = (!finite && name_bad).then(|| first_bad(&state, loss)).transpose()?;
    let mut done = Done {
        loss,
        correct,
        finite,
        bad,
        compute: step.compute(),
        checkpointing: step.is_checkpointing(),
        witness: None,
        state,
    };
    done.state.step += 1;
    done.state.scale = done.state.scale.after(step.compute(), finite);
    Ok(done)
}

/// The first number of each tensor.
fn firsts(tensors: &[Tensor<1>]) -> Vec<Tensor<1>> {
    tensors.iter().map(|tensor| tensor.clone().narrow(0, 0, 1)).collect()
}

/// The state on this try's device. If it can't be read from where it was, that is no fault of
/// the device it should go to.
pub(crate) fn bring<M: Trainable>(state: &State<M>, step: &Step<'_>) -> Result<State<M>, BoxError> {
    if state.device == step.device_name() {
        return Ok(state.clone());
    }
    let moved = catch(|| {
        let moved = state.clone().to_device(step.device_name(), step.device());
        moved.hold().map(|_| moved)
    });
    match moved {
        Ok(Ok(moved)) => Ok(moved),
        _ => {
            let message = "the weights were on a device that is gone";
            Err(Box::new(Fault::new(FaultKind::StateLost, OPERATION, message)))
        }
    }
}

/// A number that is finite only if all gradients are: the squared norm if it is needed, else
/// the sum, which is cheaper.
fn gradient_check(gradients: &[Option<Tensor<1>>], squared: bool, like: &Tensor<1>) -> Tensor<1> {
    let parts: Vec<Tensor<1>> = gradients
        .iter()
        .flatten()
        .map(|gradient| match squared {
            true => gradient.clone().mul(gradient.clone()).sum(),
            false => gradient.clone().sum(),
        })
        .collect();
    match parts.is_empty() {
        true => like.zeros_like(),
        false => Tensor::cat(parts, 0).sum(),
    }
}

/// Reads numbers back: where errors of a GPU's forward and backward pass show.
fn read(tensor: Tensor<1>) -> Result<Vec<f64>, BoxError> {
    Handle::current().check(Point::Read)?;
    Ok(tensor.try_into_data()?.try_cast(DType::F64)?.try_to_vec::<f64>()?)
}

/// The first tensor with a number that is not finite; `is_bad` says it of a parameter's gradient.
fn first_bad<M: Trainable>(
    state: &State<M>,
    shapes: &[Shape],
    loss: f64,
    is_bad: impl Fn(usize) -> Result<bool, BoxError>,
) -> Result<String, BoxError> {
    for (shape, value) in shapes.iter().zip(parameters::values(&state.model)) {
        if !read(value.sum())?[0].is_finite() {
            return Ok(format!("the weight {} {:?}", shape.name, shape.dims));
        }
    }
    if !loss.is_finite() {
        return Ok(format!("the loss, which is {loss}"));
    }
    for (at, shape) in shapes.iter().enumerate() {
        if is_bad(at)? {
            return Ok(format!("the gradient of {} {:?}", shape.name, shape.dims));
        }
    }
    Ok("the sum of all gradients".to_owned())
}

/// Whether a gradient has a number that is not finite.
fn is_bad(gradient: Option<&Option<Tensor<1>>>) -> Result<bool, BoxError> {
    match gradient {
        Some(Some(gradient)) => Ok(!read(gradient.clone().sum())?[0].is_finite()),
        _ => Ok(false),
    }
}

/// Whether weight decay applies to a parameter of this shape.
fn decays(shape: &Shape) -> bool {
    shape.dims.len() > 1
}

fn update<M: Trainable>(
    done: &mut Done<M>,
    settings: &StepSettings,
    lr: f64,
    factor: f64,
    shapes: &[Shape],
    gradients: Vec<Option<Tensor<1>>>,
) {
    let values = parameters::values(&done.state.model);
    let slices = values
        .into_iter()
        .zip(gradients)
        .zip(shapes)
        .map(|((value, gradient), shape)| Slice { value, gradient, decays: decays(shape) })
        .collect();
    let (values, moments) = settings.rule.update(lr, factor, slices, &done.state.moments);
    let made = values.iter().chain(moments.first.iter().chain(&moments.second).flatten());
    let first = |tensor: &Tensor<1>| tensor.clone().narrow(0, 0, 1);
    done.witness = needs_witness(done.state.device)
        .then(|| Tensor::cat(made.filter(|t| t.dims()[0] > 0).map(first).collect(), 0));
    done.state.moments = moments;
    done.state.model = parameters::with_values(done.state.model.clone(), values);
}

/// On the CPU work is done when the call returns.
fn needs_witness(device: DeviceName) -> bool {
    device != DeviceName::CPU
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, HostBatch};
    use crate::data::{Form, Label, Sample, Target};
    use crate::model::Score;
    use burn::module::Module;
    use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig};
    use surefoot::place::Autocast;

    #[derive(Module, Debug)]
    struct Normed {
        sums: Linear,
        norm: BatchNorm,
        layer: Linear,
    }

    impl Trainable for Normed {
        fn score(&self, batch: &Batch, _cast: Autocast) -> Score {
            let x = self.norm.forward(self.sums.forward(batch.dense()));
            Score::of(self.layer.forward(x), batch)
        }
    }

    #[test]
    fn running_statistics_are_part_of_the_state() {
        let footing = Footing::builder().build().unwrap();
        let device = footing.device().unwrap().burn().clone();
        let ones = Initializer::Constant { value: 1.0 };
        let model = Normed {
            sums: LinearConfig::new(2, 2).with_bias(false).with_initializer(ones).init(&device),
            norm: BatchNormConfig::new(2).init(&device),
            layer: LinearConfig::new(2, 2).init(&device),
        };
        let form = Form::Dense { channels: 2, height: 1, width: 1, target: Target::Classes(2) };
        let mut batch = HostBatch::new(form, 4);
        for (at, x) in [1.0, 2.0, 3.0, 6.0].into_iter().enumerate() {
            let label = Label::Class(at % 2);
            batch.push(Sample::Dense { values: vec![x, 10.0 * x], label }).unwrap();
        }
        let shapes = parameters::shapes(&model);
        let rule = UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.0 };
        let settings = StepSettings { rule, clip_norm: None, micro_batch: 4 };
        let order = StepOrder { lr: 0.0, checkpointing: false, name_bad: false };
        let start = State::new(model.valid(), footing.device().unwrap().name());
        let one = |state: &State<Normed>| {
            step(&footing, &settings, order, state, &shapes, &batch).unwrap().value.state
        };
        let means = |state: &State<Normed>| {
            let mean = state.model.norm.running_mean.value();
            mean.into_data().try_to_vec::<f32>().unwrap()
        };
        let first = one(&start);
        // A tenth of the way from 0 to the mean of the sums, 33, and then a tenth of the rest.
        let near = |is: &[f32], should: f32| is.iter().all(|is| (is - should).abs() < 1e-4);
        assert!(near(&means(&first), 3.3), "{:?}", means(&first));
        assert!(near(&means(&one(&first)), 6.27), "{:?}", means(&one(&first)));
        // A step that is done again begins where the first try began.
        assert!(near(&means(&start), 0.0), "{:?}", means(&start));
        assert_eq!(means(&one(&start)), means(&first));
        // They are saved and read back with the weights.
        let held = first.hold().unwrap();
        let back = State::from_held(held, model, first.device, &device);
        assert_eq!(means(&back), means(&first));
    }
}
