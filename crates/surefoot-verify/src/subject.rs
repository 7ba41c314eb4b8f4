//! What a comparison compares: a model folder, a fingerprint, or an endpoint.

use std::path::{Path, PathBuf};

use surefoot_models::Opened;

use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;

/// One side of a comparison.
#[derive(Debug)]
pub enum Subject {
    /// A model folder, which is run.
    Folder(PathBuf),
    /// A fingerprint that was read and checked.
    Fingerprint(Box<Fingerprint>),
    /// The base URL of an OpenAI-compatible endpoint.
    Endpoint(String),
}

impl Subject {
    /// What `text` names: a URL, a fingerprint's file or a model folder. The file is read and
    /// checked, the folder is opened for its errors.
    pub fn open(text: &str) -> Result<Self, VerifyError> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Self::Endpoint(text.to_owned()));
        }
        let path = Path::new(text);
        if path.is_file() {
            return Ok(Self::Fingerprint(Box::new(Fingerprint::read(path)?)));
        }
        Opened::new(path)?;
        Ok(Self::Folder(path.to_owned()))
    }
}
