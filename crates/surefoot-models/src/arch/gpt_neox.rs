//! GPT-NeoX (Pythia): a share of each head is rotated, queries, keys and values are stored by
//! head, and attention and feed-forward may run side by side.

use super::activation::Activation;
use super::blueprint::{
    Block, Blueprint, Embeddings, Head, NormKind, Projection, QkvSplit, Residual, Rotary, Scales,
    limits, whole_heads,
};
use super::rope::{self, Spelling};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a GPT-NeoX.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let hidden = settings.needed("hidden_size", limits::WIDTH)?;
    let inner = settings.needed("intermediate_size", limits::WIDTH)?;
    let layers = settings.needed("num_hidden_layers", limits::LAYERS)?;
    let heads = settings.needed("num_attention_heads", limits::HEADS)?;
    let vocab = settings.needed("vocab_size", limits::VOCAB)?;
    let head_dim = whole_heads(settings, "num_attention_heads", hidden, heads)?;
    let max_positions =
        settings.count("max_position_embeddings", limits::POSITIONS)?.unwrap_or(2048);
    let rope = rope::read(
        settings,
        head_dim,
        &Spelling {
            base: ("rotary_emb_base", 10_000.0),
            share: Some(("rotary_pct", 0.25)),
            max_positions,
        },
    )?;
    let bias = settings.flag("attention_bias")?.unwrap_or(true);
    let blocks = (0..layers)
        .map(|layer| {
            let attention = format!("layers.{layer}.attention");
            let mlp = format!("layers.{layer}.mlp");
            Block {
                attention_norm: Some(format!("layers.{layer}.input_layernorm")),
                qkv: vec![Projection::linear(
                    &format!("{attention}.query_key_value"),
                    hidden,
                    3 * hidden,
                    bias,
                )],
                qk_norm: None,
                out: Projection::linear(&format!("{attention}.dense"), hidden, hidden, bias),
                mlp_norm: Some(format!("layers.{layer}.post_attention_layernorm")),
                up: vec![Projection::linear(&format!("{mlp}.dense_h_to_4h"), hidden, inner, true)],
                down: Some(Projection::linear(
                    &format!("{mlp}.dense_4h_to_h"),
                    inner,
                    hidden,
                    true,
                )),
                experts: None,
                rotary: Rotary::Global,
                post_norms: None,
                window: None,
                scale: (head_dim as f64).powf(-0.5),
            }
        })
        .collect();
    Ok(Blueprint {
        family: "gpt_neox",
        prefix: "gpt_neox.",
        vocab,
        hidden,
        heads,
        kv_heads: heads,
        head_dim,
        max_positions,
        embeddings: Embeddings {
            tokens: "embed_in.weight".to_owned(),
            positions: None,
            first_position: 0,
            segments: None,
            norm: None,
        },
        rope: Some(rope),
        local_rope: None,
        norm: NormKind::Layer,
        norm_offset: 0.0,
        eps: settings.positive("layer_norm_eps")?.unwrap_or(1e-5),
        residual: if settings.flag("use_parallel_residual")?.unwrap_or(true) {
            Residual::Parallel
        } else {
            Residual::Serial
        },
        causal: true,
        split: QkvSplit::PerHead,
        qk_norm_over_all: false,
        fused_gate: false,
        scales: Scales::default(),
        activation: Activation::read(settings, "hidden_act", "gelu")?,
        blocks,
        final_norm: Some("final_layer_norm".to_owned()),
        head: if settings.flag("tie_word_embeddings")?.unwrap_or(false) {
            Head::Tied
        } else {
            Head::Own("embed_out.weight".to_owned())
        },
        classifier: None,
        ignored_endings: &["attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"],
        ignored_beginnings: &[],
    })
}
