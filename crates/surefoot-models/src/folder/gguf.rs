//! Reads a GGUF file as if it were a model folder: its metadata become the settings, and its tensors get
//! the names that they have in a folder.
//!
//! Files of the architectures `llama`, `qwen2`, `qwen3` and `gpt2` can be run. What differs from a folder:
//!
//! - matrices always have outputs as rows (GPT-2's folders have inputs);
//! - queries and keys of `llama` are stored so that pairs to be rotated are neighbours
//!   ([`Rope::interleaved`](crate::arch::rope::Rope::interleaved));
//! - frequencies of Llama 3 come as divisors in the tensor `rope_freqs.weight`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use surefoot_quant::BlockFormat;
use surefoot_quant::gguf::{Gguf, GgufError, GgufFiles};

use super::checkpoint::{Checkpoint, Stored};
use super::mapped::WeightFile;
use super::settings::Settings;
use crate::arch::blueprint::{Blueprint, Layout};
use crate::error::ModelError;

/// The architectures that can be run.
const ARCHITECTURES: [&str; 4] = ["llama", "qwen2", "qwen3", "gpt2"];
const FREQUENCIES: &str = "rope_freqs.weight";
/// Control tokens that end a turn or a text, in whatever vocabulary they are.
const NAMED_ENDS: [&str; 7] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "</s>"];

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
        let architecture = gguf
            .text("general.architecture")
            .map_err(|error| refused(path, &error))?
            .unwrap_or("unnamed");
        if !ARCHITECTURES.contains(&architecture) {
            return Err(ModelError::config(
                path,
                "general.architecture",
                format!(
                    "is '{architecture}', which can't be run; {} can",
                    ARCHITECTURES.join(", ")
                ),
            ));
        }
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
            };
            if tensor.name == FREQUENCIES {
                frequencies = Some(stored);
                continue;
            }
            let name = name_in_folder(architecture, &tensor.name);
            if tensors.insert(name.clone(), stored).is_some() {
                return Err(ModelError::tensor(path, &tensor.name, format!("is '{name}' twice")));
            }
        }
        let config = config(gguf, architecture, &tensors).map_err(|error| refused(path, &error))?;
        let settings = Settings::parse(path, config.to_string().as_bytes())?;
        let checkpoint = Checkpoint { listing: path.to_owned(), tensors };
        Ok(Self { settings, checkpoint, interleaved: architecture == "llama", frequencies })
    }

    /// Changes what the settings describe where a GGUF file differs from a folder.
    pub(crate) fn adapt(&self, blueprint: &mut Blueprint) -> Result<(), ModelError> {
        for block in &mut blueprint.blocks {
            let dense = block.up.iter_mut().chain(&mut block.down);
            for projection in block.qkv.iter_mut().chain([&mut block.out]).chain(dense) {
                projection.layout = Layout::OutIn;
            }
        }
        let Some(rope) = &mut blueprint.rope else { return Ok(()) };
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

/// The tensor's name in a model folder; one that is not known keeps its own, and is refused later.
fn name_in_folder(architecture: &str, name: &str) -> String {
    let gpt2 = architecture == "gpt2";
    let whole = match (gpt2, name) {
        (false, "token_embd.weight") => "model.embed_tokens.weight",
        (false, "output_norm.weight") => "model.norm.weight",
        (true, "token_embd.weight") => "transformer.wte.weight",
        (true, "position_embd.weight") => "transformer.wpe.weight",
        (true, "output_norm.weight") => "transformer.ln_f.weight",
        (true, "output_norm.bias") => "transformer.ln_f.bias",
        (_, "output.weight") => "lm_head.weight",
        _ => "",
    };
    if !whole.is_empty() {
        return whole.to_owned();
    }
    let of_block = || {
        let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let part = match (gpt2, part) {
            (false, "attn_norm") => "input_layernorm",
            (false, "attn_q") => "self_attn.q_proj",
            (false, "attn_k") => "self_attn.k_proj",
            (false, "attn_v") => "self_attn.v_proj",
            (false, "attn_output") => "self_attn.o_proj",
            (false, "attn_q_norm") => "self_attn.q_norm",
            (false, "attn_k_norm") => "self_attn.k_norm",
            (false, "ffn_norm") => "post_attention_layernorm",
            (false, "ffn_gate") => "mlp.gate_proj",
            (false, "ffn_up") => "mlp.up_proj",
            (false, "ffn_down") => "mlp.down_proj",
            (true, "attn_norm") => "ln_1",
            (true, "attn_qkv") => "attn.c_attn",
            (true, "attn_output") => "attn.c_proj",
            (true, "ffn_norm") => "ln_2",
            (true, "ffn_up") => "mlp.c_fc",
            (true, "ffn_down") => "mlp.c_proj",
            _ => return None,
        };
        let blocks = if gpt2 { "transformer.h" } else { "model.layers" };
        Some(format!("{blocks}.{block}.{part}.{kind}"))
    };
    of_block().unwrap_or_else(|| name.to_owned())
}

/// The metadata as a folder's `config.json`.
fn config(
    gguf: &Gguf,
    architecture: &str,
    tensors: &BTreeMap<String, Stored>,
) -> Result<Value, GgufError> {
    let mut config = Map::new();
    config.insert("model_type".to_owned(), architecture.into());
    let gpt2 = architecture == "gpt2";
    let numbers = [
        ("embedding_length", if gpt2 { "n_embd" } else { "hidden_size" }),
        ("block_count", if gpt2 { "n_layer" } else { "num_hidden_layers" }),
        ("feed_forward_length", if gpt2 { "n_inner" } else { "intermediate_size" }),
        ("context_length", if gpt2 { "n_positions" } else { "max_position_embeddings" }),
        ("attention.head_count", if gpt2 { "n_head" } else { "num_attention_heads" }),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
    ];
    for (key, name) in numbers {
        if let Some(number) = gguf.number(&format!("{architecture}.{key}"))? {
            config.insert(name.to_owned(), number.into());
        }
    }
    let floats = [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        ("rope.freq_base", "rope_theta"),
    ];
    for (key, name) in floats {
        if let Some(number) = gguf.float(&format!("{architecture}.{key}"))? {
            config.insert(name.to_owned(), as_written(number));
        }
    }
    if let Some(scaling) = scaling(gguf, architecture)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    let table = if gpt2 { "transformer.wte.weight" } else { "model.embed_tokens.weight" };
    let vocab = tensors.get(table).and_then(|table| table.shape.first().copied());
    config.insert("vocab_size".to_owned(), vocab.unwrap_or(0).into());
    config
        .insert("tie_word_embeddings".to_owned(), (!tensors.contains_key("lm_head.weight")).into());
    let biased = |part: &str| tensors.contains_key(&format!("model.layers.0.{part}.bias"));
    config.insert("attention_bias".to_owned(), biased("self_attn.o_proj").into());
    config.insert("mlp_bias".to_owned(), biased("mlp.down_proj").into());
    config.insert("eos_token_id".to_owned(), ends(gguf)?.into());
    Ok(Value::Object(config))
}

/// How positions are stretched, as a folder's `rope_scaling` says it.
fn scaling(gguf: &Gguf, architecture: &str) -> Result<Option<Value>, GgufError> {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let kind = match gguf.text(&key("type"))? {
        None | Some("none") => return Ok(None),
        Some(kind) => kind,
    };
    let factor = gguf.float(&key("factor"))?.map_or(Value::Null, as_written);
    let context = gguf.number(&key("original_context_length"))?;
    Ok(Some(json!({
        "rope_type": kind, "factor": factor, "original_max_position_embeddings": context,
    })))
}

/// The tokens that end a text: those that the metadata name, and control tokens of known names.
fn ends(gguf: &Gguf) -> Result<Vec<u64>, GgufError> {
    let mut ends = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ends.extend(gguf.number(&format!("tokenizer.ggml.{name}_token_id"))?);
    }
    let tokens = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let kinds = gguf.metadata.get("tokenizer.ggml.token_type").and_then(|kinds| kinds.as_i32s());
    for (id, token) in tokens.iter().enumerate() {
        let control = kinds.and_then(|kinds| kinds.get(id)) == Some(&3);
        if control && NAMED_ENDS.contains(&token.as_str()) && !ends.contains(&(id as u64)) {
            ends.push(id as u64);
        }
    }
    Ok(ends)
}

/// A number that was rounded to 32 bits, as its shortest spelling: what configurations had before.
fn as_written(number: f64) -> Value {
    (number as f32).to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
