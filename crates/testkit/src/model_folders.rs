//! Folders of models with random weights, written on the spot.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// How weights are stored.
#[derive(Clone, Copy, Debug)]
pub enum FolderDtype {
    /// Four bytes.
    F32,
    /// The upper two of them.
    Bf16,
}

const HIDDEN: usize = 768;
const INNER: usize = 2048;
const HEADS: usize = 12;
const KV_HEADS: usize = 4;
const VOCAB: usize = 4096;

const SMALL: usize = 256;
const SMALL_LAYERS: usize = 4;

impl FolderDtype {
    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Writes a Llama whose matrices take about `bytes` in their file; returns how many they take.
pub fn llama(folder: &Path, bytes: u64, dtype: FolderDtype) -> u64 {
    let of_block =
        HIDDEN * HIDDEN * 2 + HIDDEN * HIDDEN / HEADS * KV_HEADS * 2 + 3 * HIDDEN * INNER;
    let layers = (bytes as usize / dtype.size() - VOCAB * HIDDEN).div_ceil(of_block);
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "intermediate_size": {INNER},
        "num_hidden_layers": {layers}, "num_attention_heads": {HEADS},
        "num_key_value_heads": {KV_HEADS}, "vocab_size": {VOCAB}, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "tie_word_embeddings": false}}"#
    );
    std::fs::write(folder.join("config.json"), config).expect("a model is written");
    let kv = HIDDEN / HEADS * KV_HEADS;
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
    ];
    for layer in 0..layers {
        for (name, shape) in [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    write(&folder.join("model.safetensors"), &tensors, dtype, 1);
    ((layers * of_block + VOCAB * HIDDEN) * dtype.size()) as u64
}

/// Writes a BERT of four small blocks.
pub fn bert(folder: &Path, vocab: usize) {
    let inner = 4 * SMALL;
    let config = format!(
        r#"{{"model_type": "bert", "hidden_size": {SMALL}, "intermediate_size": {inner},
        "num_hidden_layers": {SMALL_LAYERS}, "num_attention_heads": 8, "vocab_size": {vocab},
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "hidden_act": "gelu"}}"#
    );
    std::fs::write(folder.join("config.json"), config).expect("a model is written");
    let mut tensors = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![vocab, SMALL]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![512, SMALL]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, SMALL]),
    ];
    let mut vectors = vec![norm("embeddings.LayerNorm")];
    for layer in 0..SMALL_LAYERS {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for (part, out, inputs) in [
            ("attention.self.query", SMALL, SMALL),
            ("attention.self.key", SMALL, SMALL),
            ("attention.self.value", SMALL, SMALL),
            ("attention.output.dense", SMALL, SMALL),
            ("intermediate.dense", inner, SMALL),
            ("output.dense", SMALL, inner),
        ] {
            tensors.push((name(&format!("{part}.weight")), vec![out, inputs]));
            tensors.push((name(&format!("{part}.bias")), vec![out]));
        }
        vectors.push(norm(&name("attention.output.LayerNorm")));
        vectors.push(norm(&name("output.LayerNorm")));
    }
    tensors.extend(vectors.into_iter().flatten());
    write(&folder.join("model.safetensors"), &tensors, FolderDtype::F32, 1);
}

/// Writes a GPT-2 of four small blocks.
pub fn gpt2(folder: &Path, vocab: usize) {
    let config = format!(
        r#"{{"model_type": "gpt2", "n_embd": {SMALL}, "n_head": 8, "n_layer": {SMALL_LAYERS},
        "n_positions": 256, "vocab_size": {vocab}, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new", "tie_word_embeddings": true}}"#
    );
    std::fs::write(folder.join("config.json"), config).expect("a model is written");
    let mut tensors = vec![
        ("transformer.wte.weight".to_owned(), vec![vocab, SMALL]),
        ("transformer.wpe.weight".to_owned(), vec![256, SMALL]),
    ];
    tensors.extend(norm("transformer.ln_f"));
    for layer in 0..SMALL_LAYERS {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        for (part, inputs, out) in [
            ("attn.c_attn", SMALL, 3 * SMALL),
            ("attn.c_proj", SMALL, SMALL),
            ("mlp.c_fc", SMALL, 4 * SMALL),
            ("mlp.c_proj", 4 * SMALL, SMALL),
        ] {
            tensors.push((name(&format!("{part}.weight")), vec![inputs, out]));
            tensors.push((name(&format!("{part}.bias")), vec![out]));
        }
        tensors.extend(norm(&name("ln_1")));
        tensors.extend(norm(&name("ln_2")));
    }
    write(&folder.join("model.safetensors"), &tensors, FolderDtype::F32, 1);
}

/// Writes an adapter of rank 4 in PEFT's format for the projections `(module, inputs, outputs)` of a model, strong enough
/// to change what the model says. Another seed gives another adapter.
pub fn adapter(folder: &Path, projections: &[(String, usize, usize)], seed: u64) {
    const RANK: usize = 4;
    let names: Vec<&str> = projections.iter().map(|(module, ..)| module.as_str()).collect();
    let config = format!(
        r#"{{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": {RANK}, "lora_alpha": 200,
        "bias": "none", "target_modules": {names:?}}}"#
    );
    std::fs::create_dir_all(folder).expect("an adapter is written");
    std::fs::write(folder.join("adapter_config.json"), config).expect("an adapter is written");
    let mut tensors = Vec::new();
    for (module, inputs, outputs) in projections {
        let name = |side: &str| format!("base_model.model.{module}.lora_{side}.weight");
        tensors.push((name("A"), vec![RANK, *inputs]));
        tensors.push((name("B"), vec![*outputs, RANK]));
    }
    write(&folder.join("adapter_model.safetensors"), &tensors, FolderDtype::F32, seed);
}

fn norm(name: &str) -> [(String, Vec<usize>); 2] {
    [(format!("{name}.weight"), vec![SMALL]), (format!("{name}.bias"), vec![SMALL])]
}

fn write(path: &Path, tensors: &[(String, Vec<usize>)], dtype: FolderDtype, seed: u64) {
    let name = match dtype {
        FolderDtype::F32 => "F32",
        FolderDtype::Bf16 => "BF16",
    };
    let mut at = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(tensor, shape)| {
            let end = at + shape.iter().product::<usize>() * dtype.size();
            let entry = format!(
                r#""{tensor}": {{"dtype": "{name}", "shape": {shape:?}, "data_offsets": [{at}, {end}]}}"#
            );
            at = end;
            entry
        })
        .collect();
    let mut header = format!("{{{}}}", entries.join(", "));
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(File::create(path).expect("a model is written"));
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("a model is written");
    file.write_all(header.as_bytes()).expect("a model is written");
    let mut random = fastrand::Rng::with_seed(seed);
    for (tensor, shape) in tensors {
        let is_scale = shape.len() == 1 && tensor.ends_with("weight");
        for _ in 0..shape.iter().product::<usize>() {
            let uniform = random.f32() - 0.5;
            let weight = if is_scale { 1.0 + uniform * 0.2 } else { uniform * 0.1 };
            match dtype {
                FolderDtype::F32 => {
                    file.write_all(&weight.to_le_bytes()).expect("a model is written")
                }
                FolderDtype::Bf16 => {
                    file.write_all(&weight.to_le_bytes()[2..]).expect("a model is written")
                }
            }
        }
    }
    file.into_inner().expect("a model is written");
}
