//! Models in processes of their own, each a server that tells its address on its standard output.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{LaunchError, Launcher, Worker};

/// How often a process that should end is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts models as processes.
pub struct ProcessLauncher<C> {
    command: C,
    grace: Duration,
}

impl<C> ProcessLauncher<C>
where
    C: Fn(&str, u64) -> std::io::Result<Command> + Send + Sync + 'static,
{
    /// Starts the processes that `command` describes for the name of a model and the bytes that it may take.
    /// Each prints one line of JSON with its `url` when it takes requests, and ends on SIGTERM; one that has
    /// not ended after `grace` is killed.
    pub fn new(command: C, grace: Duration) -> Self {
        Self { command, grace }
    }
}

#[derive(Deserialize)]
struct Announcement {
    url: String,
}

impl<C> Launcher for ProcessLauncher<C>
where
    C: Fn(&str, u64) -> std::io::Result<Command> + Send + Sync + 'static,
{
    fn launch(&self, name: &str, bytes: u64) -> Result<Box<dyn Worker>, LaunchError> {
        let failed = |problem: String| LaunchError { name: name.to_owned(), problem };
        let mut command = (self.command)(name, bytes).map_err(|error| failed(error.to_string()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut stdout = BufReader::new(stdout);
            // A process that ends closes it.
            let _ = stdout.read_line(&mut line);
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        }
        let told: Option<Announcement> = serde_json::from_str(&line).ok();
        let address = told.and_then(|told| told.url.strip_prefix("http://")?.parse().ok());
        let process = Process { child: Mutex::new(child), grace: self.grace, address };
        match address {
            Some(_) => Ok(Box::new(process)),
            None => {
                let problem = process.end();
                Err(failed(format!("its process told no address and {problem}; see its messages")))
            }
        }
    }
}

struct Process {
    child: Mutex<Child>,
    grace: Duration,
    address: Option<SocketAddr>,
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks it to end and waits for that; how it ended, in words.
    fn end(&self) -> String {
        let asked = Instant::now();
        ask_to_end(&self.lock());
        loop {
            match self.lock().try_wait() {
                Ok(Some(status)) => return format!("ended with {status}"),
                Ok(None) => {}
                Err(error) => return format!("can't be waited for: {error}"),
            }
            if asked.elapsed() > self.grace {
                // It may have ended by itself just now.
                let _ = self.lock().kill();
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Worker for Process {
    fn address(&self) -> SocketAddr {
        self.address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn is_alive(&self) -> bool {
        matches!(self.lock().try_wait(), Ok(None))
    }

    fn stop(&self) {
        self.end();
    }
}

/// A process that is dropped without having been stopped must not stay behind.
impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.lock();
        if matches!(child.try_wait(), Ok(None)) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(unix)]
fn ask_to_end(child: &Child) {
    use rustix::process::{Pid, Signal, kill_process};

    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // If it has ended by itself there is nobody to tell.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Elsewhere there is no signal to ask with: it is killed after the grace.
#[cfg(not(unix))]
fn ask_to_end(_child: &Child) {}
