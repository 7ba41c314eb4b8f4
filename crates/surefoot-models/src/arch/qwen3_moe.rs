//! Qwen3-MoE: Qwen3 with experts in most layers.

use super::blueprint::Blueprint;
use super::experts;
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen3-MoE.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(
        settings,
        &Variant {
            kv_heads: Some(4),
            max_positions: 32_768,
            mlp_bias: false,
            qk_norm: true,
            windows: llama::qwen_windows,
            ..Variant::with_biases("qwen3_moe", settings)?
        },
    )?;
    experts::put_as_qwen(settings, &mut blueprint, None)?;
    Ok(blueprint)
}
