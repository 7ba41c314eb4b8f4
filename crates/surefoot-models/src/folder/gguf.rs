//! Reads a GGUF file as if it were a model folder: its metadata become the settings, and its tensors get
//! the names that they have in a folder.
//!
//! Which architectures can be run, and what they call things, is in `gguf_metadata.rs`. What differs from a
//! folder:
//!
//! - matrices always have outputs as rows (GPT-2's folders have inputs);
//! - queries and keys of `llama` are stored so that pairs to be rotated are neighbours
//!   ([`Rope::interleaved`](crate::arch::rope::Rope::interleaved));
//! - frequencies of Llama 3 come as divisors in the tensor `rope_freqs.weight`;
//! - norms of Gemma have their whole scale (folders have the difference from 1);
//! - the experts of a layer lie behind each other in one tensor.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use surefoot_quant::BlockFormat;
use surefoot_quant::gguf::{Gguf, GgufError, GgufFiles};

use super::checkpoint::{Checkpoint, Stored};
use super::gguf_metadata::{ARCHITECTURES, Architecture};
use super::mapped::WeightFile;
use super::settings::Settings;
use crate::arch::blueprint::{Blueprint, Layout};
use crate::error::ModelError;

const FREQUENCIES: &str = "rope_freqs.weight";
/// Experts of a layer: more than any published model has, and few enough to list.
const MAX_EXPERTS: usize = 1024;

/// Whether `path` names a GGUF file and not a model folder.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")) && !path.is_dir()
}

/// The header of a GGUF file, or of the first part of a split one.
pub fn header(path: &Path) -> Result<Gguf, ModelError> {
    Gguf::open(path).map_err(|error| refused(path, &error))
}

/// What a folder's `tokenizer_config.json` says: the chat template and the special tokens.
pub fn tokenizer_config(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let gguf = header(path)?;
    let wrong = |error: GgufError| refused(path, &error);
    let mut settings = Map::new();
    if let Some(template) = gguf.text("tokenizer.chat_template").map_err(wrong)? {
        settings.insert("chat_template".to_owned(), template.into());
    }
    let tokens = gguf.texts("tokenizer.ggml.tokens").map_err(wrong)?.unwrap_or_default();
    for name in ["bos", "eos", "unk", "pad"] {
        let key = match name {
            "unk" => "tokenizer.ggml.unknown_token_id".to_owned(),
            "pad" => "tokenizer.ggml.padding_token_id".to_owned(),
            name => format!("tokenizer.ggml.{name}_token_id"),
        };
        let id = gguf.number(&key).map_err(wrong)?.and_then(|id| usize::try_from(id).ok());
        if let Some(token) = id.and_then(|id| tokens.get(id)) {
            settings.insert(format!("{name}_token"), token.as_str().into());
        }
    }
    Ok(settings)
}

fn refused(path: &Path, error: &GgufError) -> ModelError {
    match error {
        GgufError::InFile { path, source } => ModelError::file(path, source.to_string()),
        other => ModelError::file(path, other.to_string()),
    }
}

/// A GGUF model whose files were opened and checked. No weight is read.
pub(crate) struct GgufModel {
    pub(crate) settings: Settings,
    pub(crate) checkpoint: Checkpoint,
    /// Rotary positions rotate pairs of neighbouring numbers, not the first half of a head with the second.
    interleaved: bool,
    frequencies: Option<Stored>,
}

