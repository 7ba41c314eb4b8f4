//! The one place that prints: results to stdout, everything else to stderr, colour only on a
//! terminal and never with NO_COLOR.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::args::Global;
use crate::exit::{Exit, Failure};

/// Sends what the libraries log to stderr: warnings at `-v`, more at `-vv`, all at `-vvv`.
/// Without `-v` nothing is logged; what matters is told as notes and faults.
pub(crate) fn start_logging(global: &Global) {
    let default = match global.verbose {
        0 => return,
        1 => "warn,surefoot=info",
        2 => "info,surefoot=debug",
        _ => "debug,surefoot=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(!no_colour && io::stderr().is_terminal())
        .init();
}

/// Writes a line to stderr. One that nobody reads any more (`2>&1 | head`) is no reason to end.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints for one run of the program.
pub(crate) struct Terminal {
    quiet: bool,
    colour: bool,
}

impl Terminal {
    pub(crate) fn new(global: &Global) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { quiet: global.quiet, colour: !no_colour && io::stderr().is_terminal() }
    }

    /// Writes a result to stdout. A reader that went away (`| head`) ends the program quietly.
    pub(crate) fn result(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                std::process::exit(Exit::Done as i32)
            }
            other => other.map_err(|error| {
                Failure::usage("the result could not be written to stdout").caused_by(&error)
            }),
        }
    }

    /// Writes one JSON document to stdout.
    pub(crate) fn json(&self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(document).map_err(|error| {
            Failure::usage("the result could not be turned into JSON").caused_by(&error)
        })?;
        self.result(&(text + "\n"))
    }

    /// Writes a JSON document on one line of stdout.
    pub(crate) fn json_line(&self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(document).map_err(|error| {
            Failure::usage("the result could not be turned into JSON").caused_by(&error)
        })?;
        self.result(&(text + "\n"))
    }

    /// Writes a JSON document on one line of stdout; whether anybody still reads it.
    pub(crate) fn json_line_is_read(&self, document: &impl Serialize) -> bool {
        let Ok(text) = serde_json::to_string(document) else { return true };
        let mut out = io::stdout().lock();
        let written = writeln!(out, "{text}").and_then(|()| out.flush());
        !written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Says something about the run on stderr, unless `-q`.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// Says what went wrong and what to do next.
    pub(crate) fn failure(&self, failure: &Failure) {
        say(&format!("{} {}", self.paint("1;31", "error:"), failure.what));
        for cause in &failure.because {
            say(&format!("  {} {}", self.paint("1", "because:"), cause.replace('\n', "\n    ")));
        }
        for hint in &failure.hints {
            say(&format!("  {} {hint}", self.paint("1;36", "try:")));
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Columns that line up.
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned)] }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells =
                self.rows.iter().filter(|row| column + 1 < N && !row[column + 1].is_empty());
            cells.map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let line: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}
