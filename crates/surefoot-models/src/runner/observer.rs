//! Who is told about attempts while they run: a progress bar, a server's metrics.

use std::sync::Arc;
use std::time::Duration;

use surefoot::device::DeviceName;
use surefoot::recover::Step;

use super::RunRequest;
use crate::run::model::Model;
use crate::stream::meter::{Meter, Reading};
use crate::stream::plan::Plan;

/// Is told when attempts start and end, from the threads that run them.
pub trait RunObserver: Send + Sync {
    /// The model is about to be loaded, or to be used if it is loaded already.
    fn attempt_started(&self, _start: &AttemptStart<'_>) {}

    /// Loading failed, so the task did not run.
    fn loading_failed(&self) {}

    /// The task returned, with a value or an error.
    fn attempt_ended(&self, _end: &AttemptEnd<'_>) {}
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl RunObserver for Silent {}

/// An attempt that is about to start.
pub struct AttemptStart<'a> {
    /// What was asked for.
    pub request: &'a RunRequest,
    /// Which attempt it is, from 1.
    pub number: u32,
    /// The device.
    pub device: DeviceName,
    /// What will be where.
    pub plan: &'a Plan,
    /// Bytes of weights that are loaded first; 0 if the model is loaded already.
    pub load_bytes: u64,
    /// The blocks of a pass.
    pub blocks: usize,
    /// Counts what loading and running cost; it may have counted earlier attempts too.
    pub meter: Arc<Meter>,
}

impl<'a> AttemptStart<'a> {
    /// With a model that is loaded already.
    pub(super) fn new(
        request: &'a RunRequest,
        step: &Step<'_>,
        plan: &'a Plan,
        model: &Model,
    ) -> Self {
        Self {
            request,
            number: step.attempt(),
            device: step.device_name(),
            plan,
            load_bytes: 0,
            blocks: model.blueprint().blocks.len(),
            meter: Arc::clone(model.meter()),
        }
    }
}

/// An attempt that ended.
pub struct AttemptEnd<'a> {
    /// What was asked for.
    pub request: &'a RunRequest,
    /// The device.
    pub device: DeviceName,
    /// What was where.
    pub plan: &'a Plan,
    /// What it cost.
    pub reading: Reading,
    /// How long it took, loading included.
    pub elapsed: Duration,
}
