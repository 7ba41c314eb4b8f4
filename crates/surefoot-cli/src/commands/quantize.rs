//! `surefoot quantize`: a model folder in fewer bits, made once.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot_models::quantize::{self, QuantizeOptions};
use surefoot_models::weights::choice::WeightChoice;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::model_folder::ModelFolder;
use crate::terminal::Terminal;

/// Quantise a model's weights to 8 or 4 bits, once, into a new folder
#[derive(Debug, Args)]
#[command(after_help = "\
q8 (Q8_0) takes 8.5 bits a weight, q4 (Q4_0, with a head in Q8_0) 4.5. Matrices are quantised;
token embeddings, norms and biases stay. The new folder has the same tokenizer, configuration and
chat template and can be used wherever a model folder can; it gives the same numbers as
`--weights` does while loading, but loads at once and is streamed from disk in its packed form.
Every family can be quantised. transformers does not read the new folder.

A run that was interrupted goes on when it is started again. The folder appears only when it is
whole.

Examples:
  surefoot quantize models/llama --to q4 --out models/llama-q4
  surefoot quantize models/llama --to q8 --out models/llama-q8 --memory 512MiB")]
pub(crate) struct Quantize {
    /// The model folder (config.json, tokenizer.json and safetensors weights), or a checkpoint of a text model that
    /// `surefoot train` wrote
    model: PathBuf,
    /// The form of the weights
    #[arg(long, value_enum, value_name = "FORM")]
    to: Form,
    /// The folder to write; it must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The most memory that this process may use, for example 512MiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// 8 bits: Q8_0
    Q8,
    /// 4 bits: Q4_0, with a head in Q8_0
    Q4,
}

#[derive(Serialize)]
struct Document<'a> {
    model: &'a PathBuf,
    out: &'a PathBuf,
    weights: &'static str,
    stored_bytes: u64,
    bytes: u64,
    quantized_matrices: usize,
    other_matrices: usize,
    resumed_bytes: u64,
    files: &'a [PathBuf],
}

impl Quantize {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let choice = match self.to {
            Form::Q8 => WeightChoice::Q8,
            Form::Q4 => WeightChoice::Q4,
        };
        let folder = ModelFolder::of(&self.model)?;
        let bar = bar(global.quiet);
        let mut options = QuantizeOptions::new(choice);
        options.memory = self.memory.map(|Bytes(bytes)| bytes);
        let made = quantize::quantize(folder.path(), &self.out, &options, |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let made = made?;
        if made.resumed_bytes > 0 {
            terminal.note(&format!(
                "{} were there from an earlier run that was interrupted",
                Bytes(made.resumed_bytes)
            ));
        }
        if made.left > 0 {
            terminal.note(&format!(
                "{} of {} matrices stay as they are: their rows are no multiples of 32 numbers, or they have no more bits",
                made.left,
                made.left + made.quantized
            ));
        }
        if global.json {
            terminal.json(&Document {
                model: &self.model,
                out: &self.out,
                weights: choice.as_str(),
                stored_bytes: made.stored_bytes,
                bytes: made.bytes,
                quantized_matrices: made.quantized,
                other_matrices: made.left,
                resumed_bytes: made.resumed_bytes,
                files: &made.files,
            })?;
        } else {
            terminal.result(&format!(
                "{}: {} of weights, {} before\n",
                self.out.display(),
                Bytes(made.bytes),
                Bytes(made.stored_bytes)
            ))?;
        }
        Ok(Exit::Done)
    }
}

fn bar(quiet: bool) -> ProgressBar {
    let target = match quiet || !std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style = ProgressStyle::with_template(
        "quantising {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    );
    let bar = ProgressBar::with_draw_target(None, target);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
