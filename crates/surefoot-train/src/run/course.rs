//! What changes while a run goes on, and how it begins.

use std::path::Path;
use std::time::{Duration, Instant};

use surefoot::device::DeviceName;

use super::{Run, TrainError};
use crate::checkpoint::{self, Best, Fitted, Running};
use crate::loader::Loading;
use crate::model::Trainable;
use crate::parameters::Shape;
use crate::report::{EpochReport, FaultReport, News};
use crate::state::{Held, State};

/// What changes while a run goes on.
pub(super) struct Course<M> {
    pub(super) state: State<M>,
    pub(super) running: Running,
    pub(super) epochs: Vec<EpochReport>,
    pub(super) best: Option<Best>,
    pub(super) faults: Vec<FaultReport>,
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

impl<M> Course<M> {
    /// Whether an epoch is done but not yet tested and told: also after a fault in between.
    pub(super) fn is_untested(&self, per_epoch: u64, total: u64) -> bool {
        let step = self.state.step;
        let is_end = step > 0 && (step.is_multiple_of(per_epoch) || step == total);
        is_end && self.epochs.last().is_none_or(|epoch| epoch.step != step)
    }
}

/// How a stretch of steps ended.
pub(super) enum Stretch {
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
        tell: &mut dyn FnMut(&News),
    ) -> Result<Course<M>, TrainError> {
        let now = Instant::now();
        let mut course = Course {
            state: State::new(model, device),
            running: Running::default(),
            epochs: Vec::new(),
            best: None,
            faults: Vec::new(),
            bad_in_a_row: 0,
            checkpointing: false,
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
        };
        let Some(path) = resume else { return Ok(course) };
        let (held, story) = checkpoint::read(path, shapes)?;
        if story.order != self.order() {
            let why = format!(
                "it has {}, this one {}; the samples would come in another order",
                story.order,
                self.order()
            );
            return Err(TrainError::OtherRun { path: path.to_owned(), why });
        }
        if let Some(folder) = self.shelf.set_aside_after(held.step)? {
            tell(&News::SetAside { after: held.step, folder });
        }
        let burn = self.footing.device().map_err(|fault| self.stopped(fault, 0, None))?;
        course.state = State::from_held(held, course.state.model, device, burn.burn());
        course.bad_in_a_row = story.bad_in_a_row;
        course.running = story.running;
        course.epochs = story.epochs;
        course.best = story.best;
        course.fitted = story.fitted;
        course.seconds_before = story.seconds;
        course.epoch_started.1 = course.state.step;
        Ok(course)
    }
}
