//! One attempt of a run: the loaded model as its task sees it, and what a run returns.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use surefoot::Fault;
use surefoot::device::DeviceName;
use surefoot::recover::{Rung, Step};

use crate::folder::header::WeightDtype;
use crate::run::cpu_fallback::MovedPart;
use crate::run::model::Model;
use crate::stream::meter::Reading;
use crate::stream::needs::Work;
use crate::stream::plan::Plan;

/// Where and how a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The device.
    pub device: DeviceName,
    /// Whether all weights stream.
    pub streamed: bool,
    /// The dtype of products with weights.
    pub compute: WeightDtype,
    /// The devices that its blocks may be laid over, one bit for each place of the footing's chain; 0 where one device has all
    /// of them.
    pub laid_over: u64,
}

/// A model in a location, loaded by a plan for some work.
pub(super) struct LoadedModel {
    pub(super) model: Model,
    pub(super) location: Location,
    pub(super) work: Work,
    pub(super) plan: Arc<Plan>,
    failures: AtomicU32,
}

impl LoadedModel {
    pub(super) fn new(model: Model, location: Location, work: Work, plan: Arc<Plan>) -> Self {
        Self { model, location, work, plan, failures: AtomicU32::new(0) }
    }

    /// How many tasks in a row failed with it.
    pub(super) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Counts a failure when it is dropped, also by a panic, unless it was disarmed.
    pub(super) fn failure_guard(&self) -> FailureGuard<'_> {
        FailureGuard(Some(&self.failures))
    }
}

pub(super) struct FailureGuard<'a>(Option<&'a AtomicU32>);

impl FailureGuard<'_> {
    /// The task did not fail: the row of failures ends.
    pub(super) fn disarm(mut self) {
        if let Some(failures) = self.0.take() {
            failures.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for FailureGuard<'_> {
    fn drop(&mut self) {
        if let Some(failures) = self.0 {
            failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One attempt of a run, given to its task.
pub struct Attempt<'a> {
    step: &'a Step<'a>,
    samples: usize,
    loaded: Arc<LoadedModel>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(step: &'a Step<'a>, samples: usize, loaded: Arc<LoadedModel>) -> Self {
        Self { step, samples, loaded }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.loaded.model
    }

    /// Where and how it is loaded. Tensors that were computed in one location can't be used in another.
    pub fn location(&self) -> Location {
        self.loaded.location
    }

    /// What is where in memory.
    pub fn plan(&self) -> &Plan {
        &self.loaded.plan
    }

    /// Which attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.step.attempt()
    }

    /// The ranges in which this attempt takes the request's samples apart; one, until a lack of
    /// memory made splitting necessary.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.step.ranges(self.samples)
    }

    /// Marks the boundary between two passes of a task that takes its samples apart without
    /// [`Attempt::ranges`]: a drill of `between-parts` may strike here.
    pub fn between_parts(&self) {
        self.step.between_parts();
    }

    /// The largest number of samples that may be in memory at once.
    pub fn samples_at_once(&self) -> usize {
        self.samples.div_ceil(self.step.parts().max(1)).max(1)
    }

    /// Whether computing goes on after a call returns, and kernels are compiled for each shape.
    pub fn is_asynchronous(&self) -> bool {
        self.location().device != DeviceName::CPU || self.location().laid_over != 0
    }
}

/// What a run returned, and what happened on the way.
#[derive(Debug)]
#[non_exhaustive]
pub struct RunOutcome<T> {
    /// The task's value.
    pub value: T,
    /// The device that it was computed on.
    pub device: DeviceName,
    /// The dtype of products with weights.
    pub compute: WeightDtype,
    /// The number of attempts, the last included.
    pub attempts: u32,
    /// The faults that were recovered from, oldest first.
    pub faults: Vec<Fault>,
    /// The rungs of the recovery ladder that were taken, in order.
    pub rungs: Vec<Rung>,
    /// The plan of the last attempt.
    pub plan: Arc<Plan>,
    /// How long the last attempt took to load the model.
    pub load_time: Duration,
    /// The most bytes that a device's memory pool was seen to hold, where there is a budget. A
    /// device that shares the host's memory has them in the process's own figure already.
    pub device_peak_bytes: Option<u64>,
    /// What the last attempt loaded and ran.
    pub reading: Reading,
    /// The blocks, and the head, that ran on the CPU because the device could not run them.
    pub on_cpu: Vec<MovedPart>,
}

impl<T> RunOutcome<T> {
    /// The same outcome with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> RunOutcome<U> {
        RunOutcome {
            value: change(self.value),
            device: self.device,
            compute: self.compute,
            attempts: self.attempts,
            faults: self.faults,
            rungs: self.rungs,
            plan: self.plan,
            load_time: self.load_time,
            device_peak_bytes: self.device_peak_bytes,
            reading: self.reading,
            on_cpu: self.on_cpu,
        }
    }
}
