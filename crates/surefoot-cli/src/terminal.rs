//! The one place that prints: results to stdout, everything else to stderr. Colour is used on a
//! terminal only and never with NO_COLOR; `anstream` decides and removes it elsewhere.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::args::Global;
use crate::exit::{Exit, Failure};

/// Writes the log records of all libraries to stderr: warnings at `-v`, more at `-vv` and `-vvv`.
/// Without `-v` nothing is logged; what a user must know is printed as notes and errors.
pub(crate) fn start_logging(global: &Global) {
    let default = match global.verbose {
        0 => return,
        1 => "warn,surefoot=info",
        2 => "info,surefoot=debug",
        _ => "debug,surefoot=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(AutoStream::choice(&io::stderr()) != ColorChoice::Never)
        .init();
}

/// Whether text on stdout is coloured.
pub(crate) fn is_stdout_coloured() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Writes a line to stderr. If its reader closed it (`2>&1 | head`), the program goes on.
pub(crate) fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Set by `-q`. There is one terminal, and code that only describes options has no [`Terminal`].
static QUIET: AtomicBool = AtomicBool::new(false);

/// Writes a line about the run to stderr, unless `-q`.
pub(crate) fn note(text: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        say(text);
    }
}

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const CAUSE: Style = Style::new().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Prints for one run of the program.
pub(crate) struct Terminal;

impl Terminal {
    pub(crate) fn new(global: &Global) -> Self {
        QUIET.store(global.quiet, Ordering::Relaxed);
        Self
    }

    /// Writes no notes from now on.
    pub(crate) fn silence(&self) {
        QUIET.store(true, Ordering::Relaxed);
    }

    /// Writes a result to stdout. If its reader closed it (`| head`), the program ends without an
    /// error.
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

    /// Writes a JSON document on one line of stdout; false if the reader has closed it.
    pub(crate) fn json_line_is_read(&self, document: &impl Serialize) -> bool {
        let Ok(text) = serde_json::to_string(document) else { return true };
        let mut out = io::stdout().lock();
        let written = writeln!(out, "{text}").and_then(|()| out.flush());
        !written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Writes a line about the run to stderr, unless `-q`.
    pub(crate) fn note(&self, text: &str) {
        note(text);
    }

    /// Writes a warning, with `-q` too.
    pub(crate) fn warn(&self, text: &str) {
        say(&format!("{WARNING}warning:{WARNING:#} {text}"));
    }

    /// Writes what went wrong, why, and what to do next.
    pub(crate) fn failure(&self, failure: &Failure) {
        say(&format!("{ERROR}error:{ERROR:#} {}", failure.what));
        for cause in &failure.because {
            say(&format!("  {CAUSE}because:{CAUSE:#} {}", cause.replace('\n', "\n    ")));
        }
        for hint in &failure.hints {
            say(&format!("  {HINT}try:{HINT:#} {hint}"));
        }
    }
}

/// Aligned columns without borders.
pub(crate) struct Table<const N: usize>(comfy_table::Table);

impl<const N: usize> Table<N> {
    pub(crate) fn new(headings: [&str; N]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header(headings);
        table.column_iter_mut().for_each(|column| {
            column.set_padding((0, 2));
        });
        Self(table)
    }

    /// Aligns every column but the first to the right, for numbers.
    pub(crate) fn numbers(mut self) -> Self {
        for column in self.0.column_iter_mut().skip(1) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
        self
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.0.add_row(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}
