//! One file per command. Each takes its own arguments, the shared ones and the terminal, and
//! returns how the program ends.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fingerprint;
pub(crate) mod forward;
pub(crate) mod generate;
pub(crate) mod identify;
pub(crate) mod journal;
pub(crate) mod lsp;
pub(crate) mod merge;
pub(crate) mod merge_adapter;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod quantize;
pub(crate) mod rerank;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod train;
pub(crate) mod tune;
pub(crate) mod verify;

use crate::args::{Arguments, Command};
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

pub(crate) fn run(arguments: Arguments, terminal: &Terminal) -> Result<Exit, Failure> {
    let global = &arguments.global;
    match arguments.command {
        Command::Bench(command) => command.run(global, terminal),
        Command::Check(command) => command.run(global, terminal),
        Command::Compare(command) => command.run(global, terminal),
        Command::Devices(command) => command.run(global, terminal),
        Command::Doctor(command) => command.run(global, terminal),
        Command::Embed(command) => command.run(global, terminal),
        Command::Explain(command) => command.run(global, terminal),
        Command::Export(command) => command.run(global, terminal),
        Command::Fingerprint(command) => command.run(global, terminal),
        Command::Forward(command) => command.run(global, terminal),
        Command::Generate(command) => command.run(global, terminal),
        Command::Identify(command) => command.run(global, terminal),
        Command::Journal(command) => command.run(global, terminal),
        Command::Lsp(command) => command.run(),
        Command::Merge(command) => command.run(global, terminal),
        Command::MergeAdapter(command) => command.run(global, terminal),
        Command::Plan(command) => command.run(global, terminal),
        Command::Predict(command) => command.run(global, terminal),
        Command::Quantize(command) => command.run(global, terminal),
        Command::Rerank(command) => command.run(global, terminal),
        Command::Run(command) => command.run(global, terminal),
        Command::Serve(command) => command.run(global, terminal),
        Command::Train(command) => command.run(global, terminal),
        Command::Tune(command) => command.run(global, terminal),
        Command::Verify(command) => command.run(global, terminal),
    }
}
