//! What a GGUF file calls things, as a model folder calls them: architectures, tensors, and the metadata that stand for a
//! `config.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use surefoot_quant::gguf::{Gguf, GgufError};

use super::checkpoint::Stored;

/// An architecture of GGUF that can be run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Architecture {
    /// `general.architecture`, which also precedes the keys of its metadata.
    pub(super) name: &'static str,
    /// The `model_type` of a folder.
    family: &'static str,
    /// Whether the two dimensions that are rotated together are neighbours.
    pub(super) interleaved: bool,
    names: Names,
}

/// How a folder of the family names its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Names {
    Llama,
    Gpt2,
    Gemma,
}

const fn architecture(
    name: &'static str,
    family: &'static str,
    interleaved: bool,
    names: Names,
) -> Architecture {
    Architecture { name, family, interleaved, names }
}

const MIXTRAL: &str = "mixtral";

/// All that can be run.
pub(super) const ARCHITECTURES: [Architecture; 10] = [
    architecture("llama", "llama", true, Names::Llama),
    architecture("qwen2", "qwen2", false, Names::Llama),
    architecture("qwen3", "qwen3", false, Names::Llama),
    architecture("qwen2moe", "qwen2_moe", false, Names::Llama),
    architecture("qwen3moe", "qwen3_moe", false, Names::Llama),
    architecture("gemma2", "gemma2", false, Names::Gemma),
    architecture("gemma3", "gemma3_text", false, Names::Gemma),
    architecture("command-r", "cohere", true, Names::Llama),
    architecture("cohere2", "cohere2", true, Names::Llama),
    architecture("gpt2", "gpt2", false, Names::Gpt2),
];

/// Control tokens that end a turn or a text, in whatever vocabulary they are.
const NAMED_ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|END_OF_TURN_TOKEN|>",
    "</s>",
];

impl Architecture {
    /// The one of a file; files of Mixtral say `llama`, and have experts.
    pub(super) fn of(gguf: &Gguf, name: &str) -> Result<Option<Self>, GgufError> {
        let found = ARCHITECTURES.into_iter().find(|known| known.name == name);
        let experts = gguf.number(&format!("{name}.expert_count"))?.unwrap_or(0);
        Ok(found.map(|known| match known.family == "llama" && experts > 0 {
            true => Self { family: MIXTRAL, ..known },
            false => known,
        }))
    }

    fn is_gpt2(&self) -> bool {
        self.names == Names::Gpt2
    }

    /// The tensor's name in a model folder; one that is not known keeps its own, and is refused later.
    pub(super) fn name_in_folder(&self, name: &str) -> String {
        let whole = match (self.is_gpt2(), name) {
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
            let blocks = if self.is_gpt2() { "transformer.h" } else { "model.layers" };
            // Older files of Mixtral have a tensor for each expert: `ffn_gate.3`.
            if let Some((projection, expert)) = part.split_once('.')
                && let Some(stack) = self.experts_of(projection)
            {
                return Some(format!("{blocks}.{block}.{}.{kind}", stack.member(expert)));
            }
            Some(format!("{blocks}.{block}.{}.{kind}", self.part(part)?))
        };
        of_block().unwrap_or_else(|| name.to_owned())
    }

