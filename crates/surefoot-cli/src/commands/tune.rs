//! `surefoot tune`: compiles and tunes kernels before they are needed, and carries them to other machines.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use surefoot::device::{
    BundleError, LoadedKernels, OpenDevice, keeps_kernels, load_kernels, save_kernels,
};
use surefoot::recover::Policy;
use surefoot_models::tune::{self, Tuned};
use surefoot_train::config::Config;
use surefoot_train::fit::Tried;
use surefoot_train::{data, plan};

use crate::args::{Global, flush};
use crate::commands::train::failure::{bad_config, bad_data};
use crate::commands::train::options::overrides;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::ModelRun;
use crate::terminal::Terminal;
use crate::weights_args::WeightsArgs;

/// Compile and tune GPU kernels in advance, for a model or a training run
#[derive(Debug, Args)]
#[command(after_help = "\
A model is run with prompts and numbers of sequences that double up to the limits given; a training
configuration is run with batches that double up to its own, so that kernels are also there for a
batch that recovery splits. Only the kernels are kept. They are written to disk after each shape, so
an interrupted run continues where it was. In builds with `autotune`, kernels are tuned as well.

--save writes all kernels that this user's programs have compiled and tuned on this machine to a
file, and --load adds such a file to the kernels of another machine. Kernels of another kind of
device or of another version are never used. Builds with `gpu` alone leave kernels to the driver,
which caches them itself.

Examples:
  surefoot tune models/llama --device cuda
  surefoot tune configs/text.yaml --device vulkan --precision fp16
  surefoot tune models/llama --device cuda --save h200.kernels
  surefoot tune --load h200.kernels")]
pub(crate) struct Tune {
    /// The model folder, GGUF file or checkpoint, or the configuration of a training run (.yaml)
    #[arg(required_unless_present_any = ["load", "save"])]
    work: Option<PathBuf>,
    /// Tokens of the longest prompt
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    prompt_tokens: u32,
    /// The most sequences at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    sequences: u32,
    /// Override a key of a training configuration: --set batch_size=64
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// First add the kernels of this file to those of this machine
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// At the end, write the kernels of this machine to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Default, Serialize)]
struct Document {
    device: Option<String>,
    /// Shapes of a model.
    shapes: Vec<Tuned>,
    /// Batches of a training run.
    batches: Vec<Tried>,
    loaded: Option<usize>,
    saved: Option<String>,
}

impl Tune {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        // Before anything is run, which may take long.
        if self.save.is_some() && !keeps_kernels() {
            return Err(bad_bundle(BundleError::NoStore));
        }
        let mut document = Document::default();
        if let Some(from) = &self.load {
            let LoadedKernels { added, known } = load_kernels(from).map_err(bad_bundle)?;
            terminal.note(&format!(
                "{}: {added} kernels added, {known} were known already",
                from.display()
            ));
            document.loaded = Some(added);
        }
        if let Some(to) = &self.save {
            let inputs: Vec<&Path> =
                self.work.iter().chain(&self.load).map(PathBuf::as_path).collect();
            crate::output::spare("--save", to, &inputs)?;
        }
        match &self.work {
            None => {}
            Some(path) if is_configuration(path) => {
                self.tune_training(path, global, terminal, &mut document)?;
            }
            Some(path) => self.tune_model(path, global, terminal, &mut document)?,
        }
        if let Some(to) = &self.save {
            save_kernels(to).map_err(bad_bundle)?;
            terminal.note(&format!("{}: written", to.display()));
            document.saved = Some(to.display().to_string());
        }
        if global.json {
            terminal.json(&document)?;
        }
        Ok(Exit::Done)
    }

    fn tune_model(
        &self,
        path: &Path,
        global: &Global,
        terminal: &Terminal,
        document: &mut Document,
    ) -> Result<(), Failure> {
        if !self.set.is_empty() {
            return Err(Failure::usage("--set is for the configuration of a training run")
                .because(format!("{} is none", path.display())));
        }
        let run = ModelRun::open(&self.footing, self.weights, global, terminal, path, None)?;
        run.hide_progress();
        document.device = Some(named(&*run.runner.footing().device()?, terminal));
        let shapes =
            tune::shapes(&run.runner, self.prompt_tokens as usize, self.sequences as usize);
        let count = shapes.len();
        let mut number = 0;
        document.shapes = tune::tune(&run.runner, &shapes, |tuned| {
            number += 1;
            let sequences = match tuned.shape.sequences {
                1 => "1 sequence".to_owned(),
                several => format!("{several} sequences"),
            };
            terminal.note(&format!(
                "{number} of {count}: {sequences} of {} prompt tokens, {} new tokens each: {:.2} s the first time, then {:.3} s",
                tuned.shape.prompt_tokens,
                tuned.shape.new_tokens,
                tuned.first_seconds,
                tuned.next_seconds
            ));
        })?;
        Ok(())
    }

    fn tune_training(
        &self,
        path: &Path,
        global: &Global,
        terminal: &Terminal,
        document: &mut Document,
    ) -> Result<(), Failure> {
        let config = Config::read(path, &overrides(&self.set)?).map_err(bad_config)?;
        let data = data::open(&config.data, config.seed).map_err(bad_data)?;
        let journal = global.open_journal()?;
        // A batch that does not fit ends the doubling, and is not made to fit.
        let mut builder = self.footing.footing(journal.clone())?.policy(Policy::fail());
        if let Some(bytes) = config.memory {
            builder = builder.memory(bytes);
        }
        let footing = builder.build()?;
        document.device = Some(named(&*footing.device()?, terminal));
        let most = (config.batch_size * config.accumulate).min(data.train.len().max(1));
        let fit = plan::try_batches(&config, &footing, &data, Some(most), |tried| {
            terminal.note(&format!(
                "{} of {most} samples: {:.2} ms a step",
                tried.batch,
                1e3 * tried.seconds
            ));
        });
        flush(&journal, terminal);
        document.batches = fit?.tried;
        Ok(())
    }
}

fn is_configuration(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The name of the device; says so where nothing is compiled.
fn named(device: &OpenDevice, terminal: &Terminal) -> String {
    let name = device.name().to_string();
    if !device.is_asynchronous() {
        terminal.note(&format!("{name} has no kernels to compile: what follows is only timed"));
    }
    name
}

fn bad_bundle(error: BundleError) -> Failure {
    Failure::usage("the kernels could not be carried over").caused_by(&error)
}
