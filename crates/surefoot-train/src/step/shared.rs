//! One step that several ranks do together.
//!
//! A step has two guarded halves. In the first, each rank computes the gradients of its share of the
//! batch and reads them back to the host; whatever fails there is recovered on that rank alone. Then the
//! ranks agree that all have their gradients, sum them, and each computes the same update, guarded
//! again. Only when all ranks have it is it committed. So a fault in one rank costs the others time,
//! and never leaves ranks with different weights or waiting for one that gave up.

mod local;
mod message;
mod numbers;

use std::time::Instant;

use burn::tensor::{Tensor, TensorData};
use surefoot::device::{DeviceName, open};
use surefoot::place::Dtype;
use surefoot::{Fault, FaultKind, Footing};

use self::local::Local;
pub(crate) use self::message::{Failure, News, Status, failure};
use self::message::{Message, present_anywhere};
use super::{Done, OPERATION, StepOrder, StepSettings, bring, update};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::ranks::{Ranks, StepTime, exchange};
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
    /// What happened to each rank, in the order of the ranks.
    pub(crate) news: Vec<News>,
    /// The time that this rank has spent, in this step and before it.
    pub(crate) time: StepTime,
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
    /// Whether it should say how it is: its device, memory and times.
    pub(crate) tells_status: bool,
    /// The time that it has spent before this step.
    pub(crate) time: StepTime,
}

/// What this rank says of itself.
pub(crate) fn status<M>(
    ranks: &dyn Ranks,
    footing: &Footing,
    state: &State<M>,
    time: StepTime,
) -> Status {
    Status {
        host: ranks.host(),
        device: state.device.to_string(),
        peak_memory: footing.device().map_or(0, |device| device.memory_peak()),
        time,
    }
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
    let mut time = own.time;
    let unreadable =
        own.feed.as_ref().map_or_else(|_| Vec::new(), |feed| feed.batch.skipped.clone());
    let local = timed(&mut time.computing, || {
        own.feed.and_then(|feed| {
            if feed.batch.samples() == 0 {
                return Ok(Local::empty(footing, state, shapes));
            }
            let outcome = local::guarded(footing, settings, order, state, shapes, feed)?;
            faults = outcome.faults;
            Ok(outcome.value)
        })
    });
    let local_faults = faults.len();
    let news = News {
        faults: faults.iter().map(|fault| FaultReport::of(fault, state.step + 1)).collect(),
        unreadable,
        status: own.tells_status.then(|| status(ranks, footing, state, own.time)),
    };
    let message = Message::new(&local, own.stop, state.step, news);
    let messages = timed(&mut time.agreeing, || message.exchange(ranks)).map_err(here)?;
    agreed(ranks, messages.iter().map(|message| (&message.failure, message.step)), &local)?;
    let mut local = local.map_err(here)?;

    let weight: f64 = messages.iter().map(|message| message.weight).sum();
    let has_gradient = present_anywhere(ranks, &messages, &local.present).map_err(here)?;
    let mut finite = messages.iter().all(|message| message.finite) && weight > 0.0;
    let mut norm = 0.0;
    if finite {
        local.clear_absent(&has_gradient, shapes);
        timed(&mut time.summing, || ranks.sum(&mut local.numbers)).map_err(here)?;
        norm = timed(&mut time.updating, || norm_of(&local.numbers, &has_gradient, shapes));
        norm /= weight;
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
        true => timed(&mut time.updating, || {
            let clip = settings.clip_norm.map_or(1.0, |longest| (longest / norm).min(1.0));
            // On the CPU these are the numbers themselves: nothing is copied.
            let host = open(DeviceName::CPU)?.burn().clone().without_autodiff();
            let length = [local.numbers.len()];
            let sums = Tensor::<1>::from_data(TensorData::new(local.numbers, length), &host);
            let outcome = footing.task(UPDATE).starting_on(done.state.device).run(|step| {
                let mut done = done.clone();
                done.state = bring(&done.state, step)?;
                let sums = sums.clone().to_device(&step.device().clone().without_autodiff());
                let sums = parts(&sums, shapes);
                let (gradients, values) = take_over(&done.state, &has_gradient, sums, weight);
                done.state.model = parameters::with_values(done.state.model.valid(), values);
                update(&mut done, settings, order.lr, clip / weight, shapes, gradients);
                Ok(done)
            })?;
            faults.extend(outcome.faults);
            Ok(outcome.value)
        }),
    };
    let of_update = faults[local_faults..].iter();
    let of_update: Vec<_> = of_update.map(|fault| FaultReport::of(fault, state.step + 1)).collect();
    let committed = (failure(&updated), state.step, of_update);
    let committed = timed(&mut time.agreeing, || exchange(ranks, &committed)).map_err(here)?;
    agreed(ranks, committed.iter().map(|(failure, step, _)| (failure, *step)), &updated)?;
    let items = messages.iter().map(|message| message.items).sum();
    let stop = messages.iter().any(|message| message.stop);
    let news = messages.into_iter().zip(committed).map(|(message, (_, _, of_update))| {
        let mut news = message.news;
        news.faults.extend(of_update);
        news
    });
    let news = news.collect();
    Ok(SharedDone { done: updated.map_err(here)?, faults, items, stop, news, time })
}

/// Adds the time that `work` takes.
fn timed<T>(seconds: &mut f64, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let made = work();
    *seconds += started.elapsed().as_secs_f64();
    made
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

/// The length of all summed gradients together.
fn norm_of(numbers: &[f32], has_gradient: &[bool], shapes: &[Shape]) -> f64 {
    let (mut rest, mut squares) = (numbers, 0.0);
    for (shape, has_gradient) in shapes.iter().zip(has_gradient) {
        let (own, after) = rest.split_at(size(shape));
        rest = after;
        if *has_gradient {
            squares += numbers::squares(own);
        }
    }
    squares.sqrt()
}

/// The part of `sums` that belongs to each parameter.
fn parts(sums: &Tensor<1>, shapes: &[Shape]) -> Vec<Tensor<1>> {
    let mut next = 0;
    let part = |shape: &Shape| {
        let start = next;
        next += size(shape);
        sums.clone().slice([start..next])
    };
    shapes.iter().map(part).collect()
}

/// The gradients, times `weight`, and the values that the update starts from: parameters without a gradient,
/// such as running statistics, take over the mean change of all ranks.
fn take_over<M: Trainable>(
    state: &State<M>,
    has_gradient: &[bool],
    sums: Vec<Tensor<1>>,
    weight: f64,
) -> (Vec<Option<Tensor<1>>>, Vec<Tensor<1>>) {
    let values = parameters::values(&state.model);
    let both = values.into_iter().zip(has_gradient).zip(sums);
    both.map(|((value, has_gradient), sum)| match has_gradient {
        true => (Some(sum), value),
        false => (None, value + sum.div_scalar(weight)),
    })
    .unzip()
}

#[cfg(test)]
mod tests;
