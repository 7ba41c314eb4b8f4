//! Mistral: Llama with a sliding window over every layer.

use super::blueprint::{Blueprint, limits};
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Mistral.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    llama::variant(
        settings,
        &Variant {
            kv_heads: Some(8),
            max_positions: 4096 * 32,
            windows,
            ..Variant::plain("mistral")
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
