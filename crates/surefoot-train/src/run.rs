//! The loop: from the first step, or a checkpoint, to the last.
//!
//! A step is committed when it is confirmed; until then the state before it is whole. Where a
//! device's memory is its own, a copy of the state is held on the host from time to time: if the
//! device is lost with everything on it, the run goes back to that copy and does the steps since
//! again, with the same samples in the same order, so that none is missing and none counts twice.

mod agreement;
mod epoch;
mod run_state;
mod save;
#[cfg(test)]
mod tests;
mod together;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surefoot::journal::{Event, EventKind};
use surefoot::{Fault, FaultKind, Footing};

use self::run_state::{RunState, StepsEnd};
use crate::checkpoint::{CheckpointError, CheckpointFolder, Fitted, Order};
use crate::config::{Config, Length};
use crate::data::DataSet;
use crate::estimate::{Estimate, SHARE, available};
use crate::fit::Trials;
use crate::loader::{Loaded, Loader, Loading, Recipe, plan};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::ranks::Ranks;
use crate::report::{FaultReport, TrainEvent, TrainReport};
use crate::stage::{Feed, Stage};
use crate::state::State;
use crate::step::{Done, StepOrder, StepSettings, step};

/// Steps with inf or NaN in a row that end a run, where no loss scale can be to blame.
const BAD_STEPS: u32 = 8;
/// Steps whose time decides how batches are loaded; the first are slower, and left out.
const MEASURED_STEPS: usize = 8;
const FIRST_STEPS: usize = 2;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A fault that the policy did not let it survive.
    #[error("{fault}")]
    Fault {
        /// The fault.
        fault: Box<Fault>,
        /// The step it stopped at.
        step: u64,
        /// The checkpoint to go on from: the last good state, or the best one if the run diverged.
        saved: Option<PathBuf>,
    },
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Ranks that should train one model differ in what they would do.
    #[error("the ranks differ: {}", differences.join("; "))]
    RanksDiffer {
        /// What differs, and where.
        differences: Vec<String>,
    },
    /// This rank is not the first one, and the run ended for a reason that the first one reports.
    #[error("rank {rank} ended the run: {why}")]
    OtherRank {
        /// The rank that could not go on.
        rank: usize,
        /// Why.
        why: String,
    },
    /// The checkpoint is of another run.
    #[error("{}: it is of another run: {why}", path.display())]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        why: String,
    },
}

/// A training run: what it trains, on which devices, and where its checkpoints go.
pub struct Run<'a> {
    /// The devices.
    pub footing: &'a Footing,
    /// What to do.
    pub config: &'a Config,
    /// The keys of the configuration that flags set, to be kept in checkpoints.
    pub flags: Vec<(String, String)>,
    /// The samples.
    pub data: &'a DataSet,
    /// Where checkpoints go.
    pub checkpoints: CheckpointFolder,
    /// Set to end the run at the next step, with a checkpoint.
    pub stop: &'a AtomicBool,
    /// Faults that ended earlier processes of this run, for the report: what a supervisor met.
    pub earlier_faults: Vec<FaultReport>,
    /// The processes that train with this one; none if it trains alone. Only the first rank
    /// writes checkpoints.
    pub ranks: Option<&'a dyn Ranks>,
}

