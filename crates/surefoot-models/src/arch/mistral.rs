//! Mistral: Llama with a sliding window over every layer.

use super::blueprint::{Blueprint, limits};
use super::llama::{self, Kin};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Mistral.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    llama::kin(
        settings,
        &Kin {
            family: "mistral",
            kv_heads: Some(8),
            head_dim: None,
            max_positions: 4096 * 32,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rotary_share: None,
            windows,
        },
    )
}

fn windows(settings: &Settings, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    // Files that leave the key out mean the default; null means none.
    let window = if settings.mentions("sliding_window") {
        settings.count("sliding_window", limits::POSITIONS)?
    } else {
        Some(4096)
    };
    Ok(vec![window; layers])
}
