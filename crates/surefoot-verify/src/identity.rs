//! Which model a fingerprint is of: its structure, its tokenizer, and the digests of its files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use surefoot_models::Opened;
use surefoot_models::folder::checkpoint::{Checkpoint, Stored};
use surefoot_models::folder::gguf;
use surefoot_models::generate::text::Texts;

use crate::error::VerifyError;
use crate::site::Site;

const CHUNK: usize = 4 << 20;
/// More blocks than any model that can be run.
pub(crate) const MAX_BLOCKS: usize = 1024;

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The BLAKE3 digest of its bytes.
    pub blake3: String,
}

/// Which model it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The name of its folder.
    pub name: String,
    /// Its architecture.
    pub family: String,
    /// The tokens of its vocabulary.
    pub vocab: usize,
    /// The width of its hidden state.
    pub hidden: usize,
    /// Its blocks.
    pub blocks: usize,
    /// Whether there is a norm behind the last block.
    pub final_norm: bool,
    /// Whether it gives logits.
    pub head: bool,
    /// A digest of what its tokenizer does, if there is one.
    pub tokenizer: Option<String>,
    /// The dtypes of its stored weights.
    pub dtypes: Vec<String>,
    /// Its files.
    pub files: Vec<FileDigest>,
}

impl Identity {
    /// Reads and digests the files of a model.
    pub fn read(opened: &Opened) -> Result<Self, VerifyError> {
        let folder = &opened.folder;
        let checkpoint = Checkpoint::open(folder)?;
        let stored: Vec<&Stored> = checkpoint.tensors().map(|(_, stored)| stored).collect();
        let dtypes: BTreeSet<String> = stored.iter().map(|stored| stored.dtype.clone()).collect();
        let weights: BTreeSet<&Path> = stored.iter().map(|stored| stored.path()).collect();
        let mut files = Vec::new();
        if gguf::is_gguf(folder) {
            // What a user calls the file is not part of the model.
            let several = weights.len() > 1;
            for (at, path) in weights.into_iter().enumerate() {
                let name =
                    if several { format!("model-{}.gguf", at + 1) } else { "model.gguf".into() };
                files.push(digest(path, name)?);
            }
        } else {
            let beside = ["config.json", "tokenizer.json"].map(|name| folder.join(name));
            let beside = beside.iter().map(PathBuf::as_path).filter(|path| path.exists());
            for path in beside.chain(weights) {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                files.push(digest(path, name)?);
            }
        }
        let blueprint = &opened.blueprint;
        let name = folder
            .canonicalize()
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        Ok(Self {
            name: name.unwrap_or_else(|| folder.display().to_string()),
            family: blueprint.family.to_owned(),
            vocab: blueprint.vocab,
            hidden: blueprint.hidden,
            blocks: blueprint.blocks.len(),
            final_norm: blueprint.final_norm.is_some(),
            head: opened.has_head(),
            tokenizer: tokenizer(folder)?,
            dtypes: dtypes.into_iter().collect(),
            files,
        })
    }

    /// One digest of all files: two folders with the same files have the same.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("surefoot 2026-11 files of a model");
        for file in &self.files {
            hasher.update(format!("{}\0{}\0{}\n", file.name, file.bytes, file.blake3).as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// All sites that such a model has.
    pub fn sites(&self) -> Vec<Site> {
        let mut sites = vec![Site::Embeddings];
        sites.extend((0..self.blocks).map(Site::Block));
        sites.extend(self.final_norm.then_some(Site::Norm));
        sites.extend(self.head.then_some(Site::Head));
        sites
    }
}

/// The dtypes and block formats of a model's tensors.
pub(crate) fn dtypes(model: &Path) -> Result<BTreeSet<String>, VerifyError> {
    let checkpoint = Checkpoint::open(model)?;
    Ok(checkpoint.tensors().map(|(_, stored)| stored.dtype.clone()).collect())
}

/// A digest of what the tokenizer does: of its JSON without spaces, keys in order, and without
/// what callers set (padding and truncation).
fn tokenizer(folder: &Path) -> Result<Option<String>, VerifyError> {
    if !Texts::exist(folder) {
        return Ok(None);
    }
    let (path, json) = Texts::json(folder)?;
    let mut json: Value = serde_json::from_slice(&json)
        .map_err(|error| VerifyError::file(&path, format!("can't be read: {error}")))?;
    if let Some(object) = json.as_object_mut() {
        object.remove("padding");
        object.remove("truncation");
    }
    let mut hasher = blake3::Hasher::new_derive_key("surefoot 2026-11 tokenizer");
    hash_in_order(&json, &mut hasher);
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

fn hash_in_order(json: &Value, hasher: &mut blake3::Hasher) {
    match json {
        Value::Object(object) => {
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort_unstable();
            hasher.update(b"{").update(&(keys.len() as u64).to_le_bytes());
            for key in keys {
                hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes());
                hash_in_order(&object[key], hasher);
            }
        }
        Value::Array(items) => {
            hasher.update(b"[").update(&(items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| hash_in_order(item, hasher));
        }
        other => {
            let text = other.to_string();
            hasher.update(b"=").update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
}

fn digest(path: &Path, name: String) -> Result<FileDigest, VerifyError> {
    let unreadable = |error| VerifyError::file(path, format!("can't be read: {error}"));
    let mut file = File::open(path).map_err(unreadable)?;
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut chunk).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        hasher.update_rayon(&chunk[..read]);
        bytes += read as u64;
    }
    Ok(FileDigest { name, bytes, blake3: hasher.finalize().to_hex().to_string() })
}

/// A whole file that is no larger than `limit`.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, VerifyError> {
    let unreadable = |error| VerifyError::file(path, format!("can't be read: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err(VerifyError::file(path, "is not a regular file"));
    }
    let mut bytes = Vec::with_capacity(about.len().min(limit) as usize + 1);
    file.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(VerifyError::file(path, format!("is larger than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hash_in_order(&serde_json::from_str(json).unwrap(), &mut hasher);
        hasher.finalize().to_hex().to_string()
    }

    #[test]
    fn the_order_of_keys_and_spaces_do_not_make_another_tokenizer() {
        assert_eq!(of(r#"{"a": 1, "b": [1, 2]}"#), of(r#"{"b":[1,2],"a":1}"#));
        assert_ne!(of(r#"{"a": 1, "b": [1, 2]}"#), of(r#"{"a": 1, "b": [2, 1]}"#));
        assert_ne!(of(r#"["a", "b"]"#), of(r#"["ab"]"#));
        assert_ne!(of(r#"[[1], []]"#), of(r#"[[], [1]]"#));
    }
}
