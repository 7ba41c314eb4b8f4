//! `surefoot export`: a checkpoint as a folder that other programs read.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use surefoot_train::export::{self, ExportError, ExportFormat};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Convert a checkpoint of `surefoot train` to a folder for transformers, ONNX Runtime or PEFT
#[derive(Debug, Args)]
#[command(after_help = "\
hf    for a text model (gpt): config.json, model.safetensors and tokenizer.json, as transformers
      and `surefoot generate`, `serve`, `compare` and `embed` read them.
onnx  for mlp and cnn: model.onnx, which normalises its inputs itself and has the names of classes
      and columns in its metadata. Inputs are the numbers of a table, or pixels from 0 to 1.
peft  for a published model that was fine-tuned with LoRA: adapter_config.json and
      adapter_model.safetensors, as PEFT and `--adapter` read them.

Prints the files that were written. Nothing that exists is overwritten.

Examples:
  surefoot export runs/text/step-00001000.safetensors --to hf --out my-gpt
  surefoot export runs/images/step-00000400.safetensors --to onnx --out my-classifier")]
pub(crate) struct Export {
    /// The checkpoint: a .safetensors file of `surefoot train`
    checkpoint: PathBuf,
    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// The folder to write; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A Hugging Face folder
    Hf,
    /// An ONNX file
    Onnx,
    /// An adapter
    Peft,
}

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: &'a PathBuf,
    files: &'a [PathBuf],
}

impl Export {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let format = match self.to {
            Format::Hf => ExportFormat::HuggingFace,
            Format::Onnx => ExportFormat::Onnx,
            Format::Peft => ExportFormat::Peft,
        };
        let files = export::export(&self.checkpoint, format, &self.out).map_err(failed)?;
        if global.json {
            terminal.json(&Document { checkpoint: &self.checkpoint, files: &files })?;
        } else {
            let lines = files.iter().map(|file| format!("{}\n", file.display()));
            terminal.result(&lines.collect::<String>())?;
        }
        Ok(Exit::Done)
    }
}

/// What an export that could not be made is told as.
pub(crate) fn failed(error: ExportError) -> Failure {
    let hint = match &error {
        ExportError::Unsupported { instead: ExportFormat::HuggingFace, .. } => Some("--to hf"),
        ExportError::Unsupported { instead: ExportFormat::Peft, .. } => Some("--to peft"),
        ExportError::Unsupported { .. } => Some("--to onnx"),
        ExportError::Exists { .. } => Some("name a folder that does not exist"),
        _ => None,
    };
    let failure = Failure::usage("the checkpoint can't be exported").caused_by(&error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
