//! One step that several ranks do together.
//!
//! A step has two guarded halves. In the first, each rank computes the gradients of its share of the
//! batch and reads them back to the host; whatever fails there is recovered on that rank alone. Then the
//! ranks agree that all have their gradients, sum them, and each computes the same update, guarded
//! again. Only when all ranks have it is it committed. So a fault in one rank costs the others time,
//! and never leaves ranks with different weights or waiting for one that gave up.

mod local;

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use surefoot::place::Dtype;
use surefoot::{Fault, FaultKind, Footing};

use self::local::Local;
use super::{Done, OPERATION, StepOrder, StepSettings, bring, update};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::ranks::{ExchangeTime, Ranks, bits, exchange};
use crate::report::FaultReport;
use crate::stage::Feed;
use crate::state::State;

/// The name of the update in the journal and in drills.
pub(crate) const UPDATE: &str = "train update";

/// A step that all ranks did.
pub(crate) struct SharedDone<M> {
    pub(crate) done: Done<M>,
    /// Faults that this rank recovered from.
    pub(crate) faults: Vec<Fault>,
    /// Predictions of all ranks.
    pub(crate) items: u64,
    /// Whether any rank was asked to stop.
    pub(crate) stop: bool,
    /// What each rank said of itself, in the order of the ranks.
    pub(crate) statuses: Vec<Status>,
    /// The time spent with the other ranks, in this step and before it.
    pub(crate) time: ExchangeTime,
}

/// What a rank says of itself, for the report of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) host: String,
    pub(crate) device: String,
    /// The most memory that was in use on its device, in bytes.
    pub(crate) peak_memory: u64,
    /// Faults that it recovered from in this step.
    pub(crate) faults: Vec<FaultReport>,
    /// Samples that it could not read.
    pub(crate) unreadable: Vec<String>,
    pub(crate) time: ExchangeTime,
}

/// Why a step, or a test, of several ranks was not done.
#[derive(Debug)]
pub(crate) struct SharedFailure {
    /// The rank that could not go on.
    pub(crate) rank: usize,
    /// Why.
    pub(crate) fault: Box<Fault>,
    /// A rank that can give its state to those that lost theirs, if that is all that failed.
    pub(crate) donor: Option<usize>,
}

/// What a rank brings to a step.
pub(crate) struct Share<'a> {
    /// Its part of the batch, or why there is none.
    pub(crate) feed: Result<Feed<'a>, Fault>,
    /// Whether it was asked to stop.
    pub(crate) stop: bool,
    /// The time that it has spent with the other ranks before this step.
    pub(crate) time: ExchangeTime,
}

/// A fault as it is told to other ranks.
type Failure = Option<(FaultKind, String)>;

/// What a rank says before gradients are summed.
#[derive(Serialize, Deserialize)]
struct Message {
    failure: Failure,
    step: u64,
    stop: bool,
    #[serde(with = "bits")]
    loss: f64,
    #[serde(with = "bits")]
    correct: f64,
    #[serde(with = "bits")]
    weight: f64,
    items: u64,
    finite: bool,
    half: bool,
    bad: Option<String>,
    /// Which parameters have a gradient.
    present: Vec<bool>,
    status: Status,
}

