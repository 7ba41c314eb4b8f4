//! What can be wrong with a fingerprint, a transcript, an endpoint or a request. None of it is
//! ever turned into a verdict.

use std::path::{Path, PathBuf};

use surefoot_models::ModelError;
use surefoot_stats::StatsError;

/// Why no verdict could be given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A file is missing, unreadable, damaged or of another kind or version.
    #[error("{}: {problem}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A document that is no fingerprint or transcript, or a damaged one.
    #[error("{0}")]
    Document(String),
    /// Two things that can't be compared.
    #[error("{0}")]
    Incomparable(String),
    /// The caller asked for something that can't be done.
    #[error("{0}")]
    Request(String),
    /// The endpoint didn't answer as an OpenAI-compatible one does.
    #[error("{url}: {problem}")]
    Endpoint {
        /// Where it is.
        url: String,
        /// What is wrong with its answer.
        problem: String,
    },
    /// The model could not be opened or run.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<StatsError> for VerifyError {
    fn from(error: StatsError) -> Self {
        match error {
            StatsError::Document(problem) => Self::Document(problem),
            StatsError::Incomparable(problem) => Self::Incomparable(problem),
            other => Self::Request(other.to_string()),
        }
    }
}

impl VerifyError {
    pub(crate) fn file(file: &Path, problem: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), problem: problem.into() }
    }

    pub(crate) fn document(problem: impl Into<String>) -> Self {
        Self::Document(problem.into())
    }

    pub(crate) fn incomparable(problem: impl Into<String>) -> Self {
        Self::Incomparable(problem.into())
    }

    pub(crate) fn request(problem: impl Into<String>) -> Self {
        Self::Request(problem.into())
    }

    pub(crate) fn endpoint(url: &str, problem: impl Into<String>) -> Self {
        Self::Endpoint { url: url.to_owned(), problem: problem.into() }
    }

    /// The same problem, with the file it is about.
    pub fn of_file(self, file: &Path) -> Self {
        match self {
            Self::Document(problem) => Self::file(file, problem),
            other => other,
        }
    }
}
