//! Qwen3: Llama with a norm over each head's queries and keys.

use super::blueprint::Blueprint;
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen3.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    llama::variant(
        settings,
        &Variant {
            kv_heads: Some(32),
            head_dim: Some(128),
            max_positions: 32_768,
            qk_norm: true,
            windows: llama::qwen_windows,
            mlp_bias: false,
            ..Variant::with_biases("qwen3", settings)?
        },
    )
}
