//! The program `surefoot`: arguments in, an exit code out.

mod args;
mod child;
mod commands;
mod exit;
mod fingerprinting;
mod footing_args;
mod model_progress;
mod model_run;
mod output;
mod terminal;
mod trouble;
mod watch;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    terminal::start_logging(&arguments.global);
    let terminal = terminal::Terminal::new(&arguments.global);
    match commands::run(arguments, &terminal) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            terminal.failure(&failure);
            failure.exit.into()
        }
    }
}
