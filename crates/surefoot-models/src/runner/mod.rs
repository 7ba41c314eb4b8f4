//! The one guarded way to run a model.
//!
//! A [`Runner`] opens a model folder once. Each [`Runner::run`] is one guarded piece of work: it
//! plans the memory for the work, loads what the plan says (or uses what is loaded already), hands
//! the model to the caller's task, and answers a fault as the policy of its footing allows: by
//! streaming the weights, by splitting the samples, or by moving the model to the next device. Where the footing uses
//! several devices together, a plan lays the model's blocks over them, and those of a lost device are laid over the others.
//!
//! Invariants:
//!
//! - At most one copy of the model is kept. The old copy is dropped before the next is loaded,
//!   since both may not fit; tasks that still use it keep it alive until they end.
//! - Work starts on the device that the model is on. A model that had to stream its weights on a
//!   device goes on streaming them there.
//! - A task may run several times, so nothing it does may be visible outside before it returns.
//! - An error that is the caller's mistake is returned at once and never retried.
//!
//! Several threads may run tasks on one runner; whoever needs the model while another thread loads
//! it waits for it.
//!
//! ```
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use surefoot::Footing;
//! use surefoot_models::runner::{RunRequest, Runner};
//! use surefoot_models::stream::needs::Work;
//! use surefoot_models::{TokenBatch, Logits, Want};
//!
//! # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
//! let footing = Arc::new(Footing::builder().build()?);
//! let runner = Runner::open(footing, &folder)?;
//! let want = Want { logits: Logits::Last, hidden: false, last_hidden: false };
//! let batch = TokenBatch::new(&[vec![1, 2, 3]], runner.blueprint().vocab)?;
//! let work = Work { batch: 1, prompt: 3, new_tokens: 0, want };
//! let run = runner.run(&RunRequest::new("forward", work), |attempt| {
//!     attempt.model().forward(&batch, want)
//! })?;
//! assert_eq!(run.value.logits.map(|logits| logits.cols), Some(runner.blueprint().vocab));
//! println!("computed on {} in {} tries", run.device, run.attempts);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod attempt;
mod classify;
mod device_map;
mod embed;
mod generate;
mod observer;
mod request;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use burn::tensor::Device;
use surefoot::device::DeviceName;
use surefoot::journal::{Event, EventKind};
use surefoot::place;
use surefoot::recover::{Confirm, Rung, Step, Task};
use surefoot::{BoxError, Burn, Fault, Footing};

pub use crate::run::cpu_fallback::MovedPart;
pub use attempt::{Attempt, Location, RunOutcome};
pub use generate::{Completion, NewToken};
pub use observer::{AttemptEnd, AttemptStart, RunObserver, Silent};
pub use request::RunRequest;

use crate::adapter::Adapter;
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::folder::header::WeightDtype;
use crate::run::opened::Opened;
use crate::stream::choices::ChoicePlan;
use crate::stream::meter::{Meter, Reading};
use crate::stream::needs::Work;
use crate::stream::plan::Plan;
use crate::stream::process;
use crate::stream::rate::Rate;
use crate::weights::binding::Matrix;
use crate::weights::choice::WeightChoice;
use crate::weights::format::Format;
use attempt::LoadedModel;
use device_map::Speeds;

/// After this many failed tasks in a row a model is loaded anew: its weights may be damaged.
const FAILURES_BEFORE_RELOAD: u32 = 2;

/// A model folder that was opened, and the one guarded way to run it.
pub struct Runner {
    footing: Arc<Footing>,
    opened: Opened,
    observer: Arc<dyn RunObserver>,
    /// Bytes of host memory that the program takes beside the model.
    beside: u64,
    /// What was measured of the devices that models are laid over.
    speeds: Arc<Speeds>,
    /// The bytes of this process before any model was loaded, measured at the first plan.
    baseline: Arc<OnceLock<u64>>,
    state: Mutex<State>,
}

/// Where runs start, and the model that is loaded.
#[derive(Default)]
struct State {
    /// The device that the last run ended on.
    device: Option<DeviceName>,
    /// A fault on that device was answered by streaming the weights.
    must_stream: bool,
    loaded: Option<Arc<LoadedModel>>,
}

/// The result of a task that a caller's mistake may have ended. Its numbers are on the host, so
/// there is nothing left for the guard to read.
struct Finished<T>(Result<T, ModelError>);

