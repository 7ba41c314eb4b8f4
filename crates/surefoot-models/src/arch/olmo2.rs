//! OLMo 2: Llama with norms behind attention and feed-forward instead of before them, and norms over all queries and all keys.

use super::blueprint::{Blueprint, Residual};
use super::llama::{self, Kin};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes one.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let attention_bias = settings.flag("attention_bias")?.unwrap_or(false);
    let mut blueprint = llama::kin(
        settings,
        &Kin {
            family: "olmo2",
            kv_heads: None,
            head_dim: None,
            max_positions: 2048,
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias: false,
            qk_norm: true,
            rotary_share: None,
            windows: |_, layers| Ok(vec![None; layers]),
        },
    )?;
    blueprint.qk_norm_over_all = true;
    blueprint.residual = Residual::NormedHalves;
    for (layer, block) in blueprint.blocks.iter_mut().enumerate() {
        block.attention_norm = format!("layers.{layer}.post_attention_layernorm");
        block.mlp_norm = format!("layers.{layer}.post_feedforward_layernorm");
    }
    Ok(blueprint)
}
