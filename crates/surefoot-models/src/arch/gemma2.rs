//! Gemma 2, and the skeleton that Gemma 3 shares with it: norms before and after attention and feed-forward, whose scales are
//! stored as the difference from 1; layers with sliding-window attention alternate with layers of full attention. Gemma 2 caps
//! attention scores and logits.

use super::activation::Activation;
use super::blueprint::{Blueprint, Head, Residual, Scales, limits};
use super::layer_types;
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Gemma 2.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = skeleton(settings, &Variant { windows, ..variant("gemma2", settings)? })?;
    // Left out means the default; null means that nothing is capped.
    let cap = |key: &str, default: f64| match settings.mentions(key) {
        true => settings.positive(key),
        false => Ok(Some(default)),
    };
    blueprint.scales.attention_cap = cap("attn_logit_softcapping", 50.0)?;
    blueprint.scales.logit_cap = cap("final_logit_softcapping", 30.0)?;
    Ok(blueprint)
}

fn windows(settings: &Settings, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let window = settings.count("sliding_window", limits::POSITIONS)?.or(Some(4096));
    layer_types::windows(settings, layers, window, |layer| layer.is_multiple_of(2))
}

/// What Gemmas have in common beside their skeleton.
pub(super) fn variant(family: &'static str, settings: &Settings) -> Result<Variant, ModelError> {
    Ok(Variant {
        kv_heads: Some(4),
        head_dim: Some(256),
        max_positions: 8192,
        mlp_bias: false,
        ..Variant::with_biases(family, settings)?
    })
}

/// A Gemma without what its generation adds.
pub(super) fn skeleton(settings: &Settings, variant: &Variant) -> Result<Blueprint, ModelError> {
    const BIDIRECTIONAL: &str = "use_bidirectional_attention";
    if settings.flag(BIDIRECTIONAL)?.unwrap_or(false) {
        return Err(settings.problem(
            BIDIRECTIONAL,
            "is true, which is not supported: only Gemmas that see what precedes a token can be run",
        ));
    }
    let mut blueprint = llama::variant(settings, variant)?;
    blueprint.activation = Activation::read(settings, "hidden_activation", "gelu_pytorch_tanh")?;
    blueprint.residual = Residual::Sandwich;
    blueprint.norm_offset = 1.0;
    blueprint.scales = Scales { embedding: (blueprint.hidden as f64).sqrt(), ..Scales::default() };
    let scale = settings.positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5);
    for (layer, block) in blueprint.blocks.iter_mut().enumerate() {
        let name = |norm: &str| format!("layers.{layer}.{norm}_layernorm");
        block.mlp_norm = Some(name("pre_feedforward"));
        block.post_norms = Some((name("post_attention"), name("post_feedforward")));
        block.scale = scale;
    }
    if !settings.mentions("tie_word_embeddings") {
        blueprint.head = Head::Tied;
    }
    Ok(blueprint)
}
