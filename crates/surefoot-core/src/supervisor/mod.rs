//! Work in a child process, so that a driver's crash, the kernel's OOM killer or a hang costs a
//! restart and not the run.
//!
//! The parent starts the child with one environment variable that says which devices were lost
//! before and where to leave heartbeats. The child's guard leaves one at each try
//! ([`beat`]), with the device it is on, and long work one after each part ([`still_alive`]). A
//! child that dies by a signal, or falls silent, is turned into a fault; the next one starts one rung further on: without the device that was
//! lost, or with smaller parts if memory ran out. A child that ends by itself is not restarted,
//! unless with the exit code that says so ([`Supervisor::restart_on_exit`]).

mod child;
mod death;

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use child::{
    Inherited, asked_to_stop, beat, end_with_this_process, inherited, still_alive, worked,
};
pub use death::run_probe;

use crate::device::DeviceName;
use crate::fault::{Fault, FaultKind};
use crate::journal::{Event, EventKind, Journal};
use child::Heartbeat;
use death::{Ending, watch};

/// What supervised work is called in faults and in the journal.
const OPERATION: &str = "supervised process";

/// Says what the last lines that a dead process wrote to stderr mean; `NotDeviceRelated` where
/// nothing is known.
pub type TextClassifier = fn(&str) -> FaultKind;

/// Chooses what to quote of the last lines that a dead process wrote to stderr.
pub type Quote = fn(&[String]) -> Option<String>;

/// How a supervised run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// The work ended by itself, with this exit code.
    Exit(i32),
    /// It was interrupted from outside.
    Interrupted,
    /// It died more often than it may be restarted.
    GaveUp(Fault),
}

/// Starts work in a child process and starts it again when it dies.
#[derive(Debug)]
pub struct Supervisor<'a> {
    restarts: u32,
    silence: Duration,
    journal: Journal,
    interrupted: Option<&'a AtomicBool>,
    grace: Duration,
    healthy_after: Duration,
    kind_of_text: TextClassifier,
    quote: Quote,
    restart_on_exit: Option<i32>,
}

impl Default for Supervisor<'_> {
    fn default() -> Self {
        Self {
            restarts: 3,
            silence: Duration::from_secs(300),
            journal: Journal::off(),
            interrupted: None,
            grace: Duration::from_secs(10),
            healthy_after: Duration::from_secs(600),
            kind_of_text: |_| FaultKind::NotDeviceRelated,
            quote: death::last_line,
            restart_on_exit: None,
        }
    }
}

impl<'a> Supervisor<'a> {
    /// How the last lines of a dead child are understood.
    #[must_use]
    pub fn kind_of_text(mut self, classifier: TextClassifier) -> Self {
        self.kind_of_text = classifier;
        self
    }

    /// What of a dead child's last lines is quoted in its fault; the last one by default.
    #[must_use]
    pub fn quote(mut self, quote: Quote) -> Self {
        self.quote = quote;
        self
    }

    /// Restarts at most this often in a row.
    #[must_use]
    pub fn restarts(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }

