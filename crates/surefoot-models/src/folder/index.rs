//! `model.safetensors.index.json`: which shard holds which tensor.
//!
//! The file names in it are not trusted. Each must be the name of a file in the folder;
//! a link may lead out of it only within a hub cache, where snapshots link to their blobs.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::error::ModelError;

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

/// Tensor name → shard file name, checked to be plain file names.
pub fn parse(file: &Path, json: &[u8]) -> Result<BTreeMap<String, String>, ModelError> {
    let index: RawIndex = serde_json::from_slice(json)
        .map_err(|error| ModelError::file(file, format!("can't be read: {error}")))?;
    if index.weight_map.is_empty() {
        return Err(ModelError::file(file, "lists no tensors"));
    }
    for (tensor, shard) in &index.weight_map {
        let mut parts = Path::new(shard).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
            && !shard.contains(['/', '\\', '\0'])
            && shard.ends_with(".safetensors");
        if !plain {
            return Err(ModelError::tensor(
                file,
                tensor,
                format!(
                    "is said to be in '{shard}', which is not a safetensors file of this folder"
                ),
            ));
        }
    }
    Ok(index.weight_map)
}

/// The path of `name` in `folder`, refused if a link leads out of the folder.
pub(crate) fn inside(folder: &Path, name: &str) -> Result<PathBuf, ModelError> {
    let path = folder.join(name);
    let unreadable = |path: &Path, error| ModelError::file(path, format!("can't be read: {error}"));
    let root = folder.canonicalize().map_err(|error| unreadable(folder, error))?;
    let real = path.canonicalize().map_err(|error| unreadable(&path, error))?;
    let cache = root
        .parent()
        .filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))
        .and_then(Path::parent)
        .map(|repository| repository.join("blobs"));
    if real.starts_with(&root) || cache.is_some_and(|blobs| real.starts_with(blobs)) {
        Ok(path)
    } else {
        Err(ModelError::file(&path, format!("leads out of the folder, to {}", real.display())))
    }
}
