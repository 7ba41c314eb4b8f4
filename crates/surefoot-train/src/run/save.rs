//! What is kept of a run: copies on the host, and checkpoints.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surefoot::Fault;
use surefoot::device::{DeviceName, open, supervisor};
use surefoot::fault::{catch, from_panic};

use super::run_state::{HostCopy, RunState, StepsEnd};
use super::{Run, TrainError};
use crate::checkpoint::{self, CheckpointError, Manifest};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::report::TrainEvent;
use crate::state::{Held, State};

/// Holding a copy on the host may take this share of the time.
const HOLDING_SHARE: u32 = 50;
/// How often a full disk is tried again, and how often the user is told of it.
const DISK_PAUSE: Duration = Duration::from_secs(1);
const WORD_EVERY: Duration = Duration::from_secs(60);
/// Going back to the same step more often than this would go on forever.
pub(super) const MOST_REWINDS: u32 = 3;

impl Run<'_> {
    /// Goes back to the copy on the host.
    pub(super) fn rewind<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        fault: Fault,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        let step = run.state.step;
        let Some(HostCopy { held, running, epochs, best, model }) = run.held.clone() else {
            // The host's memory is the device's own: the state may still be there.
            let shapes = parameters::shapes(&run.state.model);
            return Err(self.save_and_stop(run, &shapes, fault));
        };
        let stopped = |fault| self.stopped(fault, step, self.save_copy(run));
        let device = self.footing.device().map_err(stopped)?;
        // The next device may be gone too.
        let to = held.step;
        let state = catch(|| State::from_held(held, model.valid(), device.name(), device.burn()));
        run.state = state.map_err(|record| stopped(from_panic("rewind", &record)))?;
        (run.running, run.epochs, run.best) = (running, epochs, best);
        let times = if run.rewound.0 == to { run.rewound.1 + 1 } else { 1 };
        run.rewound = (to, times);
        if times > MOST_REWINDS {
            return Err(self.give_up(run, fault));
        }
        tell(&TrainEvent::Rewound { to });
        Ok(StepsEnd::Rewound)
    }

    /// Ends a run that gets no further than its copy on the host, with that copy as a checkpoint.
    fn give_up<M: Trainable>(&self, run: &RunState<M>, fault: Fault) -> TrainError {
        let step = run.state.step;
        let message = format!(
            "the run went back to step {step} {MOST_REWINDS} times and could not keep what it did \
             after it"
        );
        let fault = Fault::new(fault.kind, crate::step::OPERATION, message)
            .on(run.state.device.to_string())
            .advise("the device's memory can't be read back: continue with --resume --device cpu")
            .after(vec![fault]);
        self.stopped(fault, step, self.save_copy(run))
    }

    /// Writes the copy on the host as a checkpoint, where what is on the device can't be read.
    fn save_copy<M: Trainable>(&self, run: &RunState<M>) -> Option<PathBuf> {
        let copy = run.held.as_ref().filter(|copy| copy.held.step > 0)?;
        let manifest = Manifest {
            step: copy.held.step,
            updates: copy.held.updates,
            scale: copy.held.scale,
            running: copy.running,
            epochs: copy.epochs.clone(),
            best: copy.best.clone(),
            ..self.manifest(run)
        };
        self.checkpoints.put(&copy.held, &parameters::shapes(&copy.model), &manifest).ok()
    }

    /// Holds a copy on the host if the device's memory is its own and it is time.
    pub(super) fn hold<M: Trainable>(&self, run: &mut RunState<M>, now: bool) {
        if run.state.device == DeviceName::CPU {
            run.held = None;
            return;
        }
        if !now && run.held_at.elapsed() < run.holding_took * HOLDING_SHARE {
            return;
        }
        let started = Instant::now();
        // A state that can't be read is found out by the next step, which says so.
        if let Ok(held) = run.state.hold() {
            self.hold_copy(run, held);
        }
        run.holding_took = started.elapsed();
        run.held_at = Instant::now();
    }

    /// Makes these numbers what the run goes back to.
    fn hold_copy<M: Trainable>(&self, run: &mut RunState<M>, held: Held) {
        let model = match &run.held {
            Some(copy) => copy.model.clone(),
            // Once is enough: only the numbers change.
            None => {
                let Ok(host) = open(DeviceName::CPU) else { return };
                let device = host.burn().clone().without_autodiff();
                let Ok(model) = catch(|| run.state.model.valid().to_device(&device)) else {
                    return;
                };
                model
            }
        };
        let (running, epochs, best) = (run.running, run.epochs.clone(), run.best.clone());
        run.held = Some(HostCopy { held, running, epochs, best, model });
    }

    pub(super) fn manifest<M>(&self, run: &RunState<M>) -> Manifest {
        Manifest {
            version: checkpoint::VERSION,
            step: run.state.step,
            updates: run.state.moments.updates,
            scale: run.state.scale,
            order: self.order(),
            bad_in_a_row: run.bad_in_a_row,
            running: run.running,
            epochs: run.epochs.clone(),
            best: run.best.clone(),
            fitted: run.fitted.clone(),
            seconds: run.seconds_before + run.started.elapsed().as_secs_f64(),
            config: self.config.entries(),
            flags: self.flags.clone(),
            data: self.data.description.clone(),
            faults: run.faults.clone(),
            unreadable: run.unreadable.clone(),
        }
    }

    pub(super) fn save<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<PathBuf, TrainError> {
        let step = run.state.step;
        if !self.is_first() {
            return Ok(self.checkpoints.path(step));
        }
        let held = run.state.hold().map_err(|fault| self.stopped(fault, step, None))?;
        let path = self.put(&held, shapes, &self.manifest(run), tell)?;
        let best = run.best.as_ref().is_some_and(|best| best.step == step);
        tell(&TrainEvent::Checkpoint { path: path.clone(), best });
        if run.state.device != DeviceName::CPU {
            self.hold_copy(run, held);
            run.held_at = Instant::now();
        }
        Ok(path)
    }

    /// Saves; if the state can't be read, goes back to the copy on the host. One of several ranks goes
    /// on: its next step finds the state lost, and it is given that of another rank.
    pub(super) fn save_or_rewind<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        match self.save(run, shapes, tell) {
            Err(TrainError::Fault { fault, .. }) if self.ranks.is_some() => {
                run.note_failure(&fault, tell);
                Ok(StepsEnd::Whole)
            }
            Err(TrainError::Fault { fault, .. }) if run.held.is_some() => {
                self.rewind(run, *fault, tell)
            }
            other => other.map(|_| StepsEnd::Whole),
        }
    }

    /// Writes a checkpoint; if the disk is full, waits until there is room or the run is stopped.
    fn put(
        &self,
        held: &Held,
        shapes: &[Shape],
        manifest: &Manifest,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<PathBuf, TrainError> {
        let place = self.checkpoints.path(held.step);
        let write = || self.checkpoints.put(held, shapes, manifest);
        Ok(once_there_is_room(&place, self.stop, DISK_PAUSE, tell, write)?)
    }

    /// The checkpoint that tested best, if there is one.
    pub(super) fn best_checkpoint<M>(&self, run: &RunState<M>) -> Option<PathBuf> {
        let path = self.checkpoints.path(run.best.as_ref()?.step);
        path.is_file().then_some(path)
    }

    /// Ends the run with `fault`; what was done so far is saved if it can be.
    pub(super) fn save_and_stop<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        fault: Fault,
    ) -> TrainError {
        let step = run.state.step;
        let saved = match step {
            0 => None,
            // A disk that is full is not waited for: the fault should be told now.
            _ => match run.state.hold() {
                Ok(held) => self.checkpoints.put(&held, shapes, &self.manifest(run)).ok(),
                Err(_) => self.save_copy(run),
            },
        };
        self.stopped(fault, step, saved)
    }
}

