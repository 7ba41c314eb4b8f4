//! `surefoot merge-adapter`: a model with an adapter in its weights, as a folder of its own.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use surefoot_models::Opened;
use surefoot_models::adapter::{self, Adapter};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Write a model with an adapter merged into its weights
#[derive(Debug, Args)]
#[command(after_help = "\
The weights keep the dtypes of the model's files; everything else of the folder is copied. The
result is an ordinary model folder, for Surefoot and for transformers. Prints the files that were
written. Nothing that exists is overwritten.

Examples:
  surefoot merge-adapter models/qwen2 runs/chats/adapter --out models/qwen2-chats
  surefoot generate models/qwen2-chats \"Hello\"")]
pub(crate) struct MergeAdapter {
    /// The model folder
    model: PathBuf,
    /// The folder of the adapter, in PEFT's format
    #[arg(value_name = "ADAPTER")]
    adapter: PathBuf,
    /// The folder to write; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Document<'a> {
    model: &'a Path,
    adapter: &'a Path,
    files: &'a [PathBuf],
}

impl MergeAdapter {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let opened = Opened::new(&self.model)?;
        let adapter = Adapter::read(&self.adapter, &opened)?;
        let files = adapter::merge(&opened, &adapter, &self.out)?;
        if global.json {
            let (model, adapter) = (&self.model, &self.adapter);
            terminal.json(&Document { model, adapter, files: &files })?;
        } else {
            let lines = files.iter().map(|file| format!("{}\n", file.display()));
            terminal.result(&lines.collect::<String>())?;
        }
        Ok(Exit::Done)
    }
}
