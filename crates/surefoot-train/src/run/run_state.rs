//! The state of a run that changes from step to step, and how it is initialised or resumed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use surefoot::Fault;
use surefoot::device::DeviceName;

use super::{Run, TrainError};
use crate::checkpoint::{self, Best, Fitted, Running};
use crate::evaluate::Confusion;
use crate::loader::Loading;
use crate::model::Trainable;
use crate::parameters::Shape;
use crate::ranks::{RankReport, StepTime};
use crate::report::{EpochReport, FaultReport, TrainEvent};
use crate::state::{Held, State};

/// What changes while a run goes on.
pub(super) struct RunState<M> {
    pub(super) state: State<M>,
    pub(super) running: Running,
    pub(super) epochs: Vec<EpochReport>,
    pub(super) best: Option<Best>,
    pub(super) faults: Vec<FaultReport>,
    /// Samples that could not be read, each with the reason.
    pub(super) unreadable: BTreeSet<String>,
    /// How often each class was predicted for each, in the last test.
    pub(super) confusion: Option<Confusion>,
    pub(super) bad_in_a_row: u32,
    pub(super) checkpointing: bool,
    pub(super) held: Option<HostCopy<M>>,
    /// The step that the run last went back to, and how often in a row.
    pub(super) rewound: (u64, u32),
    pub(super) micro_batch: usize,
    pub(super) fitted: Option<Fitted>,
    pub(super) held_at: Instant,
    pub(super) holding_took: Duration,
    pub(super) started: Instant,
    pub(super) seconds_before: f64,
    pub(super) epoch_started: (Instant, u64),
    pub(super) loading: Loading,
    /// The time of each of the first steps, until how to load is chosen by it.
    pub(super) paces: Vec<Duration>,
    /// What is known of each rank; empty for a process that trains alone.
    pub(super) ranks: Vec<RankReport>,
    /// What this rank has spent its time on.
    pub(super) step_time: StepTime,
}

/// A run at one step in the host's memory: all that is needed to go on without its device.
#[derive(Clone)]
pub(super) struct HostCopy<M> {
    pub(super) held: Held,
    pub(super) running: Running,
    pub(super) epochs: Vec<EpochReport>,
    pub(super) best: Option<Best>,
    /// The model that the numbers belong in, on the host with all that isn't a weight: what was
    /// on a lost device can't be moved to another.
    pub(super) model: M,
}

impl<M> RunState<M> {
    /// Whether an epoch is done but not yet tested and told: also after a fault in between.
    pub(super) fn is_untested(&self, per_epoch: u64, total: u64) -> bool {
        let step = self.state.step;
        let is_end = step > 0 && (step.is_multiple_of(per_epoch) || step == total);
        is_end && self.epochs.last().is_none_or(|epoch| epoch.step != step)
    }
}

impl<M> RunState<M> {
    /// Whether so many epochs in a row, if a limit is set, did not test better than the best.
    pub(super) fn stopped_improving(&self, patience: Option<u64>) -> bool {
        let best = self.best.as_ref().map_or(0, |best| best.step);
        let since = self.epochs.iter().filter(|epoch| epoch.step > best).count() as u64;
        patience.is_some_and(|patience| since >= patience)
    }

    /// Notes samples that could not be read; each is told once.
    pub(super) fn note_unreadable(
        &mut self,
        samples: &[String],
        tell: &mut dyn FnMut(&TrainEvent),
    ) {
        for what in samples {
            if self.unreadable.insert(what.clone()) {
                tell(&TrainEvent::SkippedSample { what: what.clone() });
            }
        }
    }
}

impl<M> RunState<M> {
    /// Notes and tells faults that were recovered from, and how.
    pub(super) fn note_faults(&mut self, faults: &[Fault], tell: &mut dyn FnMut(&TrainEvent)) {
        for fault in faults {
            let report = FaultReport::of(fault, self.state.step + 1);
            tell(&TrainEvent::Fault(report.clone()));
            self.faults.push(report);
            if let Some(response) = &fault.response {
                tell(&TrainEvent::Recovery {
                    rung: response.rung.to_string(),
                    device: response.device.clone(),
                    parts: response.parts as u64,
                });
            }
        }
    }

    /// Notes and tells a fault that was not recovered from, and those before it.
    pub(super) fn note_failure(&mut self, fault: &Fault, tell: &mut dyn FnMut(&TrainEvent)) {
        self.note_faults(&fault.earlier, tell);
        self.note_faults(std::slice::from_ref(fault), tell);
    }
}

/// How the steps of an epoch ended.
pub(super) enum StepsEnd {
    Whole,
    Stopped,
    Rewound,
}

impl Run<'_> {
    pub(super) fn begin<M: Trainable>(
        &self,
        model: M,
        device: DeviceName,
        shapes: &[Shape],
        resume: Option<&Path>,
        loading: Loading,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<RunState<M>, TrainError> {
        let now = Instant::now();
        let mut run = RunState {
            state: State::new(model, device),
            running: Running::default(),
            epochs: Vec::new(),
            best: None,
            faults: Vec::new(),
            unreadable: BTreeSet::new(),
            confusion: None,
            bad_in_a_row: 0,
            checkpointing: self.config.gradient_checkpointing,
            held: None,
            rewound: (0, 0),
            micro_batch: self.config.batch_size,
            fitted: None,
            held_at: now,
            holding_took: Duration::ZERO,
            started: now,
            seconds_before: 0.0,
            epoch_started: (now, 0),
            loading,
            paces: Vec::new(),
            ranks: Vec::new(),
            step_time: StepTime::default(),
        };
        let Some(path) = resume else { return Ok(run) };
        let (held, manifest) = checkpoint::read(path, shapes)?;
        if manifest.order != self.order() {
            let why = format!(
                "it has {}, this one {}; the samples would come in another order",
                manifest.order,
                self.order()
            );
            return Err(TrainError::OtherRun { path: path.to_owned(), why });
        }
        if let Some(folder) = self.checkpoints.set_aside_after(held.step)? {
            tell(&TrainEvent::SetAside { after: held.step, folder });
        }
        let burn = self.footing.device().map_err(|fault| self.stopped(fault, 0, None))?;
        run.state = State::from_held(held, run.state.model, device, burn.burn());
        run.bad_in_a_row = manifest.bad_in_a_row;
        run.running = manifest.running;
        run.faults = manifest.faults;
        run.unreadable = manifest.unreadable;
        run.epochs = manifest.epochs;
        run.best = manifest.best;
        run.fitted = manifest.fitted;
        run.seconds_before = manifest.seconds;
        run.epoch_started.1 = run.state.step;
        Ok(run)
    }
}