/// Does one step with the other ranks.
pub(crate) fn step<M: Trainable>(
    ranks: &dyn Ranks,
    footing: &Footing,
    settings: &StepSettings,
    order: StepOrder,
    state: &State<M>,
    shapes: &[Shape],
    own: Share<'_>,
) -> Result<SharedDone<M>, SharedFailure> {
    let here = |fault| SharedFailure { rank: ranks.rank(), fault: Box::new(fault), donor: None };
    let mut faults = Vec::new();
    let unreadable =
        own.feed.as_ref().map_or_else(|_| Vec::new(), |feed| feed.batch.skipped.clone());
    let local = own.feed.and_then(|feed| {
        if feed.batch.samples() == 0 {
            return Ok(Local::empty(footing, state, shapes));
        }
        let outcome = local::guarded(footing, settings, order, state, shapes, feed)?;
        faults = outcome.faults;
        Ok(outcome.value)
    });
    let local_faults = faults.len();
    let status = Status {
        host: ranks.host(),
        device: state.device.to_string(),
        peak_memory: footing.device().map_or(0, |device| device.memory_peak()),
        faults: faults.iter().map(|fault| FaultReport::of(fault, state.step + 1)).collect(),
        unreadable,
        time: own.time,
    };
    let mut time = own.time;
    let message = Message::new(&local, own.stop, state.step, status);
    let messages = timed(&mut time.agreeing, || exchange(ranks, &message)).map_err(here)?;
    agreed(ranks, messages.iter().map(|message| (&message.failure, message.step)), &local)?;
    let mut local = local.map_err(here)?;

    let weight: f64 = messages.iter().map(|message| message.weight).sum();
    let has_gradient: Vec<bool> = (0..shapes.len())
        .map(|at| messages.iter().any(|message| message.present.get(at) == Some(&true)))
        .collect();
    let mut finite = messages.iter().all(|message| message.finite) && weight > 0.0;
    let mut norm = 0.0;
    if finite {
        local.weigh((local.weight / weight) as f32, &has_gradient, shapes);
        timed(&mut time.summing, || ranks.sum(&mut local.numbers)).map_err(here)?;
        norm = norm_of(&local.numbers, &has_gradient, shapes);
        finite = norm.is_finite();
    }
    let compute = match messages.iter().any(|message| message.half) {
        true => Dtype::F16,
        false => local.compute,
    };
    let mut done = Done {
        loss: messages.iter().map(|message| message.loss).sum(),
        correct: messages.iter().map(|message| message.correct).sum(),
        // A batch of which nobody can read a sample is no fault of the numbers.
        finite: finite || weight == 0.0,
        bad: messages.iter().enumerate().find_map(|(rank, message)| {
            message.bad.as_ref().map(|bad| format!("{bad} on rank {rank}"))
        }),
        compute,
        checkpointing: local.checkpointing,
        witness: None,
        state: local.state.clone(),
    };
    done.state.step += 1;
    done.state.scale = done.state.scale.after(compute, done.finite);
    let updated = match finite {
        false => Ok(done),
        true => {
            let clip = settings.clip_norm.map_or(1.0, |longest| (longest / norm).min(1.0));
            let outcome = footing.task(UPDATE).starting_on(done.state.device).run(|step| {
                let mut done = done.clone();
                done.state = bring(&done.state, step)?;
                let numbers = tensors(&local.numbers, shapes, step.device());
                let (gradients, values) = take_over(&done.state, &has_gradient, numbers);
                done.state.model = parameters::with_values(done.state.model.valid(), values);
                update(&mut done, settings, order.lr, clip, shapes, gradients);
                Ok(done)
            });
            outcome.map(|outcome| {
                faults.extend(outcome.faults);
                outcome.value
            })
        }
    };
    let of_update = faults[local_faults..].iter();
    let of_update: Vec<_> = of_update.map(|fault| FaultReport::of(fault, state.step + 1)).collect();
    let committed = (failure(&updated), state.step, of_update);
    let committed = timed(&mut time.agreeing, || exchange(ranks, &committed)).map_err(here)?;
    agreed(ranks, committed.iter().map(|(failure, step, _)| (failure, *step)), &updated)?;
    let items = messages.iter().map(|message| message.items).sum();
    let stop = messages.iter().any(|message| message.stop);
    let statuses = messages.into_iter().zip(committed).map(|(message, (_, _, of_update))| {
        let mut status = message.status;
        status.faults.extend(of_update);
        status
    });
    let statuses = statuses.collect();
    Ok(SharedDone { done: updated.map_err(here)?, faults, items, stop, statuses, time })
}

/// Adds the time that `work` takes.
fn timed<T>(seconds: &mut f64, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let made = work();
    *seconds += started.elapsed().as_secs_f64();
    made
}

pub(crate) fn failure<T>(result: &Result<T, Fault>) -> Failure {
    result.as_ref().err().map(|fault| (fault.kind, fault.root_cause().to_owned()))
}

