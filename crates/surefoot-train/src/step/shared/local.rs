//! The first half of a shared step: one rank's gradients, read back to the host.

use burn::tensor::Tensor;
use surefoot::place::Dtype;
use surefoot::recover::{Confirm, Outcome, Rung, Step};
use surefoot::{BoxError, Burn, Fault, Footing};

use super::size;
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::stage::Feed;
use crate::state::State;
use crate::step::{
    Accumulated, OPERATION, StepOrder, StepSettings, accumulate, bring, first_bad, gradient_check,
    read,
};

/// What one rank computed of its share of the batch.
pub(super) struct Local<M> {
    /// The state before the step, on the device where the share was computed.
    pub(super) state: State<M>,
    /// For each parameter its gradient, divided by the loss scale; for one without a gradient, how the
    /// forward passes changed it (running statistics).
    pub(super) numbers: Vec<f32>,
    /// Which parameters have a gradient.
    pub(super) present: Vec<bool>,
    pub(super) loss: f64,
    pub(super) correct: f64,
    pub(super) weight: f64,
    pub(super) items: usize,
    pub(super) finite: bool,
    pub(super) bad: Option<String>,
    pub(super) compute: Dtype,
    pub(super) checkpointing: bool,
}

impl<M> Confirm<Burn> for Local<M> {
    /// Everything was read back to the host already.
    fn confirm(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

impl<M: Trainable> Local<M> {
    /// What a rank without samples brings: zeros in the right shape.
    pub(super) fn empty(footing: &Footing, state: &State<M>, shapes: &[Shape]) -> Self {
        let compute = footing.precision().map_or(Dtype::F32, |precision| precision.compute);
        Self {
            state: state.clone(),
            numbers: vec![0.0; shapes.iter().map(size).sum()],
            present: vec![false; shapes.len()],
            loss: 0.0,
            correct: 0.0,
            weight: 0.0,
            items: 0,
            finite: true,
            bad: None,
            compute,
            checkpointing: false,
        }
    }

    /// Multiplies everything by this rank's part of the batch. A parameter that has a gradient on another
    /// rank alone has none to add here.
    pub(super) fn weigh(&mut self, part: f32, has_gradient: &[bool], shapes: &[Shape]) {
        let mut rest = &mut self.numbers[..];
        for ((shape, anywhere), here) in shapes.iter().zip(has_gradient).zip(&self.present) {
            let (own, after) = rest.split_at_mut(size(shape));
            rest = after;
            let part = if *anywhere == *here { part } else { 0.0 };
            own.iter_mut().for_each(|number| *number *= part);
        }
    }
}

/// Computes the gradients of a share of the batch as one guarded run.
pub(super) fn guarded<M: Trainable>(
    footing: &Footing,
    settings: &StepSettings,
    order: StepOrder,
    state: &State<M>,
    shapes: &[Shape],
    feed: Feed<'_>,
) -> Result<Outcome<Local<M>>, Fault> {
    let samples = feed.batch.samples();
    footing
        .task(OPERATION)
        .can(Rung::Checkpoint)
        .can(Rung::Precision)
        .starting_on(state.device)
        .starting_in(samples.div_ceil(settings.micro_batch.max(1)))
        .checkpointing(order.checkpointing)
        .run_in_parts(samples, |step| attempt(step, order, state, shapes, feed))
}

fn attempt<M: Trainable>(
    step: &Step<'_>,
    order: StepOrder,
    state: &State<M>,
    shapes: &[Shape],
    feed: Feed<'_>,
) -> Result<Local<M>, BoxError> {
    let state = bring(state, step)?;
    let scale = state.scale.factor(step.compute());
    let Accumulated { model, gradients, losses, hits } = accumulate(step, &state, scale, feed)?;
    let check = gradient_check(&gradients, false, &losses);
    if let Some(stage) = feed.stage.filter(|_| step.parts() == 1) {
        stage.look_ahead(step.device_name(), step.device());
    }
    let seen = read(Tensor::cat(vec![losses, hits, check], 0))?;
    let (loss, correct) = (seen[0], seen[1]);
    let finite = loss.is_finite() && seen[2].is_finite();
    let name_bad = match step.compute() {
        Dtype::F16 => state.scale.is_last_try(),
        _ => order.name_bad,
    };
    let bad =
        (!finite && name_bad).then(|| first_bad(&state, shapes, &gradients, loss)).transpose()?;
    let mut numbers = Vec::with_capacity(shapes.iter().map(size).sum());
    let changed =
        parameters::values(&model.valid()).into_iter().zip(parameters::values(&state.model));
    for (gradient, (after, before)) in gradients.iter().zip(changed) {
        let tensor = match gradient {
            Some(gradient) if scale == 1.0 => gradient.clone(),
            Some(gradient) => gradient.clone().div_scalar(scale),
            None => after - before,
        };
        numbers.extend(tensor.try_into_data()?.try_cast_as::<f32>()?.try_to_vec::<f32>()?);
    }
    Ok(Local {
        state,
        present: gradients.iter().map(Option::is_some).collect(),
        numbers,
        loss,
        correct,
        weight: feed.batch.weight(),
        items: feed.batch.items(),
        finite,
        bad,
        compute: step.compute(),
        checkpointing: step.is_checkpointing(),
    })
}
