//! The text that is printed token by token, and how a process that is started again goes on behind it.
//!
//! With `--isolate` the supervising process alone writes to stdout. Its child sends each token with its text as
//! one line through a pipe. What came as a whole line is printed and noted in a file before the next line is
//! read; what did not come whole was not printed. So the next child, which goes on behind the tokens of the
//! file, repeats nothing and leaves nothing out, whenever the one before it died.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use surefoot_models::ModelError;
use surefoot_models::runner::NewToken;
use tempfile::NamedTempFile;

use crate::exit::Failure;
use crate::terminal::Terminal;

/// A line of the pipe.
#[derive(Debug, Serialize, Deserialize)]
struct Printed {
    token: Option<u32>,
    text: String,
}

/// Prints tokens, or sends them to the supervising process if there is one.
pub(super) struct PrintedTokens<'a> {
    kept: Option<&'a Path>,
}

impl<'a> PrintedTokens<'a> {
    /// `file` has the tokens that earlier processes printed, if a supervising process looks after this one.
    pub(super) fn new(file: Option<&'a Path>) -> Self {
        Self { kept: file }
    }

    /// The tokens that earlier processes printed.
    pub(super) fn tokens(&self) -> Result<Vec<u32>, Failure> {
        let Some(path) = self.kept else { return Ok(Vec::new()) };
        let text = std::fs::read_to_string(path).map_err(|error| unusable(path, &error))?;
        Ok(text.lines().map_while(|line| line.parse().ok()).collect())
    }

    /// Prints the text of a token.
    pub(super) fn print(&self, new: NewToken<'_>, terminal: &Terminal) -> Result<(), ModelError> {
        let written = self.write(new.token, new.text, terminal);
        written.map_err(|failure| ModelError::Request(failure.what))
    }

    /// Ends the text.
    pub(super) fn end(&self, terminal: &Terminal) -> Result<(), Failure> {
        self.write(None, "\n", terminal)
    }

    fn write(&self, token: Option<u32>, text: &str, terminal: &Terminal) -> Result<(), Failure> {
        match self.kept {
            Some(_) => terminal.json_line(&Printed { token, text: text.to_owned() }),
            None if text.is_empty() => Ok(()),
            None => terminal.result(text),
        }
    }
}

/// Prints what child processes send, one after another.
pub(super) struct Relay {
    file: NamedTempFile,
    running: RefCell<Option<JoinHandle<()>>>,
}

impl Relay {
    pub(super) fn new() -> Result<Self, Failure> {
        let file = NamedTempFile::new().map_err(|error| {
            Failure::usage("no temporary file could be made for the streamed tokens")
                .caused_by(&error)
        })?;
        Ok(Self { file, running: RefCell::default() })
    }

    /// Lets the child that `command` starts go on behind what was printed, and prints what it sends.
    pub(super) fn attach(&self, command: &mut Command) {
        // The child before has died: its pipe ends.
        self.finish();
        command.arg("--resume-file").arg(self.file.path());
        // Without a pipe the child's lines would reach stdout; it finds no place to print to instead.
        command.stdout(Stdio::null());
        let noted = File::options().append(true).open(self.file.path());
        if let (Ok(noted), Ok((reader, writer))) = (noted, std::io::pipe()) {
            command.stdout(writer);
            *self.running.borrow_mut() = Some(std::thread::spawn(move || relay(reader, noted)));
        }
    }

    /// Waits until all that was sent is printed.
    pub(super) fn finish(&self) {
        if let Some(running) = self.running.borrow_mut().take() {
            // A panic in it was told when it happened.
            let _ = running.join();
        }
    }
}

/// Prints whole lines until the pipe ends. If nobody reads stdout any more, or a token can't be noted, the
/// child finds the pipe closed and ends.
fn relay(reader: PipeReader, mut noted: File) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) && line.ends_with(b"\n") {
        let Ok(printed) = serde_json::from_slice::<Printed>(&line) else { return };
        line.clear();
        let mut out = std::io::stdout().lock();
        if out.write_all(printed.text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return;
        }
        if let Some(token) = printed.token
            && writeln!(noted, "{token}").is_err()
        {
            return;
        }
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("the streamed tokens can't be kept in {}", path.display()))
        .caused_by(error)
}
