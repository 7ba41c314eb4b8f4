//! Granite: Llama with factors on embeddings, attention, what blocks add, and logits.

use super::blueprint::{Blueprint, Scales};
use super::llama::{self, Kin};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes one.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let attention_bias = settings.flag("attention_bias")?.unwrap_or(false);
    let mut blueprint = llama::kin(
        settings,
        &Kin {
            family: "granite",
            kv_heads: None,
            head_dim: None,
            max_positions: 2048,
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias: settings.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: false,
            rotary_share: None,
            windows: |_, layers| Ok(vec![None; layers]),
        },
    )?;
    let factor = |key: &str| Ok::<_, ModelError>(settings.positive(key)?.unwrap_or(1.0));
    let attention = factor("attention_multiplier")?;
    blueprint.blocks.iter_mut().for_each(|block| block.scale = attention);
    blueprint.scales = Scales {
        embedding: factor("embedding_multiplier")?,
        residual: factor("residual_multiplier")?,
        logits: 1.0 / factor("logits_scaling")?,
    };
    Ok(blueprint)
}
