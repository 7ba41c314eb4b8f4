//! What can be wrong with a model folder, a request or a budget. Every message names the file,
//! and the tensor or the key where there is one.

use std::path::{Path, PathBuf};

/// Why a model could not be opened, planned or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file is missing, unreadable or not what it should be.
    #[error("{}: {problem}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// One tensor of a file is missing, unexpected, damaged or of the wrong shape.
    #[error("{}: tensor '{tensor}' {problem}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A configuration key has a value that can't be used.
    #[error("{}: '{key}' {problem}", file.display())]
    Config {
        /// The configuration file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// The caller asked for something the model can't do.
    #[error("{0}")]
    Request(String),
    /// The work doesn't fit in the memory that was allowed.
    #[error(
        "{} would be needed, {} are allowed",
        surefoot::device::memory::Bytes(*needed),
        surefoot::device::memory::Bytes(*allowed)
    )]
    Memory {
        /// The least number of bytes that would be enough.
        needed: u64,
        /// What was allowed.
        allowed: u64,
    },
    /// A draft model reads and writes other tokens than the model that it should draft for.
    #[error(
        "{} can't be a draft model for {}: their vocabularies differ ({difference}); give a smaller model with the same tokenizer",
        draft.display(),
        model.display()
    )]
    DraftVocabulary {
        /// The draft model.
        draft: PathBuf,
        /// The model that it should draft for.
        model: PathBuf,
        /// The first difference that was found.
        difference: String,
    },
    /// A part of the model failed on its device.
    #[error(transparent)]
    Fault(Box<surefoot::Fault>),
}

impl From<surefoot::Fault> for ModelError {
    fn from(fault: surefoot::Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
}

impl ModelError {
    pub(crate) fn file(file: &Path, problem: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), problem: problem.into() }
    }

    pub(crate) fn tensor(
        file: &Path,
        tensor: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Tensor { file: file.to_owned(), tensor: tensor.into(), problem: problem.into() }
    }

    pub(crate) fn config(file: &Path, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { file: file.to_owned(), key: key.into(), problem: problem.into() }
    }

    /// Whether the device is to blame, so that another try or another device may help.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Fault(_))
    }

    pub(crate) fn request(problem: impl Into<String>) -> Self {
        Self::Request(problem.into())
    }
}
