//! The loop: from the first step, or a checkpoint, to the last.
//!
//! A step is committed when it is confirmed; until then the state before it is whole. Where a
//! device's memory is its own, a copy of the state is held on the host from time to time: if the
//! device is lost with everything on it, the run goes back to that copy and does the steps since
//! again, with the same samples in the same order, so that none is missing and none counts twice.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surefoot::device::DeviceName;
use surefoot::{Fault, FaultKind, Footing};

use crate::batch::HostBatch;
use crate::checkpoint::{self, Best, CheckpointError, Order, Running, Shelf, Story};
use crate::config::{Config, Length};
use crate::curves;
use crate::data::DataSet;
use crate::evaluate::{Evaluation, evaluate};
use crate::fit::Trials;
use crate::loader::{Loader, Recipe, choose_workers, plan};
use crate::model::Trainable;
use crate::parameters::{self, Shape};
use crate::report::{EpochReport, FaultReport, News, Report};
use crate::state::{Held, State};
use crate::step::{STATE_LOST, StepOrder, StepSettings, step};
use crate::watch::{Notice, Watch};

/// Steps with inf or NaN in a row that end a run, where no loss scale can be to blame.
const BAD_STEPS: u32 = 8;
/// Holding a copy on the host may take this share of the time.
const HOLDING_SHARE: u32 = 50;

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
        /// Where the last good state was saved.
        saved: Option<PathBuf>,
    },
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is of another run.
    #[error("{}: it is of another run: {why}", path.display())]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        why: String,
    },
}

/// What a run stands on.
pub struct Run<'a> {
    /// The devices.
    pub footing: &'a Footing,
    /// What to do.
    pub config: &'a Config,
    /// The configuration's text and the keys that flags overrode, to be kept in checkpoints.
    pub origin: (String, Vec<(String, String)>),
    /// The samples.
    pub data: &'a DataSet,
    /// Where checkpoints go.
    pub shelf: Shelf,
    /// Hears of faults: give its listener to the footing's journal.
    pub watch: Watch,
    /// Set to end the run at the next step, with a checkpoint.
    pub stop: &'a AtomicBool,
}

/// What changes while a run goes on.
struct Course<M> {
    state: State<M>,
    running: Running,
    epochs: Vec<EpochReport>,
    best: Option<Best>,
    faults: Vec<FaultReport>,
    bad_in_a_row: u32,
    checkpointing: bool,
    held: Option<(Held, Running, Vec<EpochReport>)>,
    micro_batch: usize,
    held_at: Instant,
    holding_took: Duration,
    started: Instant,
    seconds_before: f64,
    epoch_started: (Instant, u64),
}

impl<M> Course<M> {
    /// Whether an epoch is done but not yet tested and told: also after a fault in between.
    fn is_untested(&self, per_epoch: u64, total: u64) -> bool {
        let step = self.state.step;
        let is_end = step > 0 && (step.is_multiple_of(per_epoch) || step == total);
        is_end && self.epochs.last().is_none_or(|epoch| epoch.step != step)
    }
}

/// How a stretch of steps ended.
enum Stretch {
    Whole,
    Stopped,
    Rewound,
}

