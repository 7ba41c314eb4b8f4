//! SmolLM3: Llama in which every fourth layer has no rotary positions.

use super::blueprint::{Blueprint, Head, Rotary, limits};
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a SmolLM3.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(
        settings,
        &Variant {
            kv_heads: Some(4),
            max_positions: 32_768,
            windows: llama::qwen_windows,
            ..Variant::with_biases("smollm3", settings)?
        },
    )?;
    let rotated = settings.counts("no_rope_layers")?;
    let interval = settings.count("no_rope_layer_interval", limits::LAYERS)?.unwrap_or(4);
    if !rotated.is_empty() && rotated.len() != blueprint.blocks.len() {
        let problem =
            format!("has {} entries for {} layers", rotated.len(), blueprint.blocks.len());
        return Err(settings.problem("no_rope_layers", problem));
    }
    for (layer, block) in blueprint.blocks.iter_mut().enumerate() {
        // The list says 1 for a layer that is rotated, whatever its name.
        let is_rotated = match rotated.get(layer) {
            Some(rotated) => *rotated != 0,
            None => !(layer + 1).is_multiple_of(interval),
        };
        block.rotary = if is_rotated { Rotary::Global } else { Rotary::None };
    }
    if !settings.mentions("tie_word_embeddings") {
        blueprint.head = Head::Tied;
    }
    Ok(blueprint)
}