    fn part(&self, part: &str) -> Option<&'static str> {
        let mixtral = self.family == MIXTRAL;
        Some(match (self.names, part) {
            (Names::Gpt2, "attn_norm") => "ln_1",
            (Names::Gpt2, "attn_qkv") => "attn.c_attn",
            (Names::Gpt2, "attn_output") => "attn.c_proj",
            (Names::Gpt2, "ffn_norm") => "ln_2",
            (Names::Gpt2, "ffn_up") => "mlp.c_fc",
            (Names::Gpt2, "ffn_down") => "mlp.c_proj",
            (Names::Gpt2, _) => return None,
            (Names::Gemma, "ffn_norm") => "pre_feedforward_layernorm",
            (Names::Gemma, "post_attention_norm") => "post_attention_layernorm",
            (Names::Gemma, "post_ffw_norm") => "post_feedforward_layernorm",
            (_, "attn_norm") => "input_layernorm",
            (_, "attn_q") => "self_attn.q_proj",
            (_, "attn_k") => "self_attn.k_proj",
            (_, "attn_v") => "self_attn.v_proj",
            (_, "attn_output") => "self_attn.o_proj",
            (_, "attn_q_norm") => "self_attn.q_norm",
            (_, "attn_k_norm") => "self_attn.k_norm",
            (_, "ffn_norm") => "post_attention_layernorm",
            (_, "ffn_gate") => "mlp.gate_proj",
            (_, "ffn_up") => "mlp.up_proj",
            (_, "ffn_down") => "mlp.down_proj",
            (_, "ffn_gate_inp") if mixtral => "block_sparse_moe.gate",
            (_, "ffn_gate_inp") => "mlp.gate",
            (_, "ffn_gate_inp_shexp") => "mlp.shared_expert_gate",
            (_, "ffn_gate_shexp") => "mlp.shared_expert.gate_proj",
            (_, "ffn_up_shexp") => "mlp.shared_expert.up_proj",
            (_, "ffn_down_shexp") => "mlp.shared_expert.down_proj",
            _ => return None,
        })
    }

    /// The experts that a tensor such as `blk.0.ffn_gate_exps.weight` holds, one behind the other.
    pub(super) fn stack(&self, name: &str) -> Option<(String, Stack)> {
        let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let projection = rest.strip_suffix("_exps.weight")?;
        Some((format!("model.layers.{block}"), self.experts_of(projection)?))
    }

    fn experts_of(&self, projection: &str) -> Option<Stack> {
        let mixtral = self.family == MIXTRAL;
        let projection = match (projection, mixtral) {
            ("ffn_gate", false) => "gate_proj",
            ("ffn_up", false) => "up_proj",
            ("ffn_down", false) => "down_proj",
            ("ffn_gate", true) => "w1",
            ("ffn_up", true) => "w3",
            ("ffn_down", true) => "w2",
            _ => return None,
        };
        Some(Stack { part: if mixtral { "block_sparse_moe" } else { "mlp" }, projection })
    }

    /// The metadata as a folder's `config.json`.
    pub(super) fn config(
        &self,
        gguf: &Gguf,
        tensors: &BTreeMap<String, Stored>,
    ) -> Result<Value, GgufError> {
        let mut config = Map::new();
        config.insert("model_type".to_owned(), self.family.into());
        let gpt2 = self.is_gpt2();
        let gemma = self.names == Names::Gemma;
        let numbers = [
            ("embedding_length", if gpt2 { "n_embd" } else { "hidden_size" }),
            ("block_count", if gpt2 { "n_layer" } else { "num_hidden_layers" }),
            ("feed_forward_length", if gpt2 { "n_inner" } else { "intermediate_size" }),
            ("context_length", if gpt2 { "n_positions" } else { "max_position_embeddings" }),
            ("attention.head_count", if gpt2 { "n_head" } else { "num_attention_heads" }),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ];
        for (key, name) in numbers {
            if let Some(number) = gguf.number(&self.key(key))? {
                config.insert(name.to_owned(), number.into());
            }
        }
        let floats = [
            ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
            (
                "attention.layer_norm_epsilon",
                if gpt2 { "layer_norm_epsilon" } else { "layer_norm_eps" },
            ),
            ("rope.freq_base", "rope_theta"),
            ("rope.freq_base_swa", "rope_local_base_freq"),
            ("logit_scale", "logit_scale"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ];
        for (key, name) in floats {
            if let Some(number) = gguf.float(&self.key(key))? {
                config.insert(name.to_owned(), as_written(number));
            }
        }
        if gemma || self.family == "cohere2" {
            for (key, name) in [
                ("attention.sliding_window", "sliding_window"),
                ("attention.sliding_window_pattern", "sliding_window_pattern"),
            ] {
                if let Some(number) = gguf.number(&self.key(key))? {
                    config.insert(name.to_owned(), number.into());
                }
            }
        }
        if gemma {
            config.insert("query_pre_attn_scalar".to_owned(), self.query_scalar(gguf)?);
        }
        if self.family == "qwen3_moe" {
            config.insert("norm_topk_prob".to_owned(), true.into());
        }
        if let Some(normalize) = gguf.truth(&self.key("expert_weights_norm"))? {
            config.insert("norm_topk_prob".to_owned(), normalize.into());
        }
        if let Some(scaling) = self.scaling(gguf)? {
            config.insert("rope_scaling".to_owned(), scaling);
        }
        let table = if gpt2 { "transformer.wte.weight" } else { "model.embed_tokens.weight" };
        let vocab = tensors.get(table).and_then(|table| table.shape.first().copied());
        config.insert("vocab_size".to_owned(), vocab.unwrap_or(0).into());
        config.insert(
            "tie_word_embeddings".to_owned(),
            (!tensors.contains_key("lm_head.weight")).into(),
        );
        let biased = |part: &str| tensors.contains_key(&format!("model.layers.0.{part}.bias"));
        config.insert("attention_bias".to_owned(), biased("self_attn.o_proj").into());
        config.insert("mlp_bias".to_owned(), biased("mlp.down_proj").into());
        config.insert("eos_token_id".to_owned(), ends(gguf)?.into());
        Ok(Value::Object(config))
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// What the root is taken of that scores of a Gemma are divided by. Files don't say it: it is the width of a head, but for the
    /// models of 27 B parameters, which are known by their number of blocks.
    fn query_scalar(&self, gguf: &Gguf) -> Result<Value, GgufError> {
        let number = |key: &str| Ok::<_, GgufError>(gguf.number(&self.key(key))?.unwrap_or(0));
        let largest = if self.name == "gemma2" { 46 } else { 62 };
        let heads = number("attention.head_count")?;
        Ok(match (number("block_count")? == largest, heads) {
            (true, 1..) => (number("embedding_length")? / heads).into(),
            _ => number("attention.key_length")?.into(),
        })
    }

    /// How positions are stretched, as a folder's `rope_scaling` says it.
    fn scaling(&self, gguf: &Gguf) -> Result<Option<Value>, GgufError> {
        let key = |name: &str| self.key(&format!("rope.scaling.{name}"));
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
}

/// Matrices of all experts of a layer in one tensor.
pub(super) struct Stack {
    part: &'static str,
    projection: &'static str,
}

impl Stack {
    /// The name of one expert's matrix in a folder, without what is before and behind it.
    pub(super) fn member(&self, expert: impl std::fmt::Display) -> String {
        format!("{}.experts.{expert}.{}", self.part, self.projection)
    }
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
