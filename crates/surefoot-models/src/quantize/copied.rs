//! Copies what a model folder has besides its weights: configuration, tokenizer, templates.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::shard::Shard;
use crate::error::ModelError;
use crate::folder::quantization::OWN_METHOD;
use crate::folder::read_bounded;
use crate::weights::choice::WeightChoice;

/// Weights in any program's form.
const WEIGHTS: [&str; 10] =
    ["safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "ckpt", "npz"];
const MAX_CONFIG: u64 = 16 << 20;
/// No file beside weights is larger.
const MAX_COPIED: u64 = 256 << 20;

/// Copies it, names the form of the weights in `config.json`, and writes the index of several files of weights.
pub(super) fn copy(
    source: &Path,
    target: &Path,
    choice: WeightChoice,
    shards: &[Shard],
) -> Result<(), ModelError> {
    let failed = |error: io::Error| {
        ModelError::file(target, format!("can't be filled from {}: {error}", source.display()))
    };
    copy_folder(source, target, 1).map_err(failed)?;
    let file = source.join("config.json");
    let mut config: Value = serde_json::from_slice(&read_bounded(&file, MAX_CONFIG)?)
        .map_err(|error| ModelError::file(&file, format!("can't be read: {error}")))?;
    if let Some(config) = config.as_object_mut() {
        let form = json!({"quant_method": OWN_METHOD, "weights": choice.as_str()});
        config.insert("quantization_config".to_owned(), form);
    }
    let write = |name: &str, json: &Value| {
        let text = format!("{json:#}\n");
        crate::save::whole(&target.join(name), |part| fs::write(part, text)).map_err(failed)
    };
    write("config.json", &config)?;
    if shards.len() > 1 {
        let map: BTreeMap<&str, &str> = shards
            .iter()
            .flat_map(|shard| shard.tensors().map(move |name| (name, shard.name.as_str())))
            .collect();
        let bytes: u64 = shards.iter().map(Shard::bytes).sum();
        let index = json!({"metadata": {"total_size": bytes}, "weight_map": map});
        write("model.safetensors.index.json", &index)?;
    }
    Ok(())
}

fn copy_folder(source: &Path, target: &Path, deeper: usize) -> io::Result<()> {
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        // Hubs link to files elsewhere, so links are followed.
        let about = fs::metadata(&from)?;
        if about.is_dir() && deeper > 0 && !entry.file_name().to_string_lossy().starts_with('.') {
            fs::create_dir_all(&to)?;
            copy_folder(&from, &to, deeper - 1)?;
            // A folder of nothing but weights is not needed.
            if fs::read_dir(&to)?.next().is_none() {
                fs::remove_dir(&to)?;
            }
        } else if about.is_file() && about.len() <= MAX_COPIED && !is_weights(&from) {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

fn is_weights(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    WEIGHTS.iter().any(|ending| name.ends_with(&format!(".{ending}")))
        || name.ends_with(".index.json")
}
