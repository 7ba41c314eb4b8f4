//! The first half of a shared step: one rank's gradients, read back to the host.

use burn::tensor::Tensor;
use surefoot::place::Dtype;
use surefoot::recover::{Confirm, Outcome, Rung, Step};
use surefoot::{BoxError, Burn, Fault, Footing};

use super::{numbers, size};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::stage::Feed;
use crate::state::State;
use crate::step::{
    Accumulated, OPERATION, StepOrder, StepSettings, accumulate, bring, first_bad, read,
};

/// What one rank computed of its share of the batch.
pub(super) struct Local<M> {
    /// The state before the step, on the device where the share was computed.
    pub(super) state: State<M>,
    /// For each parameter its gradient, divided by the loss scale; for one without a gradient, how the
    /// forward passes changed it (running statistics). All times the weight of this rank's samples.
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

    /// Makes numbers of parameters that have a gradient on another rank alone 0: there is none to add here.
    pub(super) fn clear_absent(&mut self, has_gradient: &[bool], shapes: &[Shape]) {
        let mut rest = &mut self.numbers[..];
        for ((shape, anywhere), here) in shapes.iter().zip(has_gradient).zip(&self.present) {
            let (own, after) = rest.split_at_mut(size(shape));
            rest = after;
            if anywhere != here {
                own.fill(0.0);
            }
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
    if let Some(stage) = feed.stage.filter(|_| step.parts() == 1) {
        stage.look_ahead(step.device_name(), step.device());
    }
    let seen = read(Tensor::cat(vec![losses, hits], 0))?;
    let (loss, correct, weight) = (seen[0], seen[1], feed.batch.weight());
    let present = gradients.iter().map(Option::is_some).collect();
    let mut numbers = Vec::with_capacity(shapes.iter().map(size).sum());
    let mut bad_gradient = None;
    let changed =
        parameters::values(&model.valid()).into_iter().zip(parameters::values(&state.model));
    for (at, (gradient, (after, before))) in gradients.into_iter().zip(changed).enumerate() {
        let (tensor, factor) = match gradient {
            Some(gradient) => (gradient, weight / scale),
            None => (after - before, weight),
        };
        let data = tensor.try_into_data()?.try_cast_as::<f32>()?;
        let is_finite = numbers::append(&mut numbers, data.as_slice::<f32>()?, factor as f32);
        if !is_finite && bad_gradient.is_none() {
            bad_gradient = Some(at);
        }
    }
    let finite = loss.is_finite() && bad_gradient.is_none();
    let name_bad = match step.compute() {
        Dtype::F16 => state.scale.is_last_try(),
        _ => order.name_bad,
    };
    let first_bad = || first_bad(&state, shapes, loss, |at| Ok(bad_gradient == Some(at)));
    let bad = (!finite && name_bad).then(first_bad).transpose()?;
    Ok(Local {
        state,
        present,
        numbers,
        loss,
        correct,
        weight,
        items: feed.batch.items(),
        finite,
        bad,
        compute: step.compute(),
        checkpointing: step.is_checkpointing(),
    })
}