impl<T> Confirm<Burn> for Finished<T> {
    fn confirm(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

impl Runner {
    /// Opens the model in `folder`. No weights are read before the first run. Plans stay within the
    /// footing's budget, or else within what the machine has.
    pub fn open(footing: Arc<Footing>, folder: &Path) -> Result<Self, ModelError> {
        Ok(Self {
            footing,
            opened: Opened::new(folder)?,
            observer: Arc::new(Silent),
            beside: 0,
            speeds: Arc::default(),
            baseline: Arc::default(),
            state: Mutex::default(),
        })
    }

    /// Runs the model with the adapter in `folder`.
    pub fn adapted(mut self, folder: &Path) -> Result<Self, ModelError> {
        let adapter = Adapter::read(folder, &self.opened)?;
        self.opened = self.opened.adapted(&adapter);
        Ok(self)
    }

    /// Keeps the adapters in `folders` beside the model, for passes that ask for one of them by its number: its place among
    /// `folders`. The model's own weights are loaded once for all.
    pub fn with_adapters(mut self, folders: &[impl AsRef<Path>]) -> Result<Self, ModelError> {
        for folder in folders {
            let adapter = Adapter::read(folder.as_ref(), &self.opened)?;
            self.opened.keep_adapter(&adapter);
        }
        Ok(self)
    }

    /// Reports the progress of every attempt to `observer`.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn RunObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// Quantises weights while they are loaded, if `choice` says so.
    #[must_use]
    pub fn weights(mut self, choice: WeightChoice) -> Self {
        self.opened = self.opened.with_weights(choice);
        self
    }

    /// Rounds weights to the formats in which `other` has them; nothing if it is built otherwise.
    pub fn rounded_like(mut self, other: &Opened) -> Option<Self> {
        self.opened = self.opened.rounded_like(other)?;
        Some(self)
    }

    /// Plans for a program that takes so many bytes of host memory beside the model: a server's
    /// connections and requests.
    #[must_use]
    pub fn beside(mut self, bytes: u64) -> Self {
        self.beside = bytes;
        self
    }

    /// [`Self::beside`], of a runner that is there already.
    pub fn set_beside(&mut self, bytes: u64) {
        self.beside = bytes;
    }

    /// Another model on the same footing, with the same observer and the same choice of weights.
    pub fn open_another(&self, folder: &Path) -> Result<Self, ModelError> {
        Ok(Self {
            footing: Arc::clone(&self.footing),
            opened: Opened::new(folder)?.with_weights(self.opened.weights()),
            observer: Arc::clone(&self.observer),
            beside: self.beside,
            speeds: Arc::clone(&self.speeds),
            baseline: Arc::clone(&self.baseline),
            state: Mutex::default(),
        })
    }

    /// The opened folder, without weights.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// What the model is made of.
    pub fn blueprint(&self) -> &Blueprint {
        &self.opened.blueprint
    }

    /// The footing that work runs on.
    pub fn footing(&self) -> &Arc<Footing> {
        &self.footing
    }

    /// The device that the next run starts on, if the model was loaded before.
    pub fn device(&self) -> Option<DeviceName> {
        self.state().device
    }

    /// Plans `work` for the device that it would start on. Whether it fits is in the plan.
    pub fn plan(&self, work: &Work) -> Result<Plan, ModelError> {
        let device = self.footing.device()?;
        let compute = self.footing.precision()?.compute.into();
        let opened = self.opened_on(device.burn(), compute);
        let together = self.footing.together();
        if together.len() > 1 {
            let compute = self.common_compute(compute, &together)?;
            return self.plan_over(&opened.on(device.burn(), compute), work, &together);
        }
        Ok(opened.plan_in_room(work, &self.footing.room()?, self.footing.budget()))
    }

    /// The largest number of samples, at most `samples`, that fit in memory together, where `work`
    /// says what a number of them needs. It is 1 if not even one fits: a run then refuses it with
    /// what one needs.
    pub fn fitting_samples(
        &self,
        samples: usize,
        work: impl Fn(usize) -> Work,
    ) -> Result<usize, ModelError> {
        let mut count = samples.max(1);
        while count > 1 && !self.plan(&work(count))?.fits {
            count = count.div_ceil(2);
        }
        Ok(count)
    }

    /// How fast `plan` will run, from small samples of this machine that are taken now.
    pub fn expected_rate(&self, plan: &Plan) -> Result<Rate, ModelError> {
        let device = self.footing.device()?;
        let format = Format::new(device.burn(), self.footing.precision()?.compute.into());
        Ok(Rate::estimate(plan, &self.opened.binding, &format, device.burn()))
    }

    /// What `work` would need, and how fast it would be, in each form of the weights, the most exact first. A form
    /// that changes nothing, because the files have no more bits, is left out.
    pub fn choices(&self, work: &Work) -> Result<Vec<ChoicePlan>, ModelError> {
        let device = self.footing.device()?;
        let together = self.footing.together();
        let compute = self.footing.precision()?.compute.into();
        let compute = self.common_compute(compute, &together)?;
        let (room, budget) = (self.footing.room()?, self.footing.budget());
        let format = Format::new(device.burn(), compute);
        let mut choices: Vec<ChoicePlan> = Vec::new();
        for choice in WeightChoice::ALL {
            let opened = self.opened_on(device.burn(), compute).with_weights(choice);
            let plan = match together.len() > 1 {
                true => self.plan_over(&opened, work, &together)?,
                false => opened.plan_in_room(work, &room, budget),
            };
            let rate = Rate::estimate(&plan, &opened.binding, &format, device.burn());
            let file_bytes = opened.binding.matrices.iter().map(Matrix::file_bytes).sum();
            let next = ChoicePlan::new(choice, &plan, &rate, file_bytes);
            if choices.last().is_none_or(|last| next.weight_bytes < last.weight_bytes) {
                choices.push(next);
            }
        }
        Ok(choices)
    }

    /// Drops the loaded model, so that its memory is free.
    pub fn unload(&self) {
        self.state().loaded = None;
    }

    /// Runs `task` with the model, guarded. Returns the task's value and what happened on the way.
    pub fn run<T>(
        &self,
        request: &RunRequest,
        task: impl Fn(&Attempt<'_>) -> Result<T, ModelError>,
    ) -> Result<RunOutcome<T>, ModelError> {
        let work = |step: &Step<'_>| match self.attempt(request, step, &task) {
            Err(ModelError::Fault(fault)) => Err(fault as BoxError),
            // A caller's mistake is no fault of the device, and another try would not help.
            other => Ok(Finished(other)),
        };
        let guarded = self.guarded_task(request);
        let finished = match request.samples {
            1 => guarded.run(work),
            samples => guarded.run_in_parts(samples, work),
        };
        let guarded = finished?;
        let mut outcome = guarded.value.0?;
        (outcome.faults, outcome.rungs) = (guarded.faults, guarded.rungs);
        Ok(outcome)
    }

    fn guarded_task(&self, request: &RunRequest) -> Task<'_> {
        let mut task = self.footing.task(request.name).can(Rung::Stream);
        if request.compute.is_none() {
            task = task.can(Rung::Precision);
        }
        match request.device.or_else(|| self.device()) {
            Some(device) => task.starting_on(device),
            None => task,
        }
    }

    fn attempt<T>(
        &self,
        request: &RunRequest,
        step: &Step<'_>,
        task: &impl Fn(&Attempt<'_>) -> Result<T, ModelError>,
    ) -> Result<RunOutcome<T>, ModelError> {
        let begun = Instant::now();
        let meter: Arc<Meter> = Arc::default();
        let loaded = self.load(request, step, &meter)?;
        // A repeated attempt finds out which block failed, on a device whose errors show late.
        loaded.model.confirm_blocks(step.attempt() > 1);
        let load_time = begun.elapsed();
        let start = match Arc::ptr_eq(loaded.model.meter(), &meter) {
            true => Reading::default(),
            // It was loaded before and has counted its earlier runs.
            false => loaded.model.meter().read(),
        };
        let attempt = Attempt::new(step, request.samples, Arc::clone(&loaded));
        let failure = loaded.failure_guard();
        let result = task(&attempt);
        if !matches!(&result, Err(error) if error.is_device()) {
            failure.disarm();
        }
        let reading = loaded.model.meter().read();
        let end = AttemptEnd {
            request,
            device: step.device_name(),
            plan: attempt.plan(),
            reading: reading.since(&start),
            elapsed: begun.elapsed(),
        };
        self.observer.attempt_ended(&end);
        if request.records_cost {
            self.record(&end);
        }
        Ok(RunOutcome {
            value: result?,
            device: step.device_name(),
            compute: loaded.location.compute,
            attempts: step.attempt(),
            faults: Vec::new(),
            rungs: Vec::new(),
            plan: Arc::clone(&loaded.plan),
            load_time,
            device_peak_bytes: Some(reading.device_peak_bytes).filter(|bytes| *bytes > 0),
            reading: reading.since(&start),
            on_cpu: loaded.model.on_cpu(),
        })
    }

    /// The model for one attempt.
    fn load(
        &self,
        request: &RunRequest,
        step: &Step<'_>,
        meter: &Arc<Meter>,
    ) -> Result<Arc<LoadedModel>, ModelError> {
        let mut state = self.state();
        let (device, mut compute) = (step.device_name(), compute_on(request, step)?);
        let must_stream =
            step.is_streaming() || (state.must_stream && state.device == Some(device));
        // A device that was asked for by name is for this run alone.
        if request.device.is_none() {
            (state.device, state.must_stream) = (Some(device), must_stream);
        }
        let streamed = request.streamed || must_stream;
        // What streams whole, or on a device that was named, is on one device.
        let together = match streamed || request.device.is_some() {
            true => Vec::new(),
            false => step.together(),
        };
        if !together.is_empty() {
            compute = self.common_compute(compute, &together)?;
        }
        let laid_over = self.places_of(&together);
        let location = Location { device, streamed, compute, laid_over };
        if let Some(loaded) = &state.loaded
            && loaded.location == location
            && loaded.work.covers(&request.work)
            && loaded.failures() < FAILURES_BEFORE_RELOAD
        {
            let loaded = Arc::clone(loaded);
            let start = AttemptStart::new(request, step, &loaded.plan, &loaded.model);
            self.observer.attempt_started(&start);
            return Ok(loaded);
        }
        // Dropped before the next is loaded: both may not fit.
        state.loaded = None;
        let opened = self.opened_on(step.device(), compute);
        let plan = if streamed {
            opened.plan_with_share(&request.work, 0.0)
        } else if !together.is_empty() {
            self.plan_over(&opened, &request.work, &together)?.checked()?
        } else {
            opened.plan_in_room(&request.work, &step.room(), self.footing.budget()).checked()?
        };
        let start = AttemptStart {
            request,
            number: step.attempt(),
            device,
            plan: &plan,
            load_bytes: plan.resident_bytes,
            blocks: opened.blueprint.blocks.len(),
            meter: Arc::clone(meter),
        };
        self.observer.attempt_started(&start);
        if plan.budget_bytes.is_none() {
            // Passes take and free the same blocks again and again; within a budget every byte is given back.
            surefoot_ops::keep_freed_memory();
        }
        let model = match plan.device_map.is_empty() {
            true => opened.load(&plan, step.device(), Arc::clone(meter)),
            false => {
                let parts = self.part_devices(&plan, opened.blueprint.blocks.len());
                parts.and_then(|parts| opened.load_parts(&plan, parts, Arc::clone(meter)))
            }
        };
        let model = match model {
            Ok(model) => model.guarded(Arc::clone(&self.footing), device),
            Err(error) => {
                self.observer.loading_failed();
                return Err(error);
            }
        };
        let loaded = Arc::new(LoadedModel::new(model, location, request.work, Arc::new(plan)));
        state.loaded = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    fn opened_on(&self, device: &Device, compute: WeightDtype) -> Opened {
        // Threads take memory and address space of their own: they count before any plan.
        rayon::current_num_threads();
        let baseline = *self.baseline.get_or_init(process::peak_bytes);
        self.opened.clone().on(device, compute).above(baseline + self.beside)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what the attempt cost to the journal.
    fn record(&self, end: &AttemptEnd<'_>) {
        let (plan, reading) = (end.plan, &end.reading);
        let seconds = end.elapsed.as_secs_f64();
        self.footing.journal().with(|| {
            let event = Event::new(EventKind::Note, end.request.name)
                .device(end.device.to_string())
                .bytes(reading.file_bytes)
                .duration(end.elapsed)
                .context("resident_bytes", plan.resident_bytes)
                .context("streamed_file_bytes", plan.streamed_file_bytes)
                .context("planned_peak_bytes", plan.peak_bytes)
                .context("peak_bytes", process::memory().map_or(0, |memory| memory.peak))
                .context("device_peak_bytes", reading.device_peak_bytes)
                .context("tokens", reading.tokens)
                .context("expert_hits", reading.expert_hits)
                .context("expert_loads", reading.expert_loads)
                .context("limited_by", reading.limit_since(&Reading::default(), seconds));
            device_map::record(event, plan)
        });
    }
}

/// Whether `device` computes right numbers in `dtype`.
pub fn computes_in(device: DeviceName, dtype: WeightDtype) -> Result<bool, ModelError> {
    let dtype = match dtype {
        WeightDtype::F32 => return Ok(true),
        WeightDtype::F16 => place::Dtype::F16,
        WeightDtype::Bf16 => place::Dtype::BF16,
    };
    let device = surefoot::device::open(device)?;
    Ok(place::probe_dtype(&device, dtype) == place::DtypeSupport::Works)
}

/// The dtype of products with weights in this attempt. A device that does not compute in the dtype
/// that was asked for would give wrong numbers without an error, so there it is fp32.
fn compute_on(request: &RunRequest, step: &Step<'_>) -> Result<WeightDtype, ModelError> {
    match request.compute {
        None => Ok(step.compute().into()),
        Some(dtype) if computes_in(step.device_name(), dtype)? => Ok(dtype),
        Some(_) => Ok(WeightDtype::F32),
    }
}
