//! The end of an epoch, and of a run: testing and telling.

use super::course::{Course, Stretch};
use super::{Run, TrainError};
use crate::checkpoint::{Best, Running};
use crate::curves;
use crate::evaluate::{Evaluation, evaluate};
use crate::model::Trainable;
use crate::parameters::Shape;
use crate::report::{EpochReport, News, Report};
use crate::step::STATE_LOST;

impl Run<'_> {
    /// Tests the state; none if it went with its device and the run went back to the copy.
    pub(super) fn test<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        tell: &mut dyn FnMut(&News),
    ) -> Result<Option<Evaluation>, TrainError> {
        let (size, loading) = (course.micro_batch, course.loading);
        let result = evaluate(self.footing, &course.state, &self.recipe(false), size, loading);
        self.pass_on_faults(course, tell);
        match result {
            Ok(tested) => Ok(Some(tested)),
            Err(fault) if fault.root_cause() == STATE_LOST => {
                self.rewind(course, fault, tell).map(|_| None)
            }
            Err(fault) => Err(self.save_and_stop(course, shapes, fault)),
        }
    }

    pub(super) fn finish_epoch<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        epoch: u64,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Stretch, TrainError> {
        let samples_per_second = self.speed(course);
        let Some(tested) = self.test(course, shapes, tell)? else {
            return Ok(Stretch::Rewound);
        };
        for what in &tested.skipped {
            course.running.skipped_samples += 1;
            tell(&News::SkippedSample { what: what.clone() });
        }
        let items = course.running.items.max(1) as f64;
        let device =
            self.footing.device().map_err(|fault| self.stopped(fault, course.state.step, None))?;
        let report = EpochReport {
            epoch: epoch + 1,
            step: course.state.step,
            train_loss: course.running.loss / items,
            train_accuracy: course.running.correct / items,
            test_loss: tested.loss,
            test_accuracy: tested.accuracy,
            samples_per_second,
            memory: device.memory_in_use(),
            device: course.state.device.to_string(),
        };
        let best = course.best.as_ref();
        if best.is_none_or(|best| best.is_beaten_by(tested.accuracy, tested.loss)) {
            course.best = Some(Best {
                step: course.state.step,
                test_loss: tested.loss,
                test_accuracy: tested.accuracy,
            });
        }
        course.epochs.push(report.clone());
        course.running = Running {
            skipped_steps: course.running.skipped_steps,
            skipped_samples: course.running.skipped_samples,
            ..Running::default()
        };
        tell(&News::Epoch(report));
        match self.save(course, shapes, tell) {
            Err(TrainError::Fault { fault, .. }) if course.held.is_some() => {
                self.rewind(course, *fault, tell)
            }
            other => other.map(|_| Stretch::Whole),
        }
    }

    pub(super) fn report<M: Trainable>(
        &self,
        mut course: Course<M>,
        shapes: &[Shape],
        resumed_from: Option<u64>,
        interrupted: bool,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Report, TrainError> {
        let step = course.state.step;
        let last = match self.shelf.path(step) {
            path if path.exists() && !interrupted => path,
            _ => self.save(&mut course, shapes, tell)?,
        };
        let precision =
            self.footing.precision().map_err(|fault| self.stopped(fault, step, None))?;
        let curves = curves::write(self.shelf.folder(), &course.epochs).ok().flatten();
        let tested = course.epochs.last();
        let best = course.best.as_ref();
        Ok(Report {
            test_accuracy: tested.map_or(f64::NAN, |epoch| epoch.test_accuracy),
            test_loss: tested.map_or(f64::NAN, |epoch| epoch.test_loss),
            steps: step,
            seconds: course.seconds_before + course.started.elapsed().as_secs_f64(),
            device: course.state.device.to_string(),
            faults: course.faults.len(),
            best_checkpoint: best.map_or_else(|| last.clone(), |best| self.shelf.path(best.step)),
            best_test_accuracy: best.map_or(f64::NAN, |best| best.test_accuracy),
            checkpoint: last,
            interrupted,
            precision: precision.compute.to_string(),
            parameters: course.state.model.num_params(),
            peak_memory: self.footing.device().map_or(0, |device| device.memory_peak()),
            skipped_steps: course.running.skipped_steps,
            skipped_samples: course.running.skipped_samples,
            resumed_from,
            fault_log: course.faults,
            epochs: course.epochs,
            curves,
        })
    }
}