impl GgufModel {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let files = GgufFiles::open(path).map_err(|error| refused(path, &error))?;
        let gguf = files.metadata();
        let wrong = |error: GgufError| refused(path, &error);
        let name = gguf.text("general.architecture").map_err(wrong)?.unwrap_or("unnamed");
        let Some(architecture) = Architecture::of(gguf, name).map_err(wrong)? else {
            let known = ARCHITECTURES.map(|known| known.name).join(", ");
            return Err(ModelError::config(
                path,
                "general.architecture",
                format!("is '{name}', which can't be run; {known} can"),
            ));
        };
        let mut tensors = BTreeMap::new();
        let mut opened: BTreeMap<&Path, Arc<WeightFile>> = BTreeMap::new();
        let mut frequencies = None;
        for (part, tensor) in files.tensors() {
            let file = match opened.get(part.path.as_path()) {
                Some(file) => Arc::clone(file),
                None => Arc::new(WeightFile::open(&part.path)?),
            };
            opened.insert(&part.path, Arc::clone(&file));
            let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let stored = Stored {
                file,
                name: tensor.name.clone(),
                dtype: tensor.format.name().to_owned(),
                shape: tensor.shape.iter().rev().map(|size| place(*size)).collect(),
                range: place(tensor.range.start)..place(tensor.range.end),
                packed_from: None,
                foreign: None,
            };
            if tensor.name == FREQUENCIES {
                frequencies = Some(stored);
                continue;
            }
            for (name, stored) in named(&architecture, stored)? {
                if tensors.insert(name.clone(), stored).is_some() {
                    let problem = format!("is '{name}' twice");
                    return Err(ModelError::tensor(path, &tensor.name, problem));
                }
            }
        }
        let config = architecture.config(gguf, &tensors).map_err(wrong)?;
        let settings = Settings::parse(path, config.to_string().as_bytes())?;
        let checkpoint = Checkpoint { listing: path.to_owned(), tensors };
        Ok(Self { settings, checkpoint, interleaved: architecture.interleaved, frequencies })
    }

    /// Changes what the settings describe where a GGUF file differs from a folder.
    pub(crate) fn adapt(&self, blueprint: &mut Blueprint) -> Result<(), ModelError> {
        for block in &mut blueprint.blocks {
            let dense = block.up.iter_mut().chain(&mut block.down);
            for projection in block.qkv.iter_mut().chain([&mut block.out]).chain(dense) {
                projection.layout = Layout::OutIn;
            }
        }
        blueprint.norm_offset = 0.0;
        let Some(rope) = &mut blueprint.rope else { return Ok(()) };
        rope.reordered = self.interleaved && !rope.interleaved;
        rope.interleaved = self.interleaved;
        if let Some(stored) = &self.frequencies {
            let count = rope.frequencies.len();
            if stored.format()? != BlockFormat::F32 || stored.shape != [count] {
                return Err(stored.problem(format!("must be {count} numbers in F32")));
            }
            let mut bytes = vec![0; stored.range.len()];
            stored.file.read_at(stored.range.start as u64, &mut bytes)?;
            for (frequency, bytes) in rope.frequencies.iter_mut().zip(bytes.as_chunks::<4>().0) {
                let divisor = f32::from_le_bytes(*bytes);
                if !divisor.is_normal() || divisor < 0.0 {
                    return Err(stored.problem(format!("has {divisor}, which divides nothing")));
                }
                *frequency /= divisor;
            }
        }
        Ok(())
    }
}

/// A tensor under the name that a model folder has for it; one of experts as one for each.
fn named(
    architecture: &Architecture,
    mut stored: Stored,
) -> Result<Vec<(String, Stored)>, ModelError> {
    let Some((layer, stack)) = architecture.stack(&stored.name) else {
        // The gate of a feed-forward for all tokens has one row, and then one dimension.
        if let [inputs] = stored.shape[..]
            && stored.name.ends_with("_inp_shexp.weight")
        {
            stored.shape = vec![1, inputs];
        }
        return Ok(vec![(architecture.name_in_folder(&stored.name), stored)]);
    };
    let [experts, rows, cols] = stored.shape[..] else {
        return Err(stored.problem(format!("must have 3 dimensions, but is {:?}", stored.shape)));
    };
    if experts > MAX_EXPERTS {
        return Err(stored.problem(format!("has {experts} experts, more than {MAX_EXPERTS}")));
    }
    // Rows are whole blocks, so an expert's bytes are a whole share of all.
    let size = stored.range.len() / experts.max(1);
    let one = |expert: usize| {
        let start = stored.range.start + expert * size;
        let member = Stored {
            name: format!("{}[{expert}]", stored.name),
            shape: vec![rows, cols],
            range: start..start + size,
            ..stored.clone()
        };
        (format!("{layer}.{}.weight", stack.member(expert)), member)
    };
    Ok((0..experts).map(one).collect())
}
