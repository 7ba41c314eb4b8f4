//! `surefoot train`: trains what a configuration describes, and keeps at it when things fail.

mod options;
mod page;
mod record;
mod show;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot::device::supervisor;
use surefoot::journal::{Event, Journal};
use surefoot::recover::Policy;
use surefoot::{FaultKind, Footing};
use surefoot_report::live::Server;
use surefoot_train::checkpoint::{
    self, CheckpointError, Shelf, fresh_folder, has_run, latest_folder,
};
use surefoot_train::config::Config;
use surefoot_train::data::{self, DataError, DataSet};
use surefoot_train::evaluate::evaluate;
use surefoot_train::loader::{Loading, Recipe};
use surefoot_train::model::Builtin;
use surefoot_train::state::State;
use surefoot_train::step::StepSettings;
use surefoot_train::{ConfigError, Run, TrainError, Watch, fit, parameters};

use crate::args::{Global, flush};
use crate::child::supervise_with;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use crate::watch;
use options::Options;
use page::Page;
use record::Record;
use show::Show;

/// Set by Ctrl-C: the run ends after the step that is under way.
static STOP: AtomicBool = AtomicBool::new(false);

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
  surefoot train --eval runs/digits/step-00000345.safetensors
  surefoot train configs/digits.yaml --find-batch     the largest and the fastest batch here
  surefoot train configs/digits.yaml --watch          see it live in a browser
  surefoot train configs/digits.yaml --isolate        survive crashes of the driver too
  surefoot train configs/digits.yaml --drill out_of_memory:step=5
                                                      see recovery work")]
pub(crate) struct Train {
    /// The configuration: data, model and how to train; see configs/
    #[arg(value_name = "CONFIG", required_unless_present = "eval")]
    config: Option<PathBuf>,
    /// Go on from a checkpoint: this one (later ones are moved aside), or the latest of the last run
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, require_equals = true, default_missing_value = LATEST)]
    resume: Option<PathBuf>,
    /// Test a checkpoint instead of training; it knows its own configuration
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["resume", "find_batch"])]
    eval: Option<PathBuf>,
    /// Find the largest batch that fits and the fastest one, instead of training
    #[arg(long)]
    find_batch: bool,
    /// Show the run live on a page of this machine: on this port, or any that is free
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0", conflicts_with_all = ["eval", "find_batch"])]
    watch: Option<u16>,
    #[command(flatten)]
    options: Options,
    /// Continue in this folder if there is a checkpoint in it: what --isolate gives its child
    #[arg(long, hide = true, value_name = "DIR")]
    supervised_folder: Option<PathBuf>,
}

/// A configuration with its text and the keys that were overridden.
struct Origin {
    config: Config,
    text: String,
    flags: Vec<(String, String)>,
}

#[derive(Serialize)]
struct Tested<'a> {
    test_accuracy: f64,
    test_loss: f64,
    samples: usize,
    skipped_samples: usize,
    steps: u64,
    device: String,
    checkpoint: &'a Path,
}

