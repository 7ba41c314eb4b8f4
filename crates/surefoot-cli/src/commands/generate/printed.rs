//! The tokens of a streamed text that were printed, kept in a file for a process that is started
//! again: it goes on behind them and prints nothing twice.
//!
//! The file has one token id a line, appended after its text was written to stdout. A process that
//! dies between the two prints the text of one token twice.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use surefoot_models::ModelError;
use surefoot_models::runner::NewToken;

use crate::exit::Failure;
use crate::terminal::Terminal;

/// Prints tokens and keeps them, if there is a file to keep them in.
pub(super) struct PrintedTokens<'a> {
    kept: Option<(&'a Path, File)>,
}

impl<'a> PrintedTokens<'a> {
    pub(super) fn open(file: Option<&'a Path>) -> Result<Self, Failure> {
        let open = |path: &'a Path| {
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.map(|file| (path, file)).map_err(|error| unusable(path, &error))
        };
        Ok(Self { kept: file.map(open).transpose()? })
    }

    /// The tokens that earlier processes printed.
    pub(super) fn tokens(&self) -> Result<Vec<u32>, Failure> {
        let Some((path, _)) = &self.kept else { return Ok(Vec::new()) };
        let text = std::fs::read_to_string(path).map_err(|error| unusable(path, &error))?;
        // A line that was not written to its end was not printed to its end either.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(whole.lines().map_while(|line| line.parse().ok()).collect())
    }

    /// Prints the text of a token and keeps the token.
    pub(super) fn print(
        &mut self,
        new: NewToken<'_>,
        terminal: &Terminal,
    ) -> Result<(), ModelError> {
        if !new.text.is_empty() {
            terminal.result(new.text).map_err(|failure| ModelError::Request(failure.what))?;
        }
        if let (Some((path, file)), Some(token)) = (&mut self.kept, new.token) {
            writeln!(file, "{token}")
                .map_err(|error| ModelError::Request(unusable(path, &error).what))?;
        }
        Ok(())
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("the streamed tokens can't be kept in {}", path.display()))
        .caused_by(error)
}
