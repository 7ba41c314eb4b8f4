//! How the program ends: an exit code, and for failures what happened, where, why and what to
//! do next, in that order.

use std::process::ExitCode;

use surefoot::{Fault, FaultKind};

use crate::child::is_isolated;

/// The exit codes; `surefoot --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// Done, and the answer is no: findings, an unhealthy device.
    No = 1,
    /// Wrong usage or bad input.
    Usage = 2,
    /// A device fault that recovery was not able or not allowed to survive.
    Fault = 3,
    /// The evidence is not enough for a decision.
    Undecided = 4,
    /// The device is lost: what a child of `--isolate` says to the process that can start another one.
    DeviceLost = 5,
    /// Ctrl-C or SIGTERM.
    Interrupted = 130,
}

impl Exit {
    /// The meaning of a child's exit code.
    pub(crate) fn of(code: i32) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::No,
            3 | 5 => Self::Fault,
            4 => Self::Undecided,
            130 => Self::Interrupted,
            _ => Self::Usage,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command could not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// What happened, with the place where it did.
    pub(crate) what: String,
    /// The causes, outermost first.
    pub(crate) because: Vec<String>,
    /// What to do next.
    pub(crate) hints: Vec<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), because: Vec::new(), hints: Vec::new() }
    }

    /// The caller's mistake.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    pub(crate) fn because(mut self, cause: impl Into<String>) -> Self {
        self.because.push(cause.into());
        self
    }

    /// Adds `error` and everything below it as causes.
    pub(crate) fn caused_by(mut self, error: &dyn std::error::Error) -> Self {
        let mut next = Some(error);
        while let Some(cause) = next {
            self.because.push(cause.to_string());
            next = cause.source();
        }
        self
    }

    /// Without the advice to use `--isolate`, which was used.
    pub(crate) fn isolated(mut self) -> Self {
        self.hints.retain(|hint| !hint.contains("--isolate"));
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

impl From<Fault> for Failure {
    /// A fault ends the program with 3, unless the caller's own mistake is behind it.
    fn from(fault: Fault) -> Self {
        let exit = match fault.kind {
            kind if kind.is_callers() => Exit::Usage,
            FaultKind::DeviceLost if is_isolated() => Exit::DeviceLost,
            _ => Exit::Fault,
        };
        let place =
            fault.device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
        let mut failure = Self::new(exit, format!("{} in {}{place}", fault.kind, fault.operation));
        failure.because.clone_from(&fault.chain);
        failure.because.extend(fault.tried());
        failure.hints = fault.advice;
        if is_isolated() { failure.isolated() } else { failure }
    }
}
