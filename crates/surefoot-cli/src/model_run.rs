//! What the commands that run a model share: opening, planning, the guard around the work.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surefoot::device::memory::Bytes;
use surefoot::journal::{Event, EventKind, Journal};
use surefoot::place::Precision;
use surefoot::recover::{Confirm, Rung, Step};
use surefoot::{BoxError, Burn, Fault, Footing};
use surefoot_models::folder::header::Dtype;
use surefoot_models::stream::meter::{Meter, Reading};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Plan;
use surefoot_models::stream::process;
use surefoot_models::{Model, ModelError, Opened};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_progress::{Journey, Progress};
use crate::terminal::Terminal;

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Device { .. } => Self::new(Exit::Fault, error.to_string()),
            ModelError::Fault(fault) => (*fault).into(),
            ModelError::Memory { needed, .. } => {
                Self::usage("the work doesn't fit in the memory that is allowed")
                    .because(error.to_string())
                    .hint(format!("--memory {}MiB, or fewer tokens", needed.div_ceil(1 << 20)))
                    .hint("`surefoot plan MODEL` shows what the memory is for")
            }
            _ => Self::usage(error.to_string()),
        }
    }
}

/// One run of a model: where it stands, what it may use, who is told.
pub(crate) struct ModelRun<'a> {
    args: &'a FootingArgs,
    terminal: &'a Terminal,
    pub(crate) footing: Arc<Footing>,
    journal: Journal,
    show_progress: bool,
    on_cpu: RefCell<Vec<String>>,
    load_seconds: Cell<f64>,
    device_peak_bytes: Cell<u64>,
}

/// Faults that are remembered, to say why a block ran on the CPU.
const RECENT_EVENTS: usize = 256;

/// Another way of running than the options say, to learn what it changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// Stream all weights, whatever would fit.
    pub(crate) streamed: bool,
    /// The dtype of products with weights.
    pub(crate) compute: Option<Dtype>,
}

/// Under `ulimit -v`, starts this very command line anew with an allocator that doesn't reserve
/// address space for every thread: else little of it would be left for the model.
pub(crate) fn with_one_arena() -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt as _;
        const ARENAS: &str = "MALLOC_ARENA_MAX";
        if std::env::var_os(ARENAS).is_none() && process::is_address_space_limited() {
            let anew = crate::child::own_command(std::env::args_os().skip(1))
                .map(|mut command| command.env(ARENAS, "1").exec());
            let (Ok(error) | Err(error)) = anew;
            return Err(Failure::usage("the program could not be started anew").caused_by(&error));
        }
    }
    Ok(())
}

/// Models are run in fp32 unless another precision is asked for by name: then the same tokens
/// come out on every device.
pub(crate) fn precision(asked: Precision) -> Precision {
    if asked == Precision::Auto { Precision::Fp32 } else { asked }
}

/// What the guard sees of a result: numbers that are on the host already.
struct Done<T>(T);

