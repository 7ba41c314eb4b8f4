//! Mistakes in a configuration.

/// What is wrong with a configuration, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", place(self))]
pub struct ConfigError {
    /// The file, once it is known.
    pub file: Option<String>,
    /// The line from 1; 0 if the value came from a flag.
    pub line: usize,
    /// What is wrong.
    pub why: String,
    /// What would be right.
    pub hint: Option<String>,
}

fn place(error: &ConfigError) -> String {
    match (&error.file, error.line) {
        (Some(file), 0) => format!("{file}, changed by a flag: "),
        (Some(file), line) => format!("{file}:{line}: "),
        (None, 0) => String::new(),
        (None, line) => format!("line {line}: "),
    }
}

impl ConfigError {
    pub(super) fn at(line: usize, why: impl Into<String>) -> Self {
        Self { file: None, line, why: why.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn in_flag(mut self, path: &str) -> Self {
        self.line = 0;
        self.why = format!("the value for {path}: {}", self.why);
        self
    }
}
