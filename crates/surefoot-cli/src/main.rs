//! The program `surefoot`: parses arguments, calls the libraries, prints, and returns an exit code.

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod args;
mod child;
mod commands;
mod exit;
mod fingerprinting;
mod footing_args;
mod interpreter;
mod model_folder;
mod model_progress;
mod model_run;
mod output;
mod speculation_args;
mod terminal;
mod trouble;
mod watch;
mod weights_args;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    terminal::start_logging(&arguments.global);
    let terminal = terminal::Terminal::new(&arguments.global);
    let ended = commands::run(arguments, &terminal).unwrap_or_else(|failure| {
        terminal.failure(&failure);
        failure.exit
    });
    // A drill that never struck has tested nothing: that must not look like success.
    let idle = footing_args::drills_that_never_struck();
    for drill in &idle {
        terminal.warn(&format!("the drill {drill} never struck: nothing was tested"));
    }
    let failed = !idle.is_empty() && ended == exit::Exit::Done;
    if failed { exit::Exit::Usage.into() } else { ended.into() }
}
