//! `surefoot train`: trains what a configuration describes, and recovers when a device fails.

mod adapter;
mod command;
mod eval;
pub(crate) mod failure;
mod find_batch;
pub(crate) mod options;
mod page;
mod ranks;
mod record;
mod show;
mod sweep;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use surefoot::device::supervisor;
use surefoot::journal::Journal;
use surefoot::recover::Policy;
use surefoot::{Fault, FaultKind, Footing};
use surefoot_report::live::Server;
use surefoot_train::checkpoint::{
    self, CheckpointFolder, Manifest, fresh_folder, has_run, latest_folder,
};
use surefoot_train::config::{self, Config};
use surefoot_train::data::{self, DataSet};
use surefoot_train::estimate;
use surefoot_train::model::Builtin;
use surefoot_train::report::FaultReport;
use surefoot_train::tensorboard::EventFile;
use surefoot_train::{Run, TrainError};

use crate::args::{Global, flush};
use crate::child::supervise_with;
use crate::exit::{Exit, Failure};
use crate::footing_args::one_device;
use crate::terminal::Terminal;
use crate::watch;
use command::ResumeCommand;
use failure::{
    bad_checkpoint, bad_config, bad_data, bad_model, bad_resume, bad_run, contradiction,
};
use options::Options;
use page::Page;
use ranks::MpiJob;
use record::Record;
use show::Show;

/// Set by Ctrl-C: the run ends after the step that is under way.
static STOP: AtomicBool = AtomicBool::new(false);

/// What starts ranks unless another command is named.
const LAUNCHER: &str = "mpirun";

/// What `--resume` without a value means.
const LATEST: &str = "latest";

/// How long a run that should end may take for its step and its checkpoint.
const LONGEST_SAVE: Duration = Duration::from_secs(300);

/// Train a model from a configuration; survive faults, lost devices and being killed
#[derive(Debug, Args)]
#[command(after_help = "\
Progress goes to stderr, the result to stdout. With --json each epoch, fault and recovery is one
line, and the last line is the whole report. Ctrl-C saves a checkpoint and ends with 130.

Examples:
  surefoot train configs/digits.yaml                  the digits that are built in
  surefoot train configs/digits.yaml --epochs 3 --set optimizer.lr=0.01
  surefoot train configs/digits.yaml --resume         go on where the last run stopped
  surefoot train --resume=runs/digits/step-00000345.safetensors --epochs 30
  surefoot train --eval runs/digits/step-00000345.safetensors
  surefoot train configs/digits.yaml --sweep optimizer.lr=0.1,0.01 --sweep batch_size=16,64
                                                      every combination, one table
  surefoot train configs/digits.yaml --tensorboard logs
                                                      curves for tensorboard --logdir logs
  surefoot train configs/digits.yaml --find-batch     the largest and the fastest batch here
  surefoot train configs/digits.yaml --watch          see it live in a browser
  surefoot train configs/digits.yaml --isolate        survive crashes of the driver too
  surefoot train configs/digits.yaml --drill out_of_memory:step=5
                                                      see recovery work
  surefoot train configs/digits.yaml --ranks 4        four processes train one model, over MPI
  mpirun -n 4 surefoot train configs/digits.yaml      the same; also under srun")]
pub(crate) struct Train {
    /// The configuration: data, model and how to train; see configs/
    #[arg(value_name = "CONFIG", required_unless_present_any = ["eval", "resume"])]
    config: Option<PathBuf>,
    /// Go on from a checkpoint, with the configuration that it holds: this one (later ones are
    /// moved aside), or the latest of the last run
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, require_equals = true, default_missing_value = LATEST)]
    resume: Option<PathBuf>,
    /// Let the command line and the configuration override the settings in the checkpoint
    #[arg(long = "override", requires = "resume")]
    overriding: bool,
    /// Test a checkpoint instead of training; it knows its own configuration and classes
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["resume", "find_batch"])]
    eval: Option<PathBuf>,
    /// Find the largest batch that fits and the fastest one, instead of training
    #[arg(long)]
    find_batch: bool,
    /// Show the run live on a page of this machine: on this port, or any that is free
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0", conflicts_with_all = ["eval", "find_batch"])]
    watch: Option<u16>,
    /// Write curves as TensorBoard event files into this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["eval", "find_batch"])]
    tensorboard: Option<PathBuf>,
    /// Train with each of these values of a key, in all combinations if given several times, and
    /// print one table: --sweep optimizer.lr=0.1,0.01
    #[arg(long, value_name = "KEY=VALUES", conflicts_with_all = ["eval", "find_batch", "resume", "watch", "isolate"])]
    sweep: Vec<String>,
    /// Train with so many processes ("ranks"), each with its share of every batch: starts them through
    /// mpirun (builds with the feature mpi)
    #[arg(long, value_name = "N", conflicts_with_all = ["eval", "find_batch", "sweep", "isolate"])]
    ranks: Option<NonZeroUsize>,
    /// The command that starts the ranks, for example 'mpirun --hostfile hosts'; it is given -n N and
    /// this command
    #[arg(long, value_name = "COMMAND", default_value = LAUNCHER, requires = "ranks")]
    launcher: String,
    #[command(flatten)]
    options: Options,
    /// Continue in this folder if there is a checkpoint in it: what --isolate gives its child
    #[arg(long, hide = true, value_name = "DIR")]
    supervised_folder: Option<PathBuf>,
    /// The faults that ended earlier children, as JSON: what --isolate gives its child
    #[arg(long, hide = true, value_name = "JSON")]
    earlier_faults: Option<String>,
}

