//! A model folder as published: `config.json`, `tokenizer.json`, safetensors weights. Its
//! files are not trusted: sizes are bounded before anything is parsed.

pub mod checkpoint;
mod foreign;
pub mod gguf;
mod gguf_metadata;
pub mod header;
pub mod index;
pub mod mapped;
pub(crate) mod quantization;
pub mod settings;

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// Reads a whole small file, refusing one that is larger than `limit` or no regular file.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let unreadable = |error| ModelError::file(path, format!("can't be read: {error}"));
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        return Err(ModelError::file(path, "is not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(ModelError::file(path, format!("is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The folder itself, found to be one.
pub(crate) fn existing(folder: &Path) -> Result<PathBuf, ModelError> {
    if folder.is_dir() {
        Ok(folder.to_owned())
    } else if folder.exists() {
        Err(ModelError::file(
            folder,
            "is not a model folder or GGUF file; name the folder that holds config.json, or a file \
             that ends in .gguf",
        ))
    } else {
        Err(ModelError::file(folder, "doesn't exist"))
    }
}