/// Writes what should go to `place`, again and again while the disk is full; until `stop` is set.
fn once_there_is_room<T>(
    place: &Path,
    stop: &AtomicBool,
    pause: Duration,
    tell: &mut dyn FnMut(&TrainEvent),
    mut write: impl FnMut() -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let started = Instant::now();
    let mut next_word = Duration::ZERO;
    loop {
        let error = match write() {
            Ok(written) => return Ok(written),
            Err(error) => error,
        };
        if !error.is_full_disk() || stop.load(Ordering::Relaxed) {
            return Err(error);
        }
        let waited = started.elapsed();
        if waited >= next_word {
            let (path, waited_seconds) = (place.to_owned(), waited.as_secs());
            tell(&TrainEvent::DiskFull { path, waited_seconds });
            next_word = waited + WORD_EVERY;
        }
        supervisor::still_alive();
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    fn failing(kind: ErrorKind) -> CheckpointError {
        CheckpointError::Io { path: "x".into(), source: Error::from(kind) }
    }

    /// Writes that fail so often, with this kind of error; gives the result and the words told.
    fn write(
        failures: u32,
        kind: ErrorKind,
        stop: bool,
    ) -> (Result<u32, CheckpointError>, Vec<TrainEvent>) {
        let (mut tries, mut told) = (0, Vec::new());
        let result = once_there_is_room(
            Path::new("x"),
            &AtomicBool::new(stop),
            Duration::from_millis(1),
            &mut |event| told.push(event.clone()),
            || {
                tries += 1;
                if tries > failures { Ok(tries) } else { Err(failing(kind)) }
            },
        );
        (result, told)
    }

    #[test]
    fn a_full_disk_is_waited_for_and_told_once_in_a_while() {
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let (result, told) = write(3, kind, false);
            assert_eq!(result.unwrap(), 4);
            assert_eq!(told, [TrainEvent::DiskFull { path: "x".into(), waited_seconds: 0 }]);
        }
    }

    #[test]
    fn waiting_ends_with_the_run_and_other_errors_are_not_waited_for() {
        let (stopped, _) = write(3, ErrorKind::StorageFull, true);
        assert!(stopped.unwrap_err().is_full_disk());
        let (refused, told) = write(3, ErrorKind::PermissionDenied, false);
        assert!(!refused.unwrap_err().is_full_disk() && told.is_empty());
    }
}
