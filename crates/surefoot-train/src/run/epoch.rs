//! The end of an epoch and of a run: evaluation and reporting.

use surefoot::FaultKind;

use super::run_state::{RunState, StepsEnd};
use super::{Run, TrainError};
use crate::checkpoint::{Best, Running};
use crate::curves;
use crate::evaluate::{Evaluation, evaluate};
use crate::model::Trainable;
use crate::parameters::Shape;
use crate::report::{EpochReport, TrainEvent, TrainReport};

impl Run<'_> {
    /// Tests the state; none if it went with its device and the run went back to the copy.
    pub(super) fn test<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<Option<Evaluation>, TrainError> {
        if let Some(ranks) = self.ranks {
            return self.test_together(ranks, run, shapes, tell);
        }
        let (size, loading) = (run.micro_batch, run.loading);
        let result = evaluate(self.footing, &run.state, &self.recipe(false), size, loading);
        match result {
            Ok(tested) => {
                run.note_faults(&tested.faults, tell);
                Ok(Some(tested))
            }
            Err(fault) => {
                run.note_failure(&fault, tell);
                match fault.kind {
                    FaultKind::StateLost => self.rewind(run, fault, tell).map(|_| None),
                    _ => Err(self.save_and_stop(run, shapes, fault)),
                }
            }
        }
    }

    pub(super) fn finish_epoch<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        epoch: u64,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        let samples_per_second = self.speed(run);
        let Some(tested) = self.test(run, shapes, tell)? else {
            return Ok(StepsEnd::Rewound);
        };
        run.note_unreadable(&tested.skipped, tell);
        run.confusion = tested.confusion;
        let items = run.running.items.max(1) as f64;
        let device =
            self.footing.device().map_err(|fault| self.stopped(fault, run.state.step, None))?;
        let report = EpochReport {
            epoch: epoch + 1,
            step: run.state.step,
            train_loss: run.running.loss / items,
            train_accuracy: run.running.correct / items,
            test_loss: tested.loss,
            test_accuracy: tested.accuracy,
            samples_per_second,
            memory: device.memory_in_use(),
            device: run.state.device.to_string(),
        };
        let this =
            Best { step: run.state.step, test_loss: tested.loss, test_accuracy: tested.accuracy };
        run.best = Best::or_better(run.best.take(), this, self.data.form());
        run.epochs.push(report.clone());
        run.running = Running { skipped_steps: run.running.skipped_steps, ..Running::default() };
        tell(&TrainEvent::Epoch(report));
        if self.ranks.is_some() {
            tell(&TrainEvent::Ranks(run.ranks.clone()));
        }
        self.save_or_rewind(run, shapes, tell)
    }

    pub(super) fn report<M: Trainable>(
        &self,
        mut run: RunState<M>,
        shapes: &[Shape],
        resumed_from: Option<u64>,
        interrupted: bool,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<TrainReport, TrainError> {
        let step = run.state.step;
        let last = match self.checkpoints.path(step) {
            path if path.exists() && !interrupted => path,
            _ => self.save(&mut run, shapes, tell)?,
        };
        let precision =
            self.footing.precision().map_err(|fault| self.stopped(fault, step, None))?;
        let curves = curves::write(self.checkpoints.folder(), &run.epochs).ok().flatten();
        let tested = run.epochs.last();
        let best = run.best.as_ref();
        Ok(TrainReport {
            metric: if self.data.form().is_regression() { "r2" } else { "accuracy" },
            test_accuracy: tested.map_or(f64::NAN, |epoch| epoch.test_accuracy),
            test_loss: tested.map_or(f64::NAN, |epoch| epoch.test_loss),
            steps: step,
            seconds: run.seconds_before + run.started.elapsed().as_secs_f64(),
            device: run.state.device.to_string(),
            faults: run.faults.len(),
            best_checkpoint: best
                .map_or_else(|| last.clone(), |best| self.checkpoints.path(best.step)),
            best_step: best.map(|best| best.step),
            best_test_accuracy: best.map_or(f64::NAN, |best| best.test_accuracy),
            checkpoint: last,
            interrupted,
            stopped_early: false,
            confusion: run.confusion,
            precision: precision.compute.to_string(),
            parameters: run.state.model.num_params(),
            peak_memory: self.footing.device().map_or(0, |device| device.memory_peak()),
            skipped_steps: run.running.skipped_steps,
            skipped_samples: run.unreadable.len() as u64,
            resumed_from,
            fault_log: run.faults,
            ranks: run.ranks,
            epochs: run.epochs,
            curves,
        })
    }
}
