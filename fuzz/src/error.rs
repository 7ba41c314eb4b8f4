//! Stands in for the crate's own error, which knows of devices.

use std::path::{Path, PathBuf};

/// What a parser refuses.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file.
    #[error("{}: {problem}", file.display())]
    File { file: PathBuf, problem: String },
    /// A tensor of it, or a key.
    #[error("{}: {name} {problem}", file.display())]
    Named { file: PathBuf, name: String, problem: String },
    /// A request.
    #[error("{0}")]
    Request(String),
}

impl ModelError {
    pub(crate) fn file(file: &Path, problem: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), problem: problem.into() }
    }

    pub(crate) fn tensor(
        file: &Path,
        name: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Named { file: file.to_owned(), name: name.into(), problem: problem.into() }
    }

    pub(crate) fn config(
        file: &Path,
        name: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::tensor(file, name, problem)
    }

    pub(crate) fn request(problem: impl Into<String>) -> Self {
        Self::Request(problem.into())
    }
}
