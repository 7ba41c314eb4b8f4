//! Qwen2: Llama with biases of queries, keys and values.

use super::blueprint::Blueprint;
use super::llama::{self, Kin};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen2.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    llama::kin(
        settings,
        &Kin {
            family: "qwen2",
            kv_heads: Some(32),
            head_dim: None,
            max_positions: 32_768,
            qkv_bias: true,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rotary_share: None,
            windows: llama::qwen_windows,
        },
    )
}
