//! `surefoot train`: trains what a configuration describes, and recovers when a device fails.

mod adapter;
mod command;
mod eval;
pub(crate) mod failure;
mod find_batch;
mod job;
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
use surefoot_train::config::Config;
use surefoot_train::data;
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
use failure::{bad_config, bad_data, bad_model, bad_run};
use job::Job;
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

/// Train a model; recover from faults and lost devices, and resume after being killed
#[derive(Debug, Args)]
#[command(after_help = "\
Progress goes to stderr, the result to stdout. With --json each epoch, fault and recovery is one
line, and the last line is the whole report. Ctrl-C saves a checkpoint and exits with 130.

Examples:
  surefoot train configs/digits.yaml                  the digits that are built in
  surefoot train configs/digits.yaml --epochs 3 --set optimizer.lr=0.01
  surefoot train configs/digits.yaml --resume         continue where the last run stopped
  surefoot train --resume=runs/digits/step-00000345.safetensors --epochs 30
  surefoot train --eval runs/digits/step-00000345.safetensors
  surefoot train configs/digits.yaml --sweep optimizer.lr=0.1,0.01 --sweep batch_size=16,64
                                                      every combination, one table
  surefoot train configs/digits.yaml --tensorboard logs
                                                      curves for tensorboard --logdir logs
  surefoot train configs/digits.yaml --find-batch     the largest and the fastest batch here
  surefoot train configs/digits.yaml --watch          show the run live in a browser
  surefoot train configs/digits.yaml --isolate        survive crashes of the driver too
  surefoot train configs/digits.yaml --drill out_of_memory:step=5
                                                      inject a fault and see the run recover
  surefoot train configs/digits.yaml --ranks 4        four processes train one model, over MPI
  mpirun -n 4 surefoot train configs/digits.yaml      the same; also under srun")]
pub(crate) struct Train {
    /// The configuration: data, model and how to train; see configs/
    #[arg(value_name = "CONFIG", required_unless_present_any = ["eval", "resume"])]
    config: Option<PathBuf>,
    /// Continue from this checkpoint (later ones are moved aside), or without a value from the latest one
    /// of the last run, with the configuration that the checkpoint holds
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, require_equals = true, default_missing_value = LATEST)]
    resume: Option<PathBuf>,
    /// Let the command line and the configuration override the settings in the checkpoint
    #[arg(long = "override", requires = "resume")]
    overriding: bool,
    /// Evaluate a checkpoint on the test data instead of training; it holds its own configuration
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["resume", "find_batch"])]
    eval: Option<PathBuf>,
    /// Find the largest batch that fits and the fastest one, instead of training
    #[arg(long)]
    find_batch: bool,
    /// Show the run live on a web page of this machine, on this port or without a value on any free one
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0", conflicts_with_all = ["eval", "find_batch"])]
    watch: Option<u16>,
    /// Write curves as TensorBoard event files into this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["eval", "find_batch"])]
    tensorboard: Option<PathBuf>,
    /// Train with each of these values of a key, in all combinations if given several times, and
    /// print one table: --sweep optimizer.lr=0.1,0.01
    #[arg(long, value_name = "KEY=VALUES", conflicts_with_all = ["eval", "find_batch", "resume", "watch", "isolate"])]
    sweep: Vec<String>,
    /// Train with this many processes ("ranks"), each with its share of every batch; starts them with
    /// mpirun (builds with the feature mpi)
    #[arg(long, value_name = "N", conflicts_with_all = ["eval", "find_batch", "sweep", "isolate"])]
    ranks: Option<NonZeroUsize>,
    /// The command that starts the ranks, for example 'mpirun --hostfile hosts'; -n N and this command
    /// are appended to it
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
            terminal.note(&format!("continue with: {}", command.from(&report.checkpoint)));
            return Ok(Exit::Interrupted);
        }
        match report.epochs.is_empty() || report.test_loss.is_finite() {
            true => Ok(Exit::Done),
            false => Err(not_finite(report.test_loss)),
        }
    }
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