impl Message {
    fn new<M>(local: &Result<Local<M>, Fault>, stop: bool, step: u64, status: Status) -> Self {
        let found = local.as_ref().ok();
        let number = |number: fn(&Local<M>) -> f64| found.map_or(0.0, number);
        Self {
            failure: failure(local),
            step,
            stop,
            loss: number(|local| local.loss),
            correct: number(|local| local.correct),
            weight: number(|local| local.weight),
            items: found.map_or(0, |local| local.items as u64),
            finite: found.is_none_or(|local| local.finite),
            half: found.is_some_and(|local| local.compute == Dtype::F16),
            bad: found.and_then(|local| local.bad.clone()),
            present: found.map_or_else(Vec::new, |local| local.present.clone()),
            status,
        }
    }
}

/// Checks that all ranks succeeded, at the same step; if not, says which did not, and why.
pub(crate) fn agreed<'m, T>(
    ranks: &dyn Ranks,
    messages: impl Iterator<Item = (&'m Failure, u64)>,
    own: &Result<T, Fault>,
) -> Result<(), SharedFailure> {
    let messages: Vec<_> = messages.collect();
    // What ends the run is told rather than what it could recover from.
    let lost = |kind: FaultKind| kind == FaultKind::StateLost;
    let failures = || {
        let failures = messages.iter().enumerate();
        failures.filter_map(|(rank, (failure, _))| failure.as_ref().map(|found| (rank, found)))
    };
    let worst = failures().find(|(_, (kind, _))| !lost(*kind)).or_else(|| failures().next());
    if let Some((rank, (kind, why))) = worst {
        let fault = match own {
            Err(own) if rank == ranks.rank() => own.clone(),
            _ => Fault::new(*kind, OPERATION, format!("rank {rank} could not go on: {why}")),
        };
        let donor = messages.iter().position(|(failure, _)| failure.is_none());
        let donor = donor.filter(|_| lost(*kind));
        return Err(SharedFailure { rank, fault: Box::new(fault), donor });
    }
    let first = messages[0].1;
    match messages.iter().position(|(_, step)| *step != first) {
        None => Ok(()),
        Some(rank) => {
            let message = format!("rank {rank} is at step {}, rank 0 at {first}", messages[rank].1);
            let fault = Fault::new(FaultKind::NotDeviceRelated, OPERATION, message);
            Err(SharedFailure { rank, fault: Box::new(fault), donor: None })
        }
    }
}

fn size(shape: &Shape) -> usize {
    shape.dims.iter().product()
}

/// The length of all gradients together.
fn norm_of(numbers: &[f32], has_gradient: &[bool], shapes: &[Shape]) -> f64 {
    let (mut rest, mut squares) = (numbers, 0.0);
    for (shape, has_gradient) in shapes.iter().zip(has_gradient) {
        let (own, after) = rest.split_at(size(shape));
        rest = after;
        if *has_gradient {
            squares += own.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        }
    }
    squares.sqrt()
}

/// The summed numbers of each parameter on a device.
fn tensors(numbers: &[f32], shapes: &[Shape], device: &Device) -> Vec<Tensor<1>> {
    let device = device.clone().without_autodiff();
    let mut rest = numbers;
    let tensor = |shape: &Shape| {
        let (own, after) = rest.split_at(size(shape));
        rest = after;
        Tensor::from_data(TensorData::new(own.to_vec(), [own.len()]), &device)
    };
    shapes.iter().map(tensor).collect()
}

/// The gradients, and the values that the update starts from: parameters without a gradient, such as
/// running statistics, take over the mean change of all ranks.
fn take_over<M: Trainable>(
    state: &State<M>,
    has_gradient: &[bool],
    numbers: Vec<Tensor<1>>,
) -> (Vec<Option<Tensor<1>>>, Vec<Tensor<1>>) {
    let values = parameters::values(&state.model);
    let both = values.into_iter().zip(has_gradient).zip(numbers);
    both.map(|((value, has_gradient), numbers)| match has_gradient {
        true => (Some(numbers), value),
        false => (None, value + numbers),
    })
    .unzip()
}

#[cfg(test)]
mod tests;
