//! The folder that a quantised model is made in, and what it is being made from.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::QuantizeOptions;
use crate::error::ModelError;
use crate::folder::read_bounded;
use crate::run::opened::Opened;

const FILE: &str = "job.json";
const MAX_FILE: u64 = 64 << 20;

/// What a folder is made from: if any of it has changed, files that were made before can't be used.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    source: PathBuf,
    weights: String,
    shard_bytes: u64,
    /// The files of weights, with their sizes and when they were changed, in nanoseconds since 1970.
    files: Vec<(PathBuf, u64, u128)>,
}

impl Job {
    pub(super) fn of(
        source: &Path,
        options: &QuantizeOptions,
        opened: &Opened,
    ) -> Result<Self, ModelError> {
        let unreadable =
            |path: &Path, error| ModelError::file(path, format!("can't be read: {error}"));
        let mut files: Vec<&Path> =
            opened.binding.matrices.iter().map(|matrix| matrix.stored.file.path()).collect();
        files.push(opened.binding.tokens.file.path());
        files.sort_unstable();
        files.dedup();
        let described = |path: &Path| -> std::io::Result<(PathBuf, u64, u128)> {
            let about = fs::metadata(path)?;
            let changed = about.modified()?.duration_since(std::time::UNIX_EPOCH);
            Ok((path.to_owned(), about.len(), changed.map_or(0, |since| since.as_nanos())))
        };
        Ok(Self {
            source: source.canonicalize().map_err(|error| unreadable(source, error))?,
            weights: options.choice.to_string(),
            shard_bytes: options.shard_bytes,
            files: files
                .into_iter()
                .map(|path| described(path).map_err(|error| unreadable(path, error)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The folder to work in, made or found: `out` with the ending `.partial`.
    pub(super) fn begin(&self, out: &Path) -> Result<PathBuf, ModelError> {
        let mut name = out
            .file_name()
            .ok_or_else(|| ModelError::file(out, "is not a name for a new folder"))?
            .to_owned();
        name.push(".partial");
        let partial = out.with_file_name(name);
        let unwritable = |error: std::io::Error| {
            ModelError::file(&partial, format!("can't be written: {error}"))
        };
        let file = partial.join(FILE);
        if file.exists() {
            let begun: Option<Self> = serde_json::from_slice(&read_bounded(&file, MAX_FILE)?).ok();
            return match begun.as_ref() == Some(self) {
                true => Ok(partial),
                false => Err(ModelError::file(
                    &partial,
                    "is left from another run, of another model or in another form; remove it, or name another folder",
                )),
            };
        }
        if partial.exists() {
            return Err(ModelError::file(
                &partial,
                "exists and is none of this program's; remove it",
            ));
        }
        fs::create_dir_all(&partial).map_err(unwritable)?;
        let json = serde_json::to_vec_pretty(self).map_err(|error| unwritable(error.into()))?;
        crate::save::whole(&file, |part| fs::write(part, json)).map_err(unwritable)?;
        Ok(partial)
    }
}

/// Gives the finished folder its name.
pub(super) fn finish(partial: &Path, out: &Path) -> Result<(), ModelError> {
    let rename = || {
        fs::remove_file(partial.join(FILE))?;
        fs::rename(partial, out)
    };
    rename().map_err(|error| ModelError::file(out, format!("can't be written: {error}")))
}