impl<T> Confirm<Burn> for Done<T> {
    fn confirm(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

impl<'a> ModelRun<'a> {
    pub(crate) fn new(
        args: &'a FootingArgs,
        global: &Global,
        terminal: &'a Terminal,
    ) -> Result<Self, Failure> {
        with_one_arena()?;
        let journal = global.journal_builder()?.ring(RECENT_EVENTS).build();
        let footing =
            args.footing(journal.clone())?.precision(precision(args.precision)).build()?.into();
        Ok(Self {
            args,
            terminal,
            footing,
            journal,
            show_progress: !global.quiet,
            on_cpu: RefCell::default(),
            load_seconds: Cell::default(),
            device_peak_bytes: Cell::default(),
        })
    }

    /// Without a bar: the terminal is needed for the result as it comes.
    pub(crate) fn without_progress(mut self) -> Self {
        self.show_progress = false;
        self
    }

    /// Blocks, and the head, that ran on the CPU because the device couldn't run them.
    pub(crate) fn on_cpu(&self) -> Vec<String> {
        self.on_cpu.borrow().clone()
    }

    /// How long it took to open the model and to load what stays.
    pub(crate) fn load_seconds(&self) -> f64 {
        self.load_seconds.get()
    }

    /// The most that a GPU's pool was seen to hold, where there is a budget. A GPU that shares the
    /// processor's memory has it in the process's own figure already.
    pub(crate) fn device_peak_bytes(&self) -> Option<u64> {
        Some(self.device_peak_bytes.get()).filter(|bytes| *bytes > 0)
    }

    /// The budget of the process.
    pub(crate) fn budget(&self) -> Option<u64> {
        self.args.memory.map(|Bytes(bytes)| bytes)
    }

    /// The model with its plans made for the device that work starts on.
    pub(crate) fn placed(&self, opened: Opened) -> Result<Opened, Failure> {
        let compute = self.footing.precision()?.compute;
        Ok(opened.on(self.footing.device()?.burn(), compute.into()))
    }

    /// Opens `folder`, loads it by a plan for `work` and runs `task` with it, guarded: a fault
    /// is answered by streaming or by the next device. `task` must be repeatable.
    pub(crate) fn run<T>(
        &self,
        name: &'static str,
        folder: &Path,
        work: &Work,
        passes: usize,
        task: impl Fn(&Model, &Plan) -> Result<T, ModelError>,
    ) -> Result<T, Failure> {
        self.run_as(Way::default(), name, folder, work, passes, task)
    }

    /// [`Self::run`], in another way than the options say.
    pub(crate) fn run_as<T>(
        &self,
        way: Way,
        name: &'static str,
        folder: &Path,
        work: &Work,
        passes: usize,
        task: impl Fn(&Model, &Plan) -> Result<T, ModelError>,
    ) -> Result<T, Failure> {
        let rungs = self.footing.task(name).can(Rung::Stream).can(Rung::Precision);
        let guarded = rungs.run(|step: &Step<'_>| {
            match self.attempt(way, name, folder, work, passes, step, &task) {
                Err(ModelError::Fault(fault)) => Err(fault as BoxError),
                Err(ModelError::Device { at, message }) => {
                    Err::<_, BoxError>(format!("{at}: {message}").into())
                }
                // The caller's mistake is no fault of the device.
                other => Ok(Done(other)),
            }
        });
        crate::args::flush(&self.journal, self.terminal);
        Ok(guarded?.value.0?)
    }

    #[expect(clippy::too_many_arguments, reason = "all that a try depends on")]
    fn attempt<T>(
        &self,
        way: Way,
        name: &'static str,
        folder: &Path,
        work: &Work,
        passes: usize,
        step: &Step<'_>,
        task: &impl Fn(&Model, &Plan) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let begun = Instant::now();
        let compute = way.compute.unwrap_or_else(|| step.compute().into());
        let opened = Opened::new(folder)?.on(step.device(), compute);
        let plan = if step.is_streaming() || way.streamed {
            opened.plan_with_share(work, 0.0)
        } else {
            opened.plan_here(work, self.budget()).checked()?
        };
        if step.attempt() > 1 {
            self.terminal.note(&format!(
                "try {}: {name} on {}, {} of weights resident",
                step.attempt(),
                step.device_name(),
                Bytes(plan.resident_bytes)
            ));
        }
        let meter: Arc<Meter> = Arc::default();
        let journey = Journey {
            load_bytes: plan.resident_bytes,
            blocks: opened.blueprint.blocks.len() as u64,
            passes: passes as u64,
        };
        let progress = self.show_progress.then(|| Progress::start(Arc::clone(&meter), journey));
        let careful = step.attempt() > 1 || self.args.has_drill();
        let model = opened.load(&plan, step.device(), Arc::clone(&meter))?.guarded(
            Arc::clone(&self.footing),
            step.device_name(),
            careful,
        );
        self.load_seconds.set(begun.elapsed().as_secs_f64());
        let result = task(&model, &plan);
        drop(progress);
        self.device_peak_bytes.set(meter.read().device_peak_bytes);
        self.tell_moved(model.on_cpu(), step);
        self.tell(name, &plan, &meter.read(), begun.elapsed(), step);
        result
    }

    /// Says which parts ran on the CPU and why.
    fn tell_moved(&self, parts: Vec<String>, step: &Step<'_>) {
        let events = if parts.is_empty() { Vec::new() } else { self.journal.recent() };
        for part in &parts {
            let fault = events.iter().rev().filter(|event| event.op == *part);
            let fault = fault.filter_map(|event| event.fault.as_ref()).next();
            let why = fault.map_or_else(String::new, |fault| format!(": {}", fault.kind));
            self.terminal.note(&format!(
                "{part} ran on the CPU, because {} could not run it{why}",
                step.device_name()
            ));
        }
        *self.on_cpu.borrow_mut() = parts;
    }

    fn tell(
        &self,
        name: &'static str,
        plan: &Plan,
        read: &Reading,
        time: Duration,
        step: &Step<'_>,
    ) {
        self.journal.with(|| {
            Event::new(EventKind::Note, name)
                .device(step.device_name().to_string())
                .bytes(read.file_bytes)
                .duration(time)
                .context("resident_bytes", plan.resident_bytes)
                .context("streamed_file_bytes", plan.streamed_file_bytes)
                .context("planned_peak_bytes", plan.peak_bytes)
                .context("peak_bytes", process::memory().map_or(0, |memory| memory.peak))
                .context("device_peak_bytes", read.device_peak_bytes)
                .context("tokens", read.tokens)
                .context("limited_by", read.limit_since(&Reading::default(), time.as_secs_f64()))
        });
    }
}
