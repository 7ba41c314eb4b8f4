//! `surefoot run`: runs a Python script, names what killed it, and starts it again if asked.

mod last_words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use surefoot::device::supervisor::{self, Ended};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::interpreter;
use crate::terminal::Terminal;

/// How long a script that was interrupted may take to end.
const GRACE: Duration = Duration::from_secs(30);

/// Run a Python script, report what killed it, and restart it if asked
///
/// A process that dies by a signal can't explain itself: Metal's assertions abort it, a driver crashes, the
/// kernel's OOM killer ends it. This command names the cause and the line of Python that was running, and
/// with --restarts starts the script again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  surefoot run train.py --epochs 3
  surefoot run --restarts 3 --journal run.jsonl train.py
  surefoot run --python .venv/bin/python -m package.train

A restarted script starts from the beginning: use `foot.save` and `foot.resume` of the Python
package, or checkpoints of your own. A `surefoot.Footing` in it writes to the journal that
--journal names, leaves out a device that took an earlier process down, and starts with smaller
parts if memory ran out.

The exit code is the script's own; 3 if it died more often than it may be started again.")]
pub(crate) struct Run {
    /// Start the script again at most this often in a row when it dies by a signal
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,
    /// The interpreter; by default that of the active virtual environment, else the one beside this program, else python3
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// The script (or -m and a module) with its arguments
    #[arg(
        value_name = "SCRIPT",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    script: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        static INTERRUPTED: AtomicBool = AtomicBool::new(false);
        let python = interpreter::chosen(self.python.as_deref());
        let cannot = |error: &dyn std::error::Error| {
            Failure::usage(format!("{} could not be started", python.display()))
                .caused_by(error)
                .hint("name the interpreter with --python PATH")
        };
        // Ctrl-C reaches the script as well, which ends by itself while this process waits.
        ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))
            .map_err(|error| cannot(&error))?;
        let journal = global.open_journal()?;
        let mut starts = 0;
        let ended = supervisor::supervisor()
            .restarts(self.restarts)
            .silence(Duration::MAX)
            .grace(GRACE)
            .quote(last_words::quote)
            .journal(journal.clone())
            .interrupted_by(&INTERRUPTED)
            .run(
                || {
                    let mut command = Command::new(&python);
                    command.args(&self.script).env("PYTHONFAULTHANDLER", "1");
                    if let Some(path) = &global.journal {
                        // The script may change its folder.
                        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                        command.env("SUREFOOT_JOURNAL", path);
                    }
                    command
                },
                |fault| {
                    starts += 1;
                    let restarts = self.restarts;
                    terminal.note(&format!("note: the script died: {fault}"));
                    terminal.note(&format!("note: it is started again ({starts} of {restarts})"));
                },
            )
            .map_err(|error| cannot(&error))?;
        crate::args::flush(&journal, terminal);
        match ended {
            // The script's own exit code, whatever it is.
            Ended::Exit(code) => std::process::exit(code),
            Ended::Interrupted => Ok(Exit::Interrupted),
            Ended::GaveUp(fault) => {
                let failure = Failure::from(fault);
                Err(match self.restarts {
                    0 => failure.hint("start it again when it dies with --restarts 3"),
                    _ => failure,
                })
            }
        }
    }
}
