//! Qwen2: Llama with biases of queries, keys and values.

use super::blueprint::Blueprint;
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen2.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    llama::variant(
        settings,
        &Variant {
            kv_heads: Some(32),
            max_positions: 32_768,
            qkv_bias: true,
            windows: llama::qwen_windows,
            ..Variant::plain("qwen2")
        },
    )
}
