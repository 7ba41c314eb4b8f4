//! What the commands that run a model share: the footing and the runner that the options describe,
//! and printing what happened on the way.

use std::path::Path;
use std::sync::Arc;

use surefoot::device::DeviceName;
use surefoot::journal::Journal;
use surefoot::place::Precision;
use surefoot_models::generate::speculate::{self, SpeculationMode, Speculator};
use surefoot_models::runner::{Attempt, RunOutcome, RunRequest, Runner};
use surefoot_models::stream::process;
use surefoot_models::{ModelError, Opened};

use crate::args::Global;
use crate::exit::Failure;
use crate::footing_args::FootingArgs;
use crate::model_folder::ModelFolder;
use crate::model_progress::ProgressObserver;
use crate::terminal::Terminal;
use crate::weights_args::WeightsArgs;

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        match error {
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

/// A runner as the options describe it, whose notes go to the terminal.
pub(crate) struct ModelRun<'a> {
    pub(crate) runner: Runner,
    progress: Arc<ProgressObserver>,
    journal: Journal,
    terminal: &'a Terminal,
    /// Dropped after the runner, which reads from it.
    folder: ModelFolder,
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

impl<'a> ModelRun<'a> {
    /// Opens the model that was named, a folder or a checkpoint, with an adapter if one was named. Comes before anything is read from stdin: under `ulimit -v` the
    /// program starts itself anew here.
    pub(crate) fn open(
        args: &FootingArgs,
        weights: WeightsArgs,
        global: &Global,
        terminal: &'a Terminal,
        named: &Path,
        adapter: Option<&Path>,
    ) -> Result<Self, Failure> {
        with_one_arena()?;
        let folder = ModelFolder::adapted(named, adapter)?;
        // A folder that is no model is told before a device is looked for.
        Opened::new(folder.path())?;
        let journal = global.open_journal()?;
        let footing =
            args.model_footing(journal.clone())?.precision(precision(args.precision)).build()?;
        let progress = Arc::new(ProgressObserver::new(global.quiet));
        let mut runner =
            Runner::open(Arc::new(footing), folder.path())?.observer(Arc::clone(&progress) as _);
        if let Some(adapter) = folder.adapter() {
            runner = runner.adapted(adapter)?;
        }
        runner = runner.weights(weights.weights);
        Ok(Self { runner, progress, journal, terminal, folder })
    }

    /// What proposes tokens for `sequences` of up to `length` tokens at once, with memory set aside for it.
    pub(crate) fn speculator(
        &mut self,
        mode: SpeculationMode,
        draft: Option<&Path>,
        sequences: usize,
        length: usize,
    ) -> Result<Speculator, Failure> {
        if mode == SpeculationMode::Off {
            return Ok(Speculator::default());
        }
        let device = self.runner.footing().device()?.name();
        if device != DeviceName::CPU || self.folder.adapter().is_some() {
            let why = match device == DeviceName::CPU {
                true => "with an adapter".to_owned(),
                false => format!("on {device}"),
            };
            self.terminal
                .note(&format!("no tokens are proposed {why}: there they could change the text"));
        }
        let (speculator, bytes) = speculate::open(&self.runner, mode, draft, sequences, length)?;
        if let Some(unused) = speculator.unused_draft() {
            self.terminal.note(&unused.to_string());
        }
        self.runner.set_beside(bytes);
        Ok(speculator)
    }

    /// The folder that the model was opened in.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Shows no bar: the terminal is needed for the result as it comes.
    pub(crate) fn hide_progress(&self) {
        self.progress.hide();
    }

    /// Runs `task`, guarded.
    pub(crate) fn run<T>(
        &self,
        request: &RunRequest,
        task: impl Fn(&Attempt<'_>) -> Result<T, ModelError>,
    ) -> Result<RunOutcome<T>, Failure> {
        self.finished(self.runner.run(request, task))
    }

    /// Flushes the journal after a run, and says which parts ran on the CPU and why.
    pub(crate) fn finished<T>(
        &self,
        outcome: Result<RunOutcome<T>, ModelError>,
    ) -> Result<RunOutcome<T>, Failure> {
        crate::args::flush(&self.journal, self.terminal);
        let outcome = outcome?;
        if !outcome.plan.device_map.is_empty() {
            self.terminal.note(&format!("ran {}", outcome.plan.told_devices()));
        }
        for part in &outcome.on_cpu {
            let why = part.reason.map_or_else(String::new, |kind| format!(": {kind}"));
            self.terminal.note(&format!(
                "{} ran on the CPU, because {} could not run it{why}",
                part.name, outcome.device
            ));
        }
        Ok(outcome)
    }
}

/// The names of the parts that ran on the CPU.
pub(crate) fn on_cpu<T>(outcome: &RunOutcome<T>) -> Vec<String> {
    outcome.on_cpu.iter().map(|part| part.name.clone()).collect()
}
