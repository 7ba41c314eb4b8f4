//! The command line: the options that every command takes, and the list of commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use surefoot::journal::{Journal, JournalBuilder};

use crate::commands;
use crate::exit::Failure;
use crate::terminal::Terminal;

/// Trains, runs, serves and verifies models, and recovers when a device fails
#[derive(Debug, Parser)]
#[command(
    name = "surefoot",
    version,
    max_term_width = 100,
    after_help = "\
Exit codes: 0 success; 1 success with a negative answer (findings, DIFFERENT, an unhealthy device);
2 wrong usage or bad input; 3 a device fault from which recovery was not possible or not allowed;
4 undecided; 130 interrupted."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Global {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing but results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log more to stderr; repeat for more detail
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Append events to this file, as JSON Lines (read it with `surefoot journal`)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
}

/// The commands, one module each.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(commands::bench::Bench),
    Check(commands::check::Check),
    Compare(Box<commands::compare::Compare>),
    Devices(commands::devices::Devices),
    Doctor(commands::doctor::Doctor),
    Embed(commands::embed::Embed),
    Explain(commands::explain::Explain),
    Export(commands::export::Export),
    Fingerprint(Box<commands::fingerprint::FingerprintCommand>),
    Forward(commands::forward::Forward),
    Generate(commands::generate::Generate),
    Identify(Box<commands::identify::Identify>),
    Journal(commands::journal::Journal),
    Lsp(commands::lsp::Lsp),
    Merge(commands::merge::Merge),
    MergeAdapter(commands::merge_adapter::MergeAdapter),
    Plan(commands::plan::Plan),
    Predict(commands::predict::Predict),
    Quantize(commands::quantize::Quantize),
    Rerank(commands::rerank::Rerank),
    Run(commands::run::Run),
    Serve(Box<commands::serve::Serve>),
    Train(Box<commands::train::Train>),
    Tune(Box<commands::tune::Tune>),
    Verify(Box<commands::verify::Verify>),
}

impl Global {
    /// The journal that `--journal` names; one that records nothing without it.
    pub(crate) fn open_journal(&self) -> Result<Journal, Failure> {
        Ok(self.journal_builder()?.build())
    }

    /// The same, as a builder that can be given more sinks.
    pub(crate) fn journal_builder(&self) -> Result<JournalBuilder, Failure> {
        let mut builder = Journal::builder();
        if let Some(path) = &self.journal {
            builder = builder.file(path).map_err(|error| {
                Failure::usage(format!("the journal {} can't be written", path.display()))
                    .caused_by(&error)
            })?;
        }
        if self.verbose > 0 {
            builder = builder.tracing();
        }
        Ok(builder)
    }
}

/// Writes a note if events were lost; the work itself still counts.
pub(crate) fn flush(journal: &Journal, terminal: &Terminal) {
    if let Err(error) = journal.flush() {
        terminal.note(&format!("the journal is incomplete: {error}"));
    }
}