/// What is to be done: a configuration with the keys that flags set, and where it begins.
struct Job {
    config: Config,
    flags: Vec<(String, String)>,
    data: DataSet,
    checkpoints: CheckpointFolder,
    resume: Option<PathBuf>,
}

impl Train {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let job = MpiJob::join(self.ranks.map(NonZeroUsize::get))?;
        let Some(job) = &job else {
            return match self.ranks.map(NonZeroUsize::get) {
                Some(ranks) if ranks > 1 => ranks::launch::launch(&self, ranks, terminal),
                _ => self.run_as(None, global, terminal),
            };
        };
        if !job.is_first() {
            terminal.silence();
        } else if self.ranks.is_some() {
            ranks::launch::when_input_ends(|| STOP.store(true, Ordering::Relaxed));
        }
        let ended = self.check_for_ranks().and_then(|()| self.run_as(Some(job), global, terminal));
        ended.map_err(|failure| job.abort(failure, terminal))
    }

    fn run_as(
        &self,
        ranks: Option<&MpiJob>,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        if let Some(path) = &self.eval {
            return eval::eval(self, path, global, terminal);
        }
        let flags = self.options.flags()?;
        let config = match &self.config {
            Some(path) => Some(Config::read(path, &flags).map_err(bad_config)?),
            None => None,
        };
        if !self.sweep.is_empty() {
            let mut base = self.wanted_folder(config.as_ref()).into_os_string();
            base.push("-sweep");
            let base = self.options.named_folder().map_or_else(|| base.into(), Path::to_owned);
            let logs = self.tensorboard.as_deref();
            return sweep::sweep(&self.sweep, &base, logs, global, terminal);
        }
        let folder = self.folder(config.as_ref())?;
        if self.options.isolate {
            return self.supervise(folder, global, terminal);
        }
        if self.find_batch {
            let config = config.ok_or_else(|| Failure::usage("--find-batch needs a CONFIG"))?;
            let data = data::open(&config.data, config.seed).map_err(bad_data)?;
            let footing = self.footing(&config, global.open_journal()?)?;
            return find_batch::find_batch(&config, &footing, &data, global, terminal);
        }
        // Only the first rank writes checkpoints.
        let scratch = ranks.map(|_| tempfile::tempdir()).transpose().map_err(|error| {
            Failure::usage("a temporary folder can't be made").caused_by(&error)
        })?;
        let job = match (ranks, &scratch) {
            (Some(ranks), Some(scratch)) => self.job_of_rank(
                ranks,
                scratch.path(),
                || self.job(config.clone(), flags.clone(), &folder, terminal),
                |resume| {
                    self.job_in(scratch.path(), resume, config.clone(), flags.clone(), terminal)
                },
            )?,
            _ => self.job(config, flags, &folder, terminal)?,
        };
        let name = self.name(job.checkpoints.folder());
        let is_first = ranks.is_none_or(MpiJob::is_first);
        let page = self.watch.filter(|_| is_first);
        let live = watch::start(page, format!("Training {name}"), terminal)?;
        // One journal for all ranks: that of the first, which records the faults of the others too.
        let journal = match is_first {
            true => journal(global, live.as_ref())?,
            false => Journal::builder().build(),
        };
        let footing = self.footing(&job.config, journal.clone())?;
        let exit = self.train(job, &name, ranks, &footing, global, terminal);
        flush(&journal, terminal);
        if let Some(live) = live {
            live.end();
        }
        exit
    }

    /// Runs this in a child process, which is told of the faults that ended those before it.
    fn supervise(
        &self,
        folder: PathBuf,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let more = |deaths: &[Fault]| {
            let folder = folder.clone().into_os_string();
            let mut more: Vec<OsString> = vec!["--supervised-folder".into(), folder];
            let reports: Vec<FaultReport> = deaths.iter().map(restarted_after).collect();
            if let (false, Ok(json)) = (reports.is_empty(), serde_json::to_string(&reports)) {
                more.extend(["--earlier-faults".into(), json.into()]);
            }
            more
        };
        supervise_with(terminal, global.open_journal()?, &more, LONGEST_SAVE)
    }

    /// What the run is called: by its configuration, or by its folder.
    fn name(&self, folder: &Path) -> String {
        let name = self.config.as_deref().and_then(Path::file_stem);
        name.or(folder.file_name()).unwrap_or_default().display().to_string()
    }

    /// Resolves configuration, data and checkpoints. A folder for a new run is made only once its
    /// data is known to be usable.
    fn job(
        &self,
        config: Option<Config>,
        flags: Vec<(String, String)>,
        folder: &Path,
        terminal: &Terminal,
    ) -> Result<Job, Failure> {
        if let (Some(config), None, None) = (&config, &self.resume, &self.supervised_folder) {
            let data = opened(config, terminal)?;
            let wanted = self.wanted_folder(Some(config));
            let checkpoints =
                CheckpointFolder::fresh(&wanted, config.checkpoint.keep).map_err(bad_checkpoint)?;
            return Ok(Job { config: config.clone(), flags, data, checkpoints, resume: None });
        }
        let keep = config.as_ref().map_or(2, |config| config.checkpoint.keep);
        let checkpoints = CheckpointFolder::new(folder, keep).map_err(bad_checkpoint)?;
        match (self.checkpoint(&checkpoints, terminal)?, config) {
            (Some(path), _) => self.resumed(path, flags, checkpoints, terminal),
            (None, Some(config)) => {
                let data = opened(&config, terminal)?;
                Ok(Job { config, flags, data, checkpoints, resume: None })
            }
            (None, None) => Err(nothing_to_go_on_from(folder)),
        }
    }

    /// The job of a rank that writes no checkpoints of its own, with a folder that stands for theirs.
    fn job_in(
        &self,
        scratch: &Path,
        resume: Option<PathBuf>,
        config: Option<Config>,
        flags: Vec<(String, String)>,
        terminal: &Terminal,
    ) -> Result<Job, Failure> {
        let checkpoints = CheckpointFolder::new(scratch, 1).map_err(bad_checkpoint)?;
        match (resume, config) {
            (Some(path), _) => self.resumed(path, flags, checkpoints, terminal),
            (None, Some(config)) => {
                let data = opened(&config, terminal)?;
                Ok(Job { config, flags, data, checkpoints, resume: None })
            }
            (None, None) => Err(nothing_to_go_on_from(scratch)),
        }
    }

    /// Goes on from a checkpoint with its configuration; what contradicts that is refused unless
    /// it is meant.
    fn resumed(
        &self,
        path: PathBuf,
        flags: Vec<(String, String)>,
        checkpoints: CheckpointFolder,
        terminal: &Terminal,
    ) -> Result<Job, Failure> {
        let manifest = checkpoint::read_manifest(&path).map_err(bad_checkpoint)?;
        let file = match &self.config {
            Some(file) => Some(std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("{} can't be read", file.display())).caused_by(&error)
            })?),
            None => None,
        };
        let Manifest { config: stored, flags: stored_flags, data: known, .. } = &manifest;
        let resumed =
            config::resume(stored, stored_flags, file.as_deref(), &flags, self.overriding)
                .map_err(bad_resume)?;
        terminal.note(&format!("the configuration is that of {}", path.display()));
        for difference in &resumed.differs_from_file {
            if let Some(value) = &difference.stored {
                terminal.note(&format!("  {} is {value}, as it was then", difference.key));
            }
        }
        for difference in &resumed.changed {
            terminal.note(&format!("  changed: {difference}"));
        }
        let config = resumed.config;
        let learned = data::open(&config.data, config.seed).map_err(bad_data)?;
        let differences = known.differences(&learned.description);
        let data = match differences.is_empty() {
            true => learned,
            false if self.overriding => {
                data::open_as(&config.data, config.seed, known).map_err(bad_data)?
            }
            false => {
                let place = config.data.path.as_deref().unwrap_or(Path::new("the data"));
                let why = format!(
                    "{} is not what the run was trained on: {}",
                    place.display(),
                    differences.join("; ")
                );
                return Err(contradiction(&why));
            }
        };
        tell_notes(&data, terminal);
        Ok(Job { config, flags: resumed.flags, data, checkpoints, resume: Some(path) })
    }

    fn footing(&self, config: &Config, journal: Journal) -> Result<Footing, Failure> {
        one_device(&config.device)?;
        let mut builder = Footing::builder()
            .devices(config.device.clone())
            .precision(config.precision)
            .policy(match self.find_batch {
                // What doesn't fit should fail, not be made to fit.
                true => Policy::fail(),
                false => self.options.policy(config),
            })
            .drill(self.options.drill())
            .journal(journal);
        if let Some(bytes) = config.memory {
            builder = builder.memory(bytes);
        }
        builder.build().map_err(Failure::from)
    }

    /// The file for TensorBoard, if there shall be one.
    fn event_file(&self, is_regression: bool) -> Result<Option<EventFile>, Failure> {
        let Some(folder) = &self.tensorboard else { return Ok(None) };
        EventFile::create(folder, is_regression).map(Some).map_err(|error| {
            Failure::usage(format!("{} can't be written", folder.display())).caused_by(&error)
        })
    }

    /// Where this run's checkpoints go, or where those that it goes on from are.
    fn folder(&self, config: Option<&Config>) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.supervised_folder {
            return Ok(folder.clone());
        }
        let wanted = self.wanted_folder(config);
        Ok(match &self.resume {
            Some(path) if path.as_os_str() == LATEST => match self.options.named_folder() {
                // A folder that was named is the one that is meant.
                Some(named) if has_run(named) => named.to_owned(),
                None if config.is_none() => {
                    return Err(Failure::usage("--resume alone doesn't say which run is meant")
                        .hint("name its configuration, its folder (--folder DIR) or a checkpoint: --resume=FILE"));
                }
                _ => latest_folder(&wanted).unwrap_or(wanted),
            },
            Some(path) => match path.parent() {
                // A bare file name is in the folder that the program was started in.
                Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
                Some(parent) => parent.to_owned(),
                None => wanted,
            },
            None => fresh_folder(&wanted),
        })
    }

    fn wanted_folder(&self, config: Option<&Config>) -> PathBuf {
        let named = self.options.named_folder().map(Path::to_owned);
        named.or_else(|| config?.checkpoint.folder.clone()).unwrap_or_else(|| {
            let name = self.config.as_deref().and_then(Path::file_stem).unwrap_or_default();
            Path::new("runs").join(name)
        })
    }

    /// The checkpoint to go on from, if one is.
    fn checkpoint(
        &self,
        checkpoints: &CheckpointFolder,
        terminal: &Terminal,
    ) -> Result<Option<PathBuf>, Failure> {
        let named = self.resume.clone().filter(|path| path.as_os_str() != LATEST);
        let restarted = self.supervised_folder.is_some() && supervisor::inherited().attempt > 0;
        if named.is_some() && !restarted {
            return Ok(named);
        }
        if self.resume.is_none() && !restarted {
            return Ok(None);
        }
        let (latest, unreadable) = checkpoints.latest();
        for error in unreadable {
            terminal.note(&format!("passed over: {error}"));
        }
        match latest {
            None if restarted => Ok(named),
            None => Err(nothing_to_go_on_from(checkpoints.folder())),
            found => Ok(found),
        }
    }

    fn train(
        &self,
        job: Job,
        name: &str,
        ranks: Option<&MpiJob>,
        footing: &Footing,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let is_first = ranks.is_none_or(MpiJob::is_first);
        let Job { mut config, flags, data, checkpoints, resume } = job;
        if estimate::choose_checkpointing(&mut config, data.form()) {
            terminal.note(
                "gradient checkpointing is on: without it one row would not fit `memory` beside the weights",
            );
        }
        let device = footing.device().map_err(Failure::from)?;
        estimate::check_fits(&config, data.form(), data.train.len(), footing)
            .map_err(Failure::from)?;
        let model = Builtin::new(&config.model, data.form(), config.seed, device.burn())
            .map_err(bad_model)?;
        let folder = checkpoints.folder().to_owned();
        listen_for_ctrl_c()?;
        let mut show = Show::new(terminal, global, footing, data.form().is_regression(), &STOP);
        let mut record = Record::new(footing, config.memory);
        let mut page = Page::new();
        let mut curves = match is_first {
            true => self.event_file(data.form().is_regression())?,
            false => None,
        };
        let command = ResumeCommand::new(&self.options, self.supervised_folder.is_some());
        let earlier = self.earlier_faults.as_deref().map(serde_json::from_str);
        let run = Run {
            footing,
            config: &config,
            flags,
            data: &data,
            checkpoints,
            stop: &STOP,
            earlier_faults: earlier.transpose().unwrap_or_default().unwrap_or_default(),
            ranks: ranks.map(MpiJob::ranks),
        };
        let ended = run.train(model, resume.as_deref(), |event| {
            if !is_first {
                return;
            }
            record.tell(event);
            page.tell(event);
            show.tell(event);
            let written = curves.as_mut().map_or(Ok(()), |curves| curves.tell(event));
            if let Err(error) = written {
                terminal.note(&format!("no more curves for TensorBoard: {error}"));
                curves = None;
            }
        });
        show.end();
        if !is_first {
            return match ended {
                Ok(report) => Ok(ranks::silent_end(report.interrupted)),
                // The first rank says why.
                Err(TrainError::OtherRank { .. } | TrainError::RanksDiffer { .. }) => {
                    Ok(Exit::Fault)
                }
                Err(error) => Err(bad_run(error, &config, &command)),
            };
        }
        let report = ended.map_err(|error| bad_run(error, &config, &command))?;
        let page =
            match page.write(&folder, name.to_owned(), &report, &data.description.classes, &config)
            {
                Ok(path) => Some(path),
                Err(error) => {
                    terminal.note(&format!("the page of the run could not be written: {error}"));
                    None
                }
            };
        show.report(&report, &config, page.as_deref())?;
        adapter::write(&config, &report, &folder, terminal);
        if report.interrupted {
            terminal.note(&format!("go on with: {}", command.from(&report.checkpoint)));
            return Ok(Exit::Interrupted);
        }
        match report.epochs.is_empty() || report.test_loss.is_finite() {
            true => Ok(Exit::Done),
            false => Err(not_finite(report.test_loss)),
        }
    }
}