impl Run<'_> {
    /// Trains `model`, from the checkpoint at `resume` if there is one, and tells what happens.
    pub fn train<M: Trainable>(
        &self,
        model: M,
        resume: Option<&Path>,
        mut tell: impl FnMut(&TrainEvent),
    ) -> Result<TrainReport, TrainError> {
        let tell: &mut dyn FnMut(&TrainEvent) = &mut tell;
        let device = self.footing.device().map_err(|fault| self.stopped(fault, 0, None))?;
        let model = model.valid().to_device(&device.burn().clone().without_autodiff());
        let shapes = parameters::shapes(&model);
        let recipe = self.recipe(true);
        let (asked, unified) = (self.config.loading, device.info.unified_memory);
        let estimate = Estimate::of(self.config, self.data.form(), self.data.train.len());
        let loading = Loading::choose(asked, &recipe, self.effective_batch(), unified).within(
            asked,
            estimate.batch,
            available(self.footing, self.config.memory)
                .map_err(|fault| self.stopped(fault, 0, None))?,
        );
        self.check_ranks_agree(&shapes)?;
        let mut run = self.begin(model, device.name(), &shapes, resume, loading, tell)?;
        let resumed_from = resume.map(|_| run.state.step);
        surefoot_ops::keep_freed_memory();
        let (per_epoch, total) = self.lengths();
        tell(&TrainEvent::Started {
            parameters: run.state.model.num_params(),
            samples: (self.data.train.len(), self.data.test.len()),
            steps: total,
            from: run.state.step,
            loading,
            folder: self.checkpoints.folder().to_owned(),
        });
        for fault in &self.earlier_faults {
            let step = run.state.step + 1;
            run.faults.push(FaultReport { step, ..fault.clone() });
        }
        self.check_states_agree(&run)?;
        self.fit(&mut run, &recipe, tell)?;
        self.hold(&mut run, true);
        let (mut interrupted, mut stopped_early) = (false, false);
        while !interrupted {
            let done = run.state.step;
            if run.is_untested(per_epoch, total) {
                self.finish_epoch(&mut run, &shapes, (done - 1) / per_epoch, tell)?;
                continue;
            }
            stopped_early = run.stopped_improving(self.config.early_stop);
            if done >= total || stopped_early {
                break;
            }
            let lengths = (done / per_epoch, per_epoch, total);
            let end = self.steps_of_epoch(&mut run, &shapes, &recipe, lengths, tell)?;
            interrupted = matches!(end, StepsEnd::Stopped);
        }
        let report = self.report(run, &shapes, resumed_from, interrupted, tell)?;
        Ok(TrainReport { stopped_early: stopped_early && report.steps < total, ..report })
    }

    fn effective_batch(&self) -> usize {
        self.config.batch_size * self.config.accumulate
    }

    /// Steps of an epoch, and of the run.
    fn lengths(&self) -> (u64, u64) {
        let per_epoch = self.data.train.len().div_ceil(self.effective_batch()) as u64;
        let total = match self.config.length {
            Length::Epochs(epochs) => epochs * per_epoch,
            Length::Steps(steps) => steps,
        };
        (per_epoch, total)
    }

    fn recipe(&self, training: bool) -> Recipe {
        let source = if training { &self.data.train } else { &self.data.test };
        Recipe {
            source: source.clone(),
            transform: self.data.transform.clone(),
            on_bad_sample: self.config.data.on_bad_sample,
            seed: training.then_some(self.config.seed),
            class_weights: self.data.class_weights.clone().filter(|_| training),
        }
    }

    fn settings(&self, micro_batch: usize) -> StepSettings {
        let (rule, clip_norm) = (self.config.optimizer.rule, self.config.clip_norm);
        StepSettings { rule, clip_norm, micro_batch }
    }

    fn trials<'t, M>(
        &'t self,
        state: &'t State<M>,
        recipe: &'t Recipe,
        loading: Loading,
        budget: u64,
    ) -> Trials<'t, M> {
        let most = self.config.batch_size;
        let estimate = Estimate::of(self.config, self.data.form(), self.data.train.len());
        let bytes = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Trials {
            footing: self.footing,
            state,
            recipe,
            settings: self.settings(most),
            memory: Some(budget),
            sample: bytes(estimate.sample),
            besides: bytes(estimate.batch.saturating_mul(loading.batches_in_memory() as u128)),
            most,
            checkpointing: self.config.gradient_checkpointing,
            timed: false,
        }
    }

    /// Finds how many samples at once stay within the budget, if there is one: as before where the
    /// run went on from a checkpoint with the same budget on the same device.
    fn fit<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        recipe: &Recipe,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<(), TrainError> {
        let device = run.state.device.to_string();
        let Some(budget) = self.budget(run)? else {
            run.fitted = None;
            return Ok(());
        };
        let before = run.fitted.take().filter(|before| {
            let same = match self.config.memory {
                Some(budget) => before.budget == budget,
                // What is available changes from moment to moment; what fitted in less still does.
                None => before.budget <= budget,
            };
            same && before.device == device && before.micro_batch <= self.config.batch_size
        });
        let micro_batch = match before {
            Some(before) => before.micro_batch,
            None => {
                let fit = self.trials(&run.state, recipe, run.loading, budget).run(|_| {});
                fit.map_err(|fault| self.stopped(fault, 0, None))?.largest
            }
        };
        run.micro_batch = micro_batch;
        run.fitted = Some(Fitted { device, budget, micro_batch });
        tell(&TrainEvent::Fitted { micro_batch, budget });
        Ok(())
    }

    /// The budget in bytes: as asked for, or what is available if the step might not fit in it.
    fn budget<M>(&self, run: &RunState<M>) -> Result<Option<u64>, TrainError> {
        if let Some(budget) = self.config.memory {
            return Ok(Some(budget));
        }
        let device = self.footing.device().map_err(|fault| self.stopped(fault, 0, None))?;
        let available =
            available(self.footing, None).map_err(|fault| self.stopped(fault, 0, None))?;
        let estimate = Estimate::of(self.config, self.data.form(), self.data.train.len());
        let batches = run.loading.batches_in_memory();
        if estimate.surely_fits(self.config.batch_size, batches, available) {
            return Ok(None);
        }
        let usable = (available as f64 * SHARE) as u64;
        Ok(Some(device.memory_in_use().saturating_add(usable)))
    }

    fn order(&self) -> Order {
        let samples = self.data.train.len();
        Order { seed: self.config.seed, batch: self.effective_batch(), samples }
    }

    fn stopped(&self, fault: Fault, step: u64, saved: Option<PathBuf>) -> TrainError {
        TrainError::Fault { fault: Box::new(fault), step, saved }
    }

    /// Steps to the end of an epoch or of the run.
    fn steps_of_epoch<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        recipe: &Recipe,
        (epoch, per_epoch, total): (u64, u64, u64),
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        let mut plan =
            plan(self.data.train.len(), self.effective_batch(), Some(self.config.seed), epoch);
        let done = (run.state.step % per_epoch) as usize;
        plan.drain(..done);
        plan.truncate((total - run.state.step) as usize);
        let plan = self.own_part(plan);
        run.epoch_started = (Instant::now(), run.state.step);
        let loader = Loader::start(recipe.clone(), epoch, plan, run.loading);
        let stage = Stage::new(loader, run.loading.staging);
        while let Some(loaded) = stage.next() {
            let started = Instant::now();
            let end = match self.ranks {
                Some(ranks) => {
                    self.step_together(ranks, run, shapes, (loaded, &stage), total, tell)?
                }
                None => self.one_step(run, shapes, (loaded, &stage), total, tell)?,
            };
            if !matches!(end, StepsEnd::Whole) {
                return Ok(end);
            }
            self.pace(run, &stage, started.elapsed(), tell);
            self.hold(run, false);
            let step = run.state.step;
            let due = self.config.checkpoint.every.is_some_and(|every| step.is_multiple_of(every));
            // The end of an epoch is saved once it is tested.
            if due && !step.is_multiple_of(per_epoch) && step < total {
                let end = self.save_or_rewind(run, shapes, tell)?;
                if !matches!(end, StepsEnd::Whole) {
                    return Ok(end);
                }
            }
        }
        Ok(StepsEnd::Whole)
    }

    fn step_order<M>(&self, run: &RunState<M>, total: u64) -> StepOrder {
        let optimizer = &self.config.optimizer;
        StepOrder {
            lr: optimizer.schedule.rate(optimizer.lr, run.state.step, optimizer.warmup, total),
            checkpointing: run.checkpointing,
            name_bad: run.bad_in_a_row + 1 >= BAD_STEPS,
        }
    }

    fn one_step<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        shapes: &[Shape],
        (loaded, stage): (Loaded, &Stage),
        total: u64,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<StepsEnd, TrainError> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(StepsEnd::Stopped);
        }
        let batch = match loaded {
            Ok(batch) => batch,
            Err(fault) => return Err(self.save_and_stop(run, shapes, fault)),
        };
        run.note_unreadable(&batch.skipped, tell);
        if batch.samples() == 0 {
            run.state.step += 1;
            return Ok(StepsEnd::Whole);
        }
        let feed = Feed { batch: &batch, stage: Some(stage) };
        let settings = self.settings(run.micro_batch);
        let order = self.step_order(run, total);
        let done = match step(self.footing, &settings, order, &run.state, shapes, feed) {
            Ok(outcome) => {
                run.note_faults(&outcome.faults, tell);
                outcome.value
            }
            Err(fault) => {
                run.note_failure(&fault, tell);
                if fault.kind == FaultKind::StateLost {
                    return self.rewind(run, fault, tell);
                }
                return Err(self.save_and_stop(run, shapes, fault));
            }
        };
        self.commit(run, done, batch.items() as u64, total, tell)?;
        Ok(StepsEnd::Whole)
    }

    /// Makes what a step did the state of the run, and tells of it.
    fn commit<M: Trainable>(
        &self,
        run: &mut RunState<M>,
        done: Done<M>,
        items: u64,
        total: u64,
        tell: &mut dyn FnMut(&TrainEvent),
    ) -> Result<(), TrainError> {
        run.checkpointing = done.checkpointing;
        run.state = done.state;
        if done.finite {
            run.bad_in_a_row = 0;
            run.running.loss += done.loss;
            run.running.correct += done.correct;
            run.running.items += items;
        } else {
            run.bad_in_a_row += 1;
            run.running.skipped_steps += 1;
            tell(&TrainEvent::SkippedStep { step: run.state.step });
            if let Some(bad) = done.bad {
                let message = format!(
                    "{} steps in a row had inf or NaN; the first bad tensor is {bad}",
                    run.bad_in_a_row
                );
                let fault = Fault::new(FaultKind::Numeric, crate::step::OPERATION, message)
                    .on(run.state.device.to_string())
                    .advise("lower `optimizer.lr`, set `clip_norm: 1`, or use `precision: fp32`");
                // These weights led here: going on from them would lead here again.
                let step = run.state.step;
                return Err(self.stopped(fault, step, self.best_checkpoint(run)));
            }
        }
        let items = run.running.items.max(1) as f64;
        tell(&TrainEvent::Step {
            step: run.state.step,
            of: total,
            loss: run.running.loss / items,
            accuracy: run.running.correct / items,
            samples_per_second: self.speed(run),
        });
        Ok(())
    }

    /// Chooses how to load once the first steps have shown how long one takes.
    fn pace<M>(
        &self,
        run: &mut RunState<M>,
        stage: &Stage,
        took: Duration,
        tell: &mut dyn FnMut(&TrainEvent),
    ) {
        if run.paces.len() == MEASURED_STEPS {
            return;
        }
        run.paces.push(took);
        if run.paces.len() < MEASURED_STEPS {
            return;
        }
        let mut paces = run.paces[FIRST_STEPS..].to_vec();
        paces.sort_unstable();
        let step_seconds = paces[paces.len() / 2].as_secs_f64();
        run.loading = run.loading.at_pace(self.config.loading, step_seconds);
        let Loading { workers, prefetch, staging, load_seconds } = run.loading;
        stage.set_prefetch(prefetch);
        self.footing.journal().record(
            Event::new(EventKind::Note, "load")
                .context("workers", workers as u64)
                .context("prefetch", prefetch as u64)
                .context("staging", staging)
                .context("load_seconds", load_seconds)
                .context("step_seconds", step_seconds),
        );
        tell(&TrainEvent::Loading { loading: run.loading, step_seconds });
    }

    fn speed<M>(&self, run: &RunState<M>) -> f64 {
        let (since, step) = run.epoch_started;
        let of_a_step = self.effective_batch().min(self.order().samples);
        let samples = (run.state.step - step) as f64 * of_a_step as f64;
        samples / since.elapsed().as_secs_f64().max(1e-9)
    }
}
