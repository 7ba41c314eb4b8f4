//! Qwen3: Llama with a norm over each head's queries and keys.

use super::blueprint::Blueprint;
use super::llama::{self, Kin};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen3.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let attention_bias = settings.flag("attention_bias")?.unwrap_or(false);
    llama::kin(
        settings,
        &Kin {
            family: "qwen3",
            kv_heads: Some(32),
            head_dim: Some(128),
            max_positions: 32_768,
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias: false,
            qk_norm: true,
            rotary_share: None,
            windows: llama::qwen_windows,
        },
    )
}
