//! What is kept of a run: copies on the host, and checkpoints.

use std::path::PathBuf;
use std::time::Instant;

use surefoot::Fault;
use surefoot::device::{DeviceName, open};
use surefoot::fault::{catch, from_panic};

use super::course::{Course, HostCopy, Stretch};
use super::{Run, TrainError};
use crate::checkpoint::{self, Story};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::report::News;
use crate::state::{Held, State};

/// Holding a copy on the host may take this share of the time.
const HOLDING_SHARE: u32 = 50;
/// Going back to the same step more often than this would go on forever.
const MOST_REWINDS: u32 = 3;

impl Run<'_> {
    /// Goes back to the copy on the host.
    pub(super) fn rewind<M: Trainable>(
        &self,
        course: &mut Course<M>,
        fault: Fault,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Stretch, TrainError> {
        let step = course.state.step;
        let Some(HostCopy { held, running, epochs, best, model }) = course.held.clone() else {
            return Err(self.stopped(fault, step, None));
        };
        let stopped = |fault| self.stopped(fault, step, self.save_copy(course));
        let device = self.footing.device().map_err(stopped)?;
        // The next device may be gone too.
        let to = held.step;
        let state = catch(|| State::from_held(held, model.valid(), device.name(), device.burn()));
        course.state = state.map_err(|record| stopped(from_panic("rewind", &record)))?;
        (course.running, course.epochs, course.best) = (running, epochs, best);
        let times = if course.rewound.0 == to { course.rewound.1 + 1 } else { 1 };
        course.rewound = (to, times);
        if times > MOST_REWINDS {
            return Err(self.give_up(course, fault));
        }
        tell(&News::Rewound { to });
        Ok(Stretch::Rewound)
    }

    /// Ends a run that gets no further than its copy on the host, with that copy as a checkpoint.
    fn give_up<M: Trainable>(&self, course: &Course<M>, fault: Fault) -> TrainError {
        let step = course.state.step;
        let message = format!(
            "the run went back to step {step} {MOST_REWINDS} times and could not keep what it did \
             after it"
        );
        let fault = Fault::new(fault.kind, crate::step::OPERATION, message)
            .on(course.state.device.to_string())
            .advise("the device's memory can't be read back: go on with --resume --device cpu")
            .after(vec![fault]);
        self.stopped(fault, step, self.save_copy(course))
    }

    /// Writes the copy on the host as a checkpoint, where what is on the device can't be read.
    fn save_copy<M: Trainable>(&self, course: &Course<M>) -> Option<PathBuf> {
        let copy = course.held.as_ref().filter(|copy| copy.held.step > 0)?;
        let story = Story {
            step: copy.held.step,
            updates: copy.held.updates,
            scale: copy.held.scale,
            running: copy.running,
            epochs: copy.epochs.clone(),
            best: copy.best.clone(),
            ..self.story(course)
        };
        self.shelf.put(&copy.held, &parameters::shapes(&copy.model), &story).ok()
    }

    /// Holds a copy on the host if the device's memory is its own and it is time.
    pub(super) fn hold<M: Trainable>(&self, course: &mut Course<M>, now: bool) {
        if course.state.device == DeviceName::CPU {
            course.held = None;
            return;
        }
        if !now && course.held_at.elapsed() < course.holding_took * HOLDING_SHARE {
            return;
        }
        let started = Instant::now();
        // A state that can't be read is found out by the next step, which says so.
        if let Ok(held) = course.state.hold() {
            self.hold_copy(course, held);
        }
        course.holding_took = started.elapsed();
        course.held_at = Instant::now();
    }

    /// Makes these numbers what the run goes back to.
    fn hold_copy<M: Trainable>(&self, course: &mut Course<M>, held: Held) {
        let model = match &course.held {
            Some(copy) => copy.model.clone(),
            // Once is enough: only the numbers change.
            None => {
                let Ok(host) = open(DeviceName::CPU) else { return };
                let device = host.burn().clone().without_autodiff();
                let Ok(model) = catch(|| course.state.model.valid().to_device(&device)) else {
                    return;
                };
                model
            }
        };
        let (running, epochs, best) = (course.running, course.epochs.clone(), course.best.clone());
        course.held = Some(HostCopy { held, running, epochs, best, model });
    }

    pub(super) fn story<M>(&self, course: &Course<M>) -> Story {
        Story {
            version: checkpoint::VERSION,
            step: course.state.step,
            updates: course.state.moments.updates,
            scale: course.state.scale,
            order: self.order(),
            bad_in_a_row: course.bad_in_a_row,
            running: course.running,
            epochs: course.epochs.clone(),
            best: course.best.clone(),
            fitted: course.fitted.clone(),
            seconds: course.seconds_before + course.started.elapsed().as_secs_f64(),
            config: self.origin.0.clone(),
            flags: self.origin.1.clone(),
        }
    }

    pub(super) fn save<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        tell: &mut dyn FnMut(&News),
    ) -> Result<PathBuf, TrainError> {
        let step = course.state.step;
        let held = course.state.hold().map_err(|fault| self.stopped(fault, step, None))?;
        let path = self.shelf.put(&held, shapes, &self.story(course))?;
        let best = course.best.as_ref().is_some_and(|best| best.step == step);
        tell(&News::Checkpoint { path: path.clone(), best });
        if course.state.device != DeviceName::CPU {
            self.hold_copy(course, held);
            course.held_at = Instant::now();
        }
        Ok(path)
    }

    /// Ends the run with `fault`; what was done so far is saved if it can be.
    pub(super) fn save_and_stop<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        fault: Fault,
    ) -> TrainError {
        let step = course.state.step;
        let saved = match step {
            0 => None,
            _ => match self.save(course, shapes, &mut |_| {}) {
                Ok(path) => Some(path),
                Err(_) => self.save_copy(course),
            },
        };
        self.stopped(fault, step, saved)
    }
}
