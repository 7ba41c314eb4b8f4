//! A Llama of any size with random weights, made on the spot.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// How weights are stored.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "not every test that makes a model makes one of each")]
pub(crate) enum Dtype {
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

impl Dtype {
    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Writes a model whose matrices take about `bytes` in their file; returns how many they take.
pub(crate) fn llama(folder: &Path, bytes: u64, dtype: Dtype) -> u64 {
    let of_block =
        HIDDEN * HIDDEN * 2 + HIDDEN * HIDDEN / HEADS * KV_HEADS * 2 + 3 * HIDDEN * INNER;
    let layers = (bytes as usize / dtype.size() - VOCAB * HIDDEN).div_ceil(of_block);
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "intermediate_size": {INNER},
        "num_hidden_layers": {layers}, "num_attention_heads": {HEADS},
        "num_key_value_heads": {KV_HEADS}, "vocab_size": {VOCAB}, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "tie_word_embeddings": false}}"#
    );
    std::fs::write(folder.join("config.json"), config).unwrap();
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
    write(&folder.join("model.safetensors"), &tensors, dtype);
    ((layers * of_block + VOCAB * HIDDEN) * dtype.size()) as u64
}

fn write(path: &Path, tensors: &[(String, Vec<usize>)], dtype: Dtype) {
    let name = match dtype {
        Dtype::F32 => "F32",
        Dtype::Bf16 => "BF16",
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
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut state = 1_u64;
    for (_, shape) in tensors {
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let uniform = (state >> 40) as f32 / (1_u32 << 24) as f32 - 0.5;
            let weight = if shape.len() == 1 { 1.0 + uniform * 0.2 } else { uniform * 0.1 };
            match dtype {
                Dtype::F32 => file.write_all(&weight.to_le_bytes()).unwrap(),
                Dtype::Bf16 => file.write_all(&weight.to_le_bytes()[2..]).unwrap(),
            }
        }
    }
    file.into_inner().unwrap();
}