impl Train {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if let Some(path) = &self.eval {
            return self.evaluate(path, global, terminal);
        }
        let origin = self.read_config()?;
        let folder = self.folder(&origin.config);
        if self.options.isolate {
            let more: [OsString; 2] = ["--supervised-folder".into(), folder.into()];
            return supervise_with(terminal, global.open_journal()?, &more, LONGEST_SAVE);
        }
        let data = data::open(&origin.config.data, origin.config.seed).map_err(bad_data)?;
        let heard = Watch::default();
        let name = self.config.as_deref().and_then(Path::file_stem).unwrap_or_default();
        let live = watch::start(self.watch, format!("Training {}", name.display()), terminal)?;
        let journal = journal(global, &heard, live.as_ref())?;
        let footing = self.footing(&origin.config, journal.clone())?;
        if self.find_batch {
            return find_batch(&origin.config, &footing, &data, global, terminal);
        }
        let exit = self.train(origin, &folder, &footing, &data, heard, global, terminal);
        flush(&journal, terminal);
        if let Some(live) = live {
            live.end();
        }
        exit
    }

    fn read_config(&self) -> Result<Origin, Failure> {
        let path = self.config.as_deref().unwrap_or(Path::new(""));
        let flags = self.options.flags()?;
        let config = Config::read(path, &flags).map_err(bad_config)?;
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Ok(Origin { config, text, flags })
    }

    fn footing(&self, config: &Config, journal: Journal) -> Result<Footing, Failure> {
        let mut builder = Footing::builder()
            .devices(config.device.clone())
            .precision(config.precision)
            .policy(match self.find_batch {
                // What doesn't fit should fail, not be made to fit.
                true => Policy::fail(),
                false => self.options.policy(config),
            })
            .drill(self.options.drill()?)
            .journal(journal);
        if let Some(bytes) = config.memory {
            builder = builder.memory(bytes);
        }
        builder.build().map_err(Failure::from)
    }

    /// Where this run's checkpoints go, or where those that it goes on from are.
    fn folder(&self, config: &Config) -> PathBuf {
        if let Some(folder) = &self.supervised_folder {
            return folder.clone();
        }
        let wanted = self.wanted_folder(config);
        match &self.resume {
            Some(path) if path.as_os_str() == LATEST => match self.options.named_folder() {
                // A folder that was named is the one that is meant.
                Some(named) if has_run(named) => named.to_owned(),
                _ => latest_folder(&wanted).unwrap_or(wanted),
            },
            Some(path) => match path.parent() {
                // A bare file name is in the folder that the program was started in.
                Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
                Some(parent) => parent.to_owned(),
                None => wanted,
            },
            None => fresh_folder(&wanted),
        }
    }

    fn wanted_folder(&self, config: &Config) -> PathBuf {
        let named = self.options.named_folder().map(Path::to_owned);
        named.or_else(|| config.checkpoint.folder.clone()).unwrap_or_else(|| {
            let name = self.config.as_deref().and_then(Path::file_stem).unwrap_or_default();
            Path::new("runs").join(name)
        })
    }

    /// The checkpoint to go on from, if one is.
    fn checkpoint(&self, shelf: &Shelf, terminal: &Terminal) -> Result<Option<PathBuf>, Failure> {
        let named = self.resume.clone().filter(|path| path.as_os_str() != LATEST);
        let restarted = self.supervised_folder.is_some() && supervisor::inherited().attempt > 0;
        if named.is_some() && !restarted {
            return Ok(named);
        }
        if self.resume.is_none() && !restarted {
            return Ok(None);
        }
        let (latest, unreadable) = shelf.latest();
        for error in unreadable {
            terminal.note(&format!("passed over: {error}"));
        }
        match latest {
            None if restarted => Ok(named),
            None => Err(Failure::usage("there is nothing to go on from")
                .because(format!("{} has no checkpoint", shelf.folder().display()))
                .hint("train without --resume, or name a checkpoint: --resume=FILE")),
            found => Ok(found),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn train(
        &self,
        origin: Origin,
        folder: &Path,
        footing: &Footing,
        data: &DataSet,
        watch: Watch,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let Origin { config, text, flags } = origin;
        let device = footing.device().map_err(Failure::from)?;
        let model = Builtin::new(&config.model, data.form(), config.seed, device.burn());
        let keep = config.checkpoint.keep;
        let shelf = match (&self.resume, &self.supervised_folder) {
            (None, None) => Shelf::fresh(&self.wanted_folder(&config), keep),
            _ => Shelf::new(folder, keep),
        };
        let shelf = shelf.map_err(bad_checkpoint)?;
        let folder = shelf.folder().to_owned();
        let resume = self.checkpoint(&shelf, terminal)?;
        listen_for_ctrl_c()?;
        let mut show = Show::new(terminal, global, footing, &STOP);
        let mut record = Record::new(footing, config.memory);
        let mut page = Page::new();
        let run = Run {
            footing,
            config: &config,
            origin: (text, flags),
            data,
            shelf,
            watch,
            stop: &STOP,
        };
        let ended = run.train(model, resume.as_deref(), |news| {
            record.tell(news);
            page.tell(news);
            show.tell(news);
        });
        show.end();
        let report = ended.map_err(|error| bad_run(error, self.config.as_deref()))?;
        let name = self.config.as_deref().and_then(Path::file_stem).unwrap_or_default();
        let page = match page.write(&folder, name.display().to_string(), &report) {
            Ok(path) => Some(path),
            Err(error) => {
                terminal.note(&format!("the page of the run could not be written: {error}"));
                None
            }
        };
        show.report(&report, &config, page.as_deref())?;
        Ok(if report.interrupted { Exit::Interrupted } else { Exit::Done })
    }

    fn evaluate(&self, path: &Path, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let story = checkpoint::read_story(path).map_err(bad_checkpoint)?;
        let mut flags = story.flags.clone();
        flags.extend(self.options.flags()?);
        let config = Config::parse(&story.config, &flags).map_err(bad_config)?;
        let data = data::open(&config.data, config.seed).map_err(bad_data)?;
        let journal = journal(global, &Watch::default(), None)?;
        let footing = self.footing(&config, journal.clone())?;
        let device = footing.device().map_err(Failure::from)?;
        let model = Builtin::new(&config.model, data.form(), config.seed, device.burn());
        let shapes = parameters::shapes(&model);
        let (held, story) = checkpoint::read(path, &shapes).map_err(bad_checkpoint)?;
        let state = State::from_held(held, model, device.name(), device.burn());
        let recipe = Recipe {
            source: data.test.clone(),
            transform: data.transform.clone(),
            on_bad_sample: config.data.on_bad_sample,
            seed: None,
        };
        let unified = device.info.unified_memory;
        let loading = Loading::choose(config.loading, &recipe, config.batch_size, unified);
        let result = evaluate(&footing, &state, &recipe, config.batch_size, loading)
            .map_err(Failure::from)?;
        flush(&journal, terminal);
        for what in &result.skipped {
            terminal.note(&format!("left out: {what}"));
        }
        let tested = Tested {
            test_accuracy: result.accuracy,
            test_loss: result.loss,
            samples: data.test.len() - result.skipped.len(),
            skipped_samples: result.skipped.len(),
            steps: story.step,
            device: device.name().to_string(),
            checkpoint: path,
        };
        if global.json {
            terminal.json(&tested)?;
        } else {
            terminal.result(&format!(
                "test accuracy {:.2} %, test loss {:.4}: {} samples, after {} steps, on {}\n",
                100.0 * tested.test_accuracy,
                tested.test_loss,
                tested.samples,
                tested.steps,
                tested.device
            ))?;
        }
        Ok(Exit::Done)
    }
}

/// The most samples that `--find-batch` tries at once.
const MOST: usize = 1 << 16;

fn find_batch(
    config: &Config,
    footing: &Footing,
    data: &DataSet,
    global: &Global,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let device = footing.device().map_err(Failure::from)?;
    let model = Builtin::new(&config.model, data.form(), config.seed, device.burn());
    let trials = fit::Trials {
        footing,
        state: &State::new(model, device.name()),
        recipe: &Recipe {
            source: data.train.clone(),
            transform: data.transform.clone(),
            on_bad_sample: config.data.on_bad_sample,
            seed: Some(config.seed),
        },
        settings: StepSettings {
            rule: config.optimizer.rule,
            clip_norm: config.clip_norm,
            micro_batch: MOST,
        },
        memory: config.memory,
        most: MOST,
        timed: true,
    };
    let fit = trials.run(|tried| {
        terminal.note(&format!(
            "{:>6} samples  {:>10.2} ms  {:>10.0} samples/s  {:>10} at most",
            tried.batch,
            1e3 * tried.seconds,
            tried.samples_per_second,
            Bytes(tried.memory)
        ));
    });
    let fit = fit.map_err(Failure::from)?;
    if global.json {
        terminal.json(&fit)?;
    } else {
        terminal.result(&format!(
            "largest batch   {}: {}\nfastest batch   {}\n",
            fit.largest, fit.limit, fit.fastest
        ))?;
    }
    Ok(Exit::Done)
}

fn journal(global: &Global, watch: &Watch, live: Option<&Server>) -> Result<Journal, Failure> {
    let (hear, show) = (watch.listener(), live.map(Server::listener));
    let listener = move |event: &Event| {
        hear(event);
        if let Some(show) = &show {
            show(event);
        }
    };
    Ok(global.journal_builder()?.listener(listener).build())
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

fn bad_config(error: ConfigError) -> Failure {
    let failure = Failure::usage("the configuration is wrong").because(error.to_string());
    match error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn bad_data(error: DataError) -> Failure {
    let usual = "`data.path` says where it is; --set data.path=PATH gives another place";
    let hint = error.hint.clone().unwrap_or_else(|| usual.to_owned());
    Failure::usage("the data can't be used").because(error.to_string()).hint(hint)
}

fn bad_checkpoint(error: CheckpointError) -> Failure {
    match error {
        CheckpointError::InUse { .. } => Failure::usage("the folder can't be used")
            .because(error.to_string())
            .hint("wait until it ends, stop it, or train elsewhere: --folder DIR"),
        _ => Failure::usage("the checkpoint can't be used").because(error.to_string()),
    }
}

fn bad_run(error: TrainError, config: Option<&Path>) -> Failure {
    match error {
        TrainError::Fault { fault, step, saved } => {
            let stop = format!("the run stopped after {step} steps");
            let promise = match fault.kind {
                // The weights that the checkpoint has may be what went wrong.
                FaultKind::Numeric => "the last checkpoint, to go on with a lower learning rate",
                _ => "nothing is lost",
            };
            let mut failure = Failure::from(*fault);
            failure.because.insert(0, stop);
            match (saved, config) {
                (Some(saved), Some(config)) => failure.hint(format!(
                    "{promise}: surefoot train {} --resume={}",
                    config.display(),
                    saved.display()
                )),
                _ => failure,
            }
        }
        TrainError::Checkpoint(error) => bad_checkpoint(error),
        other => Failure::usage("the run can't go on from there")
            .because(other.to_string())
            .hint("train with the same data, seed and batch size, or without --resume"),
    }
}