impl Run<'_> {
    /// Trains `model`, from the checkpoint at `resume` if there is one, and tells what happens.
    pub fn train<M: Trainable>(
        &self,
        model: M,
        resume: Option<&Path>,
        mut tell: impl FnMut(&News),
    ) -> Result<Report, TrainError> {
        let tell: &mut dyn FnMut(&News) = &mut tell;
        let device = self.footing.device().map_err(|fault| self.stopped(fault, 0, None))?;
        let model = model.valid().to_device(&device.burn().clone().without_autodiff());
        let shapes = parameters::shapes(&model);
        let mut course = self.begin(model, device.name(), &shapes, resume)?;
        let resumed_from = resume.map(|_| course.state.step);
        let recipe = self.recipe(true);
        let workers = choose_workers(self.config.workers, &recipe, self.effective_batch());
        let (per_epoch, total) = self.lengths();
        tell(&News::Started {
            parameters: course.state.model.num_params(),
            samples: (self.data.train.len(), self.data.test.len()),
            steps: total,
            from: course.state.step,
            workers,
            folder: self.shelf.folder().to_owned(),
        });
        if let Some(budget) = self.config.memory {
            let fit = self.trials(&course.state, &recipe).run(|_| {});
            course.micro_batch = fit.map_err(|fault| self.stopped(fault, 0, None))?.largest;
            tell(&News::Fitted { micro_batch: course.micro_batch, budget });
        }
        self.hold(&mut course, true);
        let mut interrupted = false;
        while !interrupted {
            let done = course.state.step;
            if course.is_untested(per_epoch, total) {
                self.finish_epoch(&mut course, &shapes, (done - 1) / per_epoch, workers, tell)?;
                continue;
            }
            if done >= total {
                break;
            }
            let lengths = (done / per_epoch, per_epoch, total);
            let stretch = self.stretch(&mut course, &shapes, &recipe, lengths, workers, tell)?;
            interrupted = matches!(stretch, Stretch::Stopped);
        }
        self.report(course, &shapes, resumed_from, interrupted, tell)
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
        }
    }

    fn settings(&self, micro_batch: usize) -> StepSettings {
        let (rule, clip_norm) = (self.config.optimizer.rule, self.config.clip_norm);
        StepSettings { rule, clip_norm, micro_batch }
    }

    fn trials<'t, M>(&'t self, state: &'t State<M>, recipe: &'t Recipe) -> Trials<'t, M> {
        let most = self.config.batch_size;
        Trials {
            footing: self.footing,
            state,
            recipe,
            settings: self.settings(most),
            memory: self.config.memory,
            most,
            timed: false,
        }
    }

    fn order(&self) -> Order {
        let samples = self.data.train.len();
        Order { seed: self.config.seed, batch: self.effective_batch(), samples }
    }

    fn stopped(&self, fault: Fault, step: u64, saved: Option<PathBuf>) -> TrainError {
        TrainError::Fault { fault: Box::new(fault), step, saved }
    }

    fn begin<M: Trainable>(
        &self,
        model: M,
        device: DeviceName,
        shapes: &[Shape],
        resume: Option<&Path>,
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
            micro_batch: self.config.batch_size,
            held_at: now,
            holding_took: Duration::ZERO,
            started: now,
            seconds_before: 0.0,
            epoch_started: (now, 0),
        };
        let Some(path) = resume else { return Ok(course) };
        let (held, story) = checkpoint::read(path, shapes)?;
        if story.order != self.order() {
            let why = format!(
                "it has {:?}, this one {:?}; the samples would come in another order",
                story.order,
                self.order()
            );
            return Err(TrainError::OtherRun { path: path.to_owned(), why });
        }
        let burn = self.footing.device().map_err(|fault| self.stopped(fault, 0, None))?;
        course.state = State::from_held(&held, course.state.model, device, burn.burn());
        course.running = story.running;
        course.epochs = story.epochs;
        course.best = story.best;
        course.seconds_before = story.seconds;
        course.epoch_started.1 = course.state.step;
        Ok(course)
    }

    /// Steps to the end of an epoch or of the run.
    fn stretch<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        recipe: &Recipe,
        (epoch, per_epoch, total): (u64, u64, u64),
        workers: usize,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Stretch, TrainError> {
        let mut plan =
            plan(self.data.train.len(), self.effective_batch(), Some(self.config.seed), epoch);
        let done = (course.state.step % per_epoch) as usize;
        plan.drain(..done);
        plan.truncate((total - course.state.step) as usize);
        course.epoch_started = (Instant::now(), course.state.step);
        let loader = Loader::start(recipe.clone(), epoch, plan, workers, self.config.prefetch);
        for loaded in loader {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Stretch::Stopped);
            }
            let batch = match loaded {
                Ok(batch) => batch,
                Err(fault) => return Err(self.save_and_stop(course, shapes, fault)),
            };
            for what in &batch.skipped {
                course.running.skipped_samples += 1;
                tell(&News::SkippedSample { what: what.clone() });
            }
            if let Stretch::Rewound = self.one_step(course, shapes, &batch, total, tell)? {
                return Ok(Stretch::Rewound);
            }
            self.hold(course, false);
            let step = course.state.step;
            let due = self.config.checkpoint.every.is_some_and(|every| step.is_multiple_of(every));
            // The end of an epoch is saved once it is tested.
            if due && !step.is_multiple_of(per_epoch) && step < total {
                match self.save(course, shapes, tell) {
                    Err(TrainError::Fault { fault, .. }) if course.held.is_some() => {
                        return self.rewind(course, *fault, tell);
                    }
                    other => other?,
                };
            }
        }
        Ok(Stretch::Whole)
    }

    fn one_step<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        batch: &HostBatch,
        total: u64,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Stretch, TrainError> {
        if batch.samples() == 0 {
            course.state.step += 1;
            return Ok(Stretch::Whole);
        }
        let optimizer = &self.config.optimizer;
        let settings = self.settings(course.micro_batch);
        let order = StepOrder {
            lr: optimizer.schedule.rate(optimizer.lr, course.state.step, optimizer.warmup, total),
            checkpointing: course.checkpointing,
            name_bad: course.bad_in_a_row + 1 >= BAD_STEPS || course.state.scale.is_last_try(),
        };
        let done = step(self.footing, &settings, order, &course.state, shapes, batch);
        self.pass_on_faults(course, tell);
        let done = match done {
            Ok(done) => done,
            Err(fault) if fault.root_cause() == STATE_LOST => {
                return self.rewind(course, fault, tell);
            }
            Err(fault) => return Err(self.save_and_stop(course, shapes, fault)),
        };
        course.checkpointing = done.checkpointing;
        course.state = done.state;
        if done.finite {
            course.bad_in_a_row = 0;
            course.running.loss += done.loss;
            course.running.correct += done.correct;
            course.running.items += batch.items() as u64;
        } else {
            course.bad_in_a_row += 1;
            course.running.skipped_steps += 1;
            tell(&News::SkippedStep { step: course.state.step });
            if let Some(bad) = done.bad {
                let message = format!(
                    "{} steps in a row had inf or NaN; the first bad tensor is {bad}",
                    course.bad_in_a_row
                );
                let fault = Fault::new(FaultKind::Numeric, crate::step::OPERATION, message)
                    .on(course.state.device.to_string())
                    .advise("lower `optimizer.lr`, set `clip_norm: 1`, or use `precision: fp32`");
                return Err(self.save_and_stop(course, shapes, fault));
            }
        }
        let items = course.running.items.max(1) as f64;
        tell(&News::Step {
            step: course.state.step,
            of: total,
            loss: course.running.loss / items,
            accuracy: course.running.correct / items,
            samples_per_second: self.speed(course),
        });
        Ok(Stretch::Whole)
    }

    fn speed<M>(&self, course: &Course<M>) -> f64 {
        let (since, step) = course.epoch_started;
        let samples = (course.state.step - step) as f64 * self.effective_batch() as f64;
        samples / since.elapsed().as_secs_f64().max(1e-9)
    }

    fn pass_on_faults<M>(&self, course: &mut Course<M>, tell: &mut dyn FnMut(&News)) {
        for notice in self.watch.drain() {
            match notice {
                Notice::Fault { kind, device, message } => {
                    let step = course.state.step + 1;
                    let fault = FaultReport { step, kind, device, message, recovery: None };
                    tell(&News::Fault(fault.clone()));
                    course.faults.push(fault);
                }
                Notice::Rung { rung, device, parts } => {
                    if let Some(fault) = course.faults.last_mut() {
                        fault.recovery.get_or_insert_with(|| rung.clone());
                    }
                    tell(&News::Recovery { rung, device, parts });
                }
            }
        }
    }

    /// Goes back to the copy on the host.
    fn rewind<M: Trainable>(
        &self,
        course: &mut Course<M>,
        fault: Fault,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Stretch, TrainError> {
        let step = course.state.step;
        let Some((held, running, epochs)) = course.held.clone() else {
            return Err(self.stopped(fault, step, None));
        };
        let device = self.footing.device().map_err(|fault| self.stopped(fault, step, None))?;
        let model = course.state.model.clone();
        course.state = State::from_held(&held, model, device.name(), device.burn());
        (course.running, course.epochs) = (running, epochs);
        tell(&News::Rewound { to: held.step });
        Ok(Stretch::Rewound)
    }

    /// Holds a copy on the host if the device's memory is its own and it is time.
    fn hold<M: Trainable>(&self, course: &mut Course<M>, now: bool) {
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
            course.held = Some((held, course.running, course.epochs.clone()));
        }
        course.holding_took = started.elapsed();
        course.held_at = Instant::now();
    }

    /// Tests the state; none if it went with its device and the run went back to the copy.
    fn test<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        workers: usize,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Option<Evaluation>, TrainError> {
        let (size, prefetch) = (course.micro_batch, self.config.prefetch);
        let result =
            evaluate(self.footing, &course.state, &self.recipe(false), size, workers, prefetch);
        self.pass_on_faults(course, tell);
        match result {
            Ok(tested) => Ok(Some(tested)),
            Err(fault) if fault.root_cause() == STATE_LOST => {
                self.rewind(course, fault, tell).map(|_| None)
            }
            Err(fault) => Err(self.save_and_stop(course, shapes, fault)),
        }
    }

    fn finish_epoch<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        epoch: u64,
        workers: usize,
        tell: &mut dyn FnMut(&News),
    ) -> Result<Stretch, TrainError> {
        let samples_per_second = self.speed(course);
        let Some(tested) = self.test(course, shapes, workers, tell)? else {
            return Ok(Stretch::Rewound);
        };
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
        let better = course.best.as_ref().is_none_or(|best| {
            (tested.accuracy, -tested.loss) > (best.test_accuracy, -best.test_loss)
        });
        if better {
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

    fn story<M>(&self, course: &Course<M>) -> Story {
        Story {
            version: checkpoint::VERSION,
            step: course.state.step,
            updates: course.state.moments.updates,
            scale: course.state.scale,
            order: self.order(),
            running: course.running,
            epochs: course.epochs.clone(),
            best: course.best.clone(),
            seconds: course.seconds_before + course.started.elapsed().as_secs_f64(),
            config: self.origin.0.clone(),
            flags: self.origin.1.clone(),
        }
    }

    fn save<M: Trainable>(
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
            course.held = Some((held, course.running, course.epochs.clone()));
            course.held_at = Instant::now();
        }
        Ok(path)
    }

    /// Ends the run with `fault`; what was done so far is saved if it can be.
    fn save_and_stop<M: Trainable>(
        &self,
        course: &mut Course<M>,
        shapes: &[Shape],
        fault: Fault,
    ) -> TrainError {
        let step = course.state.step;
        let saved = match step {
            0 => None,
            _ => self.save(course, shapes, &mut |_| {}).ok(),
        };
        self.stopped(fault, step, saved)
    }

    fn report<M: Trainable>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Builtin;
    use crate::step::tests::STATE_IS_LOST;
    use surefoot::device::{Backend, Selector};
    use surefoot::journal::Journal;
    use surefoot::recover::Drill;

    const CONFIG: &str =
        "{data: {kind: digits}, model: {kind: mlp, hidden: [16]}, batch_size: 160, steps: 12}";

    fn train(drill: Drill) -> (Report, Vec<News>) {
        let config = Config::parse(CONFIG, &[]).unwrap();
        let data = crate::data::open(&config.data, config.seed).unwrap();
        let watch = Watch::default();
        let spare = DeviceName { backend: Backend::Cpu, index: 1 };
        let footing = Footing::builder()
            .devices(Selector::Chain(vec![spare, DeviceName::CPU]))
            .journal(Journal::builder().listener(watch.listener()).build())
            .drill(drill)
            .build()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let run = Run {
            footing: &footing,
            config: &config,
            origin: (CONFIG.to_owned(), Vec::new()),
            data: &data,
            shelf: Shelf::new(folder.path(), 1).unwrap(),
            watch,
            stop: &AtomicBool::new(false),
        };
        let device = footing.device().unwrap();
        let model = Builtin::new(&config.model, data.form(), config.seed, device.burn());
        let mut heard = Vec::new();
        let report = run.train(model, None, |news| heard.push(news.clone())).unwrap();
        (report, heard)
    }

    #[test]
    fn a_state_that_goes_with_its_device_is_made_again_from_the_host_s_copy() {
        let (expected, _) = train(Drill::default());
        for step in [0, 6, 11] {
            STATE_IS_LOST.set(true);
            let (report, news) = train(Drill::once(FaultKind::DeviceLost, step).on("cpu:1"));
            STATE_IS_LOST.set(false);
            assert!(news.iter().any(|news| matches!(news, News::Rewound { .. })), "{step}");
            assert_eq!((report.steps, report.device.as_str()), (12, "cpu"), "{step}");
            assert_eq!(report.test_loss.to_bits(), expected.test_loss.to_bits(), "{step}");
            let losses = |report: &Report| report.epochs.last().unwrap().train_loss.to_bits();
            assert_eq!(losses(&report), losses(&expected), "{step}");
        }
    }
}
