//! Gemma 3 (text): Gemma 2 with norms of queries and keys instead of caps, and other rotary positions in the layers with
//! sliding-window attention.

use super::blueprint::{Blueprint, Rotary, limits};
use super::gemma2;
use super::layer_types;
use super::llama::Variant;
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Gemma 3.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let variant = Variant {
        max_positions: 131_072,
        qk_norm: true,
        windows,
        ..gemma2::variant("gemma3_text", settings)?
    };
    let mut blueprint = gemma2::skeleton(settings, &variant)?;
    blueprint.scales.attention_cap = settings.positive("attn_logit_softcapping")?;
    blueprint.scales.logit_cap = settings.positive("final_logit_softcapping")?;
    let bases = (("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0));
    let (global, local) =
        layer_types::ropes(settings, blueprint.head_dim, blueprint.max_positions, bases)?;
    (blueprint.rope, blueprint.local_rope) = (Some(global), Some(local));
    for block in blueprint.blocks.iter_mut().filter(|block| block.window.is_some()) {
        block.rotary = Rotary::Local;
    }
    Ok(blueprint)
}

fn windows(settings: &Settings, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let window = settings.count("sliding_window", limits::POSITIONS)?.or(Some(4096));
    let pattern = settings.count("sliding_window_pattern", limits::LAYERS)?.unwrap_or(6);
    layer_types::windows(settings, layers, window, |layer| !(layer + 1).is_multiple_of(pattern))
}