/// Opens the data of a new run.
fn opened(config: &Config, terminal: &Terminal) -> Result<DataSet, Failure> {
    let data = data::open(&config.data, config.seed).map_err(bad_data)?;
    tell_notes(&data, terminal);
    Ok(data)
}

fn tell_notes(data: &DataSet, terminal: &Terminal) {
    for note in &data.notes {
        terminal.note(note);
    }
}

fn nothing_to_go_on_from(folder: &Path) -> Failure {
    Failure::usage("there is nothing to go on from")
        .because(format!("{} has no checkpoint that can be read", folder.display()))
        .hint("train without --resume, or name a checkpoint: --resume=FILE")
}

/// A model whose test loss is no number is no result.
fn not_finite(loss: f64) -> Failure {
    let fault = Fault::new(FaultKind::Numeric, "evaluate", format!("the test loss is {loss}"))
        .advise("lower `optimizer.lr`, set `clip_norm: 1`, or look for extreme values in the data");
    Failure::from(fault)
}

/// How a fault that ended a child is told in the report of the run.
fn restarted_after(fault: &Fault) -> FaultReport {
    FaultReport {
        // The child knows the step that it goes on from.
        step: 0,
        kind: fault.kind.to_string(),
        device: fault.device.clone().unwrap_or_default(),
        message: fault.root_cause().to_owned(),
        recovery: Some("restart".to_owned()),
        rank: None,
    }
}

fn journal(global: &Global, live: Option<&Server>) -> Result<Journal, Failure> {
    let builder = global.journal_builder()?;
    Ok(match live {
        Some(live) => builder.listener(live.listener()).build(),
        None => builder.build(),
    })
}

/// The first Ctrl-C, or request to end, ends the run with a checkpoint, the second at once.
fn listen_for_ctrl_c() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
    })
    .map_err(|error| Failure::usage("Ctrl-C can't be listened for").caused_by(&error))?;
    if *supervisor::inherited() != supervisor::Inherited::default() {
        std::thread::spawn(|| {
            while !supervisor::asked_to_stop() {
                std::thread::sleep(Duration::from_millis(100));
            }
            STOP.store(true, Ordering::Relaxed);
        });
    }
    Ok(())
}
