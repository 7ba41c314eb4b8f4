//! OLMo 2: Llama with norms after attention and feed-forward instead of before them, and norms over all queries and all keys.

use super::blueprint::{Blueprint, Residual};
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes an OLMo 2.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(
        settings,
        &Variant { qk_norm: true, mlp_bias: false, ..Variant::with_biases("olmo2", settings)? },
    )?;
    blueprint.qk_norm_over_all = true;
    blueprint.residual = Residual::NormedHalves;
    for (layer, block) in blueprint.blocks.iter_mut().enumerate() {
        block.attention_norm = Some(format!("layers.{layer}.post_attention_layernorm"));
        block.mlp_norm = Some(format!("layers.{layer}.post_feedforward_layernorm"));
    }
    Ok(blueprint)
}
