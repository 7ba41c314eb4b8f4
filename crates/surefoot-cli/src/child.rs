//! Runs this program as a child process: for probes, and for `--isolate`.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use surefoot::Fault;
use surefoot::device::supervisor::{self, Ended, Supervisor};
use surefoot::journal::Journal;

use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Set for children of `--isolate`.
const ISOLATED: &str = "SUREFOOT_ISOLATED";

/// Set by Ctrl-C or SIGTERM in a process that supervises another one.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether this process, which supervises another one, was asked to stop.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Whether this process is the child of one that was given `--isolate`.
pub(crate) fn is_isolated() -> bool {
    std::env::var_os(ISOLATED).is_some()
}

/// A command that runs this program with other arguments.
pub(crate) fn own_command(
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    Ok(command)
}

/// Runs this command line without `--isolate` in a child process, and restarts it if the child dies.
/// When this process is asked to stop, the child is stopped at once.
pub(crate) fn supervise(terminal: &Terminal, journal: Journal) -> Result<Exit, Failure> {
    supervise_by(supervisor(Duration::ZERO), terminal, journal, |_, _| {})
}

/// A supervisor that starts a child again that has lost its device, and lets one end by itself within `grace`.
pub(crate) fn supervisor<'a>(grace: Duration) -> Supervisor<'a> {
    supervisor::supervisor().grace(grace).restart_on_exit(Exit::DeviceLost as i32)
}

/// [`supervise`], with more arguments for the child, made from the faults that ended earlier ones, and
/// time for it to stop by itself: it has to poll
/// [`supervisor::asked_to_stop`].
pub(crate) fn supervise_with(
    terminal: &Terminal,
    journal: Journal,
    more: &dyn Fn(&[Fault]) -> Vec<OsString>,
    grace: Duration,
) -> Result<Exit, Failure> {
    let supervisor = supervisor::supervisor().grace(grace);
    supervise_by(supervisor, terminal, journal, |command, deaths| {
        command.args(more(deaths));
    })
}

/// [`supervise`], by a supervisor with settings of its own and a child that `prepare` prepares, which
/// is given what the children before it died of.
pub(crate) fn supervise_by(
    supervisor: Supervisor<'_>,
    terminal: &Terminal,
    journal: Journal,
    prepare: impl Fn(&mut Command, &[Fault]),
) -> Result<Exit, Failure> {
    let cannot = |error: &dyn std::error::Error| {
        Failure::usage("the child process for --isolate could not be started").caused_by(error)
    };
    // Ctrl-C or SIGTERM. The terminal sends Ctrl-C to the child as well, which then stops by itself
    // while this process waits.
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))
        .map_err(|error| cannot(&error))?;
    let program = std::env::current_exe().map_err(|error| cannot(&error))?;
    let deaths: RefCell<Vec<Fault>> = RefCell::default();
    let ended = supervisor
        .journal(journal)
        .interrupted_by(&INTERRUPTED)
        .run(
            || {
                let mut command = Command::new(&program);
                command.args(std::env::args_os().skip(1).filter(|arg| arg != "--isolate"));
                command.env(ISOLATED, "1");
                prepare(&mut command, &deaths.borrow());
                command
            },
            |fault| {
                terminal.note(&format!("note: the child process died and is restarted: {fault}"));
                deaths.borrow_mut().push(fault.clone());
            },
        )
        .map_err(|error| cannot(&error))?;
    match ended {
        Ended::Exit(code) => Ok(Exit::of(code)),
        Ended::Interrupted => Ok(Exit::Interrupted),
        Ended::GaveUp(fault) => Err(Failure::from(fault).isolated()),
    }
}