    /// Takes a child for hung that shows no heartbeat for this long.
    #[must_use]
    pub fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }

    /// A child that lived for this long before it died begins a new row of restarts, as does one that said that it
    /// [`worked`].
    #[must_use]
    pub fn healthy_after(mut self, time: Duration) -> Self {
        self.healthy_after = time;
        self
    }

    /// Restarts a child that ends with this exit code as if it had died of a lost device: a child
    /// that outlives its devices, such as a server, says so that it can't go on.
    #[must_use]
    pub fn restart_on_exit(mut self, code: i32) -> Self {
        self.restart_on_exit = Some(code);
        self
    }

    /// Where deaths and restarts are recorded.
    #[must_use]
    pub fn journal(mut self, journal: Journal) -> Self {
        self.journal = journal;
        self
    }

    /// Set when this process was asked to end. The child, which Ctrl-C reaches too and which is asked to stop
    /// in any other case ([`asked_to_stop`]), ends, and isn't restarted.
    #[must_use]
    pub fn interrupted_by(mut self, flag: &'a AtomicBool) -> Self {
        self.interrupted = Some(flag);
        self
    }

    /// How long a child that should end may take to do so before it is killed.
    #[must_use]
    pub fn grace(mut self, limit: Duration) -> Self {
        self.grace = limit;
        self
    }

    /// Runs `command` until it ends by itself or may not be restarted. `on_death` is called with
    /// each death before the next start.
    pub fn run(
        &self,
        command: impl Fn() -> Command,
        mut on_death: impl FnMut(&Fault),
    ) -> io::Result<Ended> {
        let started = Instant::now();
        let ended = self.run_until_it_ends(command, &mut on_death)?;
        self.journal.with(|| {
            let event = Event::new(EventKind::Step, OPERATION).duration(started.elapsed());
            match &ended {
                Ended::GaveUp(fault) => event.fault(fault.kind, fault.root_cause().to_owned()),
                _ => event,
            }
        });
        Ok(ended)
    }

    fn run_until_it_ends(
        &self,
        command: impl Fn() -> Command,
        on_death: &mut dyn FnMut(&Fault),
    ) -> io::Result<Ended> {
        let supervisor = Some(std::process::id());
        let mut inherited = Inherited { supervisor, ..Inherited::default() };
        let mut earlier: Vec<Fault> = Vec::new();
        let mut restarts = 0;
        loop {
            let heartbeat = Heartbeat::new()?;
            inherited.heartbeat = Some(heartbeat.path().to_owned());
            let mut command = command();
            inherited.pass_to(&mut command);
            let begun = Instant::now();
            let fault = match watch(
                command,
                &heartbeat,
                self.silence,
                self.interrupted,
                self.grace,
                self.kind_of_text,
                self.quote,
            )? {
                Ending::Exit(code) if self.restart_on_exit == Some(code) => {
                    let message =
                        format!("it ended with exit code {code}: no device is left to it");
                    let fault = Fault::new(FaultKind::DeviceLost, OPERATION, message);
                    match heartbeat.listen().1 {
                        Some(device) => fault.on(device),
                        None => fault,
                    }
                }
                Ending::Exit(code) => return Ok(Ended::Exit(code)),
                Ending::Interrupted => return Ok(Ended::Interrupted),
                Ending::Death(fault) => fault,
            };
            self.journal.with(|| {
                let device = fault.device.clone().unwrap_or_default();
                let event = Event::new(EventKind::Fault, OPERATION).device(device);
                event.fault(fault.kind, fault.chain.join(": "))
            });
            if self.interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Ok(Ended::Interrupted);
            }
            if begun.elapsed() >= self.healthy_after || heartbeat.has_worked() {
                // It did its work: this is a new story, not the next try of the same.
                restarts = 0;
                earlier.clear();
            }
            if restarts >= self.restarts {
                return Ok(Ended::GaveUp(fault.after(earlier)));
            }
            on_death(&fault);
            inherited.learn(&fault);
            restarts += 1;
            self.journal.with(|| {
                Event::new(EventKind::Rung, OPERATION)
                    .recovery("restart")
                    .context("attempt", u64::from(inherited.attempt) + 1)
                    .context("without", inherited.lost_names())
            });
            earlier.push(fault);
        }
    }
}

impl Inherited {
    /// What the next child should do differently.
    fn learn(&mut self, fault: &Fault) {
        self.attempt += 1;
        match fault.kind {
            FaultKind::OutOfMemory => self.memory_faults += 1,
            _ => {
                if let Some(Ok(name)) = fault.device.as_deref().map(str::parse)
                    && name != DeviceName::CPU
                    && !self.lost.contains(&name)
                {
                    self.lost.push(name);
                }
            }
        }
    }
}
