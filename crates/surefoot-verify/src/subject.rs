//! What a comparison compares: a model folder, a fingerprint, or an endpoint.

use std::path::{Path, PathBuf};

use surefoot_models::Opened;
use surefoot_models::folder::gguf;

use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;

/// One side of a comparison.
#[derive(Debug)]
pub enum Subject {
    /// A model folder or GGUF file, which is run.
    Folder(PathBuf),
    /// A fingerprint that was read and checked.
    Fingerprint(Box<Fingerprint>),
    /// The base URL of an OpenAI-compatible endpoint.
    Endpoint(String),
}

impl Subject {
    /// What `text` names: a URL, a fingerprint's file, a model folder or a GGUF file. The
    /// fingerprint is read and checked, the model is opened for its errors.
    pub fn open(text: &str) -> Result<Self, VerifyError> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Self::Endpoint(text.to_owned()));
        }
        let path = Path::new(text);
        if path.is_file() && !gguf::is_gguf(path) {
            return Ok(Self::Fingerprint(Box::new(Fingerprint::read(path)?)));
        }
        Opened::new(path)?;
        Ok(Self::Folder(path.to_owned()))
    }
}
