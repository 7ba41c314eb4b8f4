//! The model that a user names: a model folder, or a checkpoint of `surefoot train` with a GPT,
//! which is exported to a temporary folder for as long as the command runs.

use std::path::{Path, PathBuf};

use surefoot_train::export::{self, ExportFormat};
use tempfile::TempDir;

use crate::commands::export::failed;
use crate::exit::Failure;

/// A model folder. A temporary one is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    path: PathBuf,
    _temporary: Option<TempDir>,
}

impl ModelFolder {
    /// The folder of what was named.
    pub(crate) fn of(named: &Path) -> Result<Self, Failure> {
        if !is_checkpoint(named) {
            return Ok(Self { path: named.to_owned(), _temporary: None });
        }
        let temporary =
            tempfile::Builder::new().prefix("surefoot-").tempdir().map_err(|error| {
                Failure::usage("there is no room for a temporary folder").caused_by(&error)
            })?;
        let path = temporary.path().join(named.file_stem().unwrap_or_default());
        export::export(named, ExportFormat::HuggingFace, &path).map_err(failed)?;
        Ok(Self { path, _temporary: Some(temporary) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether a name is that of a checkpoint file; model folders hold such files, but are none.
pub(crate) fn is_checkpoint(named: &Path) -> bool {
    named.is_file() && named.extension().is_some_and(|extension| extension == "safetensors")
}
