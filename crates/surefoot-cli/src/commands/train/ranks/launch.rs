//! `surefoot train --ranks N`: starts the ranks through `mpirun` and says what became of them.
//!
//! A rank that dies takes the others with it: MPI can't go on without it. `mpirun` then ends with a code
//! of its own, so this process turns it into one message, the command to resume with and exit code 3.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use surefoot_train::checkpoint::{CheckpointFolder, latest_folder};
use surefoot_train::config::Config;

use super::super::command::ResumeCommand;
use super::super::{LATEST, LAUNCHER, Train};
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// How often the launcher is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);

/// How often Ctrl-C or SIGTERM came.
static STOPS: AtomicUsize = AtomicUsize::new(0);

/// Starts so many ranks of this command and waits for them.
pub(in super::super) fn launch(
    train: &Train,
    ranks: usize,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    #[cfg(not(feature = "mpi"))]
    if ranks > 1 {
        return Err(super::not_in_this_build(ranks));
    }
    train.check_for_ranks()?;
    let launcher = &train.launcher;
    let words = shlex::split(launcher).filter(|words| !words.is_empty());
    let words =
        words.ok_or_else(|| Failure::usage(format!("--launcher {launcher:?} is not a command")))?;
    let cannot = |error: io::Error| {
        Failure::usage(format!("{launcher} can't be started"))
            .caused_by(&error)
            .hint("install an MPI (Debian: openmpi-bin), or name its program: --launcher PATH")
    };
    ctrlc::set_handler(|| {
        STOPS.fetch_add(1, Ordering::Relaxed);
    })
    .map_err(|error| Failure::usage("Ctrl-C can't be listened for").caused_by(&error))?;
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().map_err(cannot)?)
        .args(std::env::args_os().skip(1))
        // mpirun hands its input on to the first rank.
        .stdin(Stdio::piped());
    // Ctrl-C of a terminal goes to a whole group of processes, and mpirun would kill the ranks at once.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let started = SystemTime::now();
    let child = command.spawn().map_err(cannot)?;
    let ended = wait(child).map_err(cannot)?;
    match ended.code() {
        Some(0) => Ok(Exit::Done),
        // The rank that met it has said why.
        Some(2) => Ok(Exit::Usage),
        Some(3) => Ok(Exit::Fault),
        Some(130) => Ok(Exit::Interrupted),
        _ if STOPS.load(Ordering::Relaxed) > 0 => Ok(Exit::Interrupted),
        // `train` itself never ends with 1.
        Some(1) => Err(Failure::usage(format!("{launcher} could not run {ranks} ranks"))
            .because("its own message is above")
            .hint("more ranks than processors need --launcher 'mpirun --oversubscribe'")),
        other => {
            let checkpoint = last_checkpoint(train, started, terminal);
            Err(match (other, checkpoint) {
                // What Open MPI ends with if ssh or the daemon on another host fails.
                (Some(255), None) => not_started(launcher, ranks),
                (_, checkpoint) => rank_died(train, ranks, ended, checkpoint),
            })
        }
    }
}

/// What to say when the launcher could not reach all hosts.
fn not_started(launcher: &str, ranks: usize) -> Failure {
    Failure::new(Exit::Fault, format!("{launcher} did not start {ranks} ranks"))
        .because("its own message is above")
        .hint("`ssh HOST true` must work without a password for every host of the list")
        .hint("surefoot and the MPI must be under the same paths on every host, and their ports not blocked by a firewall")
}

/// Waits for the launcher. The first request to stop closes the input of the ranks, which then save and end; the
/// second ends the launcher, and with it the ranks, at once.
fn wait(mut child: Child) -> io::Result<ExitStatus> {
    let mut input = child.stdin.take();
    let mut terminated = false;
    loop {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended);
        }
        match STOPS.load(Ordering::Relaxed) {
            0 => {}
            1 => drop(input.take()),
            _ if terminated => {}
            _ => {
                terminated = true;
                Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Calls `stop` when the input of this process ends: how [`launch`] asks the ranks to stop, and what
/// happens if it is killed.
pub(in super::super) fn when_input_ends(stop: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        // An error ends the input as well.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop();
    });
}

/// What to say when a rank was killed or crashed.
fn rank_died(
    train: &Train,
    ranks: usize,
    ended: ExitStatus,
    checkpoint: Option<PathBuf>,
) -> Failure {
    let failure = Failure::new(Exit::Fault, "a rank died, and the others were ended")
        .because(format!("{} ended with {}", train.launcher, meaning(ended)));
    match checkpoint {
        None => failure.hint("no checkpoint was written yet: start it again"),
        Some(path) => {
            let command = ResumeCommand::new(&train.options, false).from(&path);
            let launcher = launcher_option(&train.launcher);
            let command = format!("{command} --ranks {ranks}{launcher}");
            failure.hint(format!("resume with any number of ranks: {command}"))
        }
    }
}

/// ` --launcher '…'`, if it is not the usual one.
fn launcher_option(launcher: &str) -> String {
    match shlex::try_quote(launcher) {
        Ok(quoted) if launcher != LAUNCHER => format!(" --launcher {quoted}"),
        _ => String::new(),
    }
}

fn meaning(ended: ExitStatus) -> String {
    match ended.code() {
        Some(code @ 129..=192) => format!("{code}: a rank was ended by signal {}", code - 128),
        Some(code) => code.to_string(),
        None => ended.to_string(),
    }
}

/// The last checkpoint of the job that was started then: what it wrote, or what it resumed from.
fn last_checkpoint(train: &Train, started: SystemTime, terminal: &Terminal) -> Option<PathBuf> {
    let flags = train.options.flags().ok()?;
    let config = match &train.config {
        Some(path) => Some(Config::read(path, &flags).ok()?),
        None => None,
    };
    let folder = match &train.resume {
        Some(path) if path.as_os_str() != LATEST => path.parent()?.to_owned(),
        _ => latest_folder(&train.wanted_folder(config.as_ref()))?,
    };
    let (latest, unreadable) = CheckpointFolder::new(&folder, 2).ok()?.latest();
    for error in unreadable {
        terminal.note(&format!("skipped: {error}"));
    }
    let written = |path: &PathBuf| path.metadata().and_then(|found| found.modified());
    latest.filter(|path| {
        train.resume.is_some() || written(path).is_ok_and(|written| written >= started)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_resume_with_names_a_launcher_of_ones_own() {
        assert_eq!(launcher_option("mpirun"), "");
        let hosts = launcher_option("mpirun --hostfile hosts");
        assert_eq!(hosts, " --launcher 'mpirun --hostfile hosts'");
    }
}
