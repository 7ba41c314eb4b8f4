//! Qwen2-MoE: Qwen2 with experts in most layers, and a feed-forward beside them that all tokens go through.

use super::blueprint::{Blueprint, limits};
use super::experts;
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen2-MoE.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(
        settings,
        &Variant {
            kv_heads: Some(16),
            max_positions: 32_768,
            qkv_bias: settings.flag("qkv_bias")?.unwrap_or(true),
            windows: llama::qwen_windows,
            ..Variant::plain("qwen2_moe")
        },
    )?;
    let shared = settings.needed("shared_expert_intermediate_size", limits::WIDTH)?;
    experts::put_as_qwen(settings, &mut blueprint, Some(shared))?;
    Ok(blueprint)
}
