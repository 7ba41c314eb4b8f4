//! GPT-2: learned positions, layer norms, weight matrices stored with inputs as rows.

use super::activation::Activation;
use super::blueprint::{
    Block, Blueprint, Embeddings, Head, NormKind, Projection, QkvSplit, Residual, Rotary, Scales,
    limits, whole_heads,
};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a GPT-2.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    if settings.flag("add_cross_attention")?.unwrap_or(false) {
        return Err(settings.problem("add_cross_attention", "is true, which is not supported"));
    }
    let either = |short: &str, long: &str, range, default: usize| -> Result<usize, ModelError> {
        let key = if settings.has(short) { short } else { long };
        Ok(settings.count(key, range)?.unwrap_or(default))
    };
    let hidden = either("n_embd", "hidden_size", limits::WIDTH, 768)?;
    let layers = either("n_layer", "num_hidden_layers", limits::LAYERS, 12)?;
    let heads = either("n_head", "num_attention_heads", limits::HEADS, 12)?;
    let max_positions = either("n_positions", "max_position_embeddings", limits::POSITIONS, 1024)?;
    let vocab = settings.count("vocab_size", limits::VOCAB)?.unwrap_or(50_257);
    let inner = settings.count("n_inner", limits::WIDTH)?.unwrap_or(4 * hidden);
    let head_dim = whole_heads(settings, "n_head", hidden, heads)?;
    let scaled = settings.flag("scale_attn_weights")?.unwrap_or(true);
    let by_layer = settings.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    let blocks = (0..layers)
        .map(|layer| {
            let mut scale = if scaled { (head_dim as f64).powf(-0.5) } else { 1.0 };
            if by_layer {
                scale /= (layer + 1) as f64;
            }
            Block {
                attention_norm: Some(format!("h.{layer}.ln_1")),
                qkv: vec![Projection::conv1d(
                    &format!("h.{layer}.attn.c_attn"),
                    hidden,
                    3 * hidden,
                )],
                qk_norm: None,
                out: Projection::conv1d(&format!("h.{layer}.attn.c_proj"), hidden, hidden),
                mlp_norm: Some(format!("h.{layer}.ln_2")),
                up: vec![Projection::conv1d(&format!("h.{layer}.mlp.c_fc"), hidden, inner)],
                down: Some(Projection::conv1d(&format!("h.{layer}.mlp.c_proj"), inner, hidden)),
                experts: None,
                rotary: Rotary::Global,
                post_norms: None,
                window: None,
                scale,
            }
        })
        .collect();
    Ok(Blueprint {
        family: "gpt2",
        prefix: "transformer.",
        vocab,
        hidden,
        heads,
        kv_heads: heads,
        head_dim,
        max_positions,
        embeddings: Embeddings {
            tokens: "wte.weight".to_owned(),
            positions: Some("wpe.weight".to_owned()),
            first_position: 0,
            segments: None,
            norm: None,
        },
        rope: None,
        local_rope: None,
        norm: NormKind::Layer,
        norm_offset: 0.0,
        eps: settings.positive("layer_norm_epsilon")?.unwrap_or(1e-5),
        residual: Residual::Serial,
        causal: true,
        split: QkvSplit::Blocks,
        qk_norm_over_all: false,
        fused_gate: false,
        scales: Scales::default(),
        activation: Activation::read(settings, "activation_function", "gelu_new")?,
        blocks,
        final_norm: Some("ln_f".to_owned()),
        head: if settings.flag("tie_word_embeddings")?.unwrap_or(true) {
            Head::Tied
        } else {
            Head::Own("lm_head.weight".to_owned())
        },
        // The causal mask, which old checkpoints carry as buffers.
        classifier: None,
        ignored_endings: &["attn.bias", "attn.masked_bias"],
        ignored_beginnings: &[],
    })
}
