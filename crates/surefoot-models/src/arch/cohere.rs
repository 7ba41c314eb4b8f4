//! Cohere's Command-R: attention and feed-forward run side by side behind one norm without a shift; rotary positions turn
//! neighbouring numbers; logits are scaled by a factor.
//! `cohere2` (Command R7B and later) adds layers with sliding-window attention, and has rotary positions in these alone.

use super::blueprint::{Blueprint, Head, NormKind, Residual, Rotary, limits};
use super::layer_types;
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Command-R.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    if settings.flag("use_qk_norm")?.unwrap_or(false) {
        return Err(settings.problem(
            "use_qk_norm",
            "is true, which is not supported: norms that differ by head (Command R+) can't be run",
        ));
    }
    skeleton(settings, "cohere", |_, layers| Ok(vec![None; layers]))
}

/// Describes a `cohere2`.
pub(crate) fn describe_2(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = skeleton(settings, "cohere2", windows)?;
    for block in blueprint.blocks.iter_mut().filter(|block| block.window.is_none()) {
        block.rotary = Rotary::None;
    }
    Ok(blueprint)
}

fn windows(settings: &Settings, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let window = settings.count("sliding_window", limits::POSITIONS)?.or(Some(4096));
    let pattern = settings.count("sliding_window_pattern", limits::LAYERS)?.unwrap_or(4);
    layer_types::windows(settings, layers, window, |layer| !(layer + 1).is_multiple_of(pattern))
}

fn skeleton(
    settings: &Settings,
    family: &'static str,
    windows: llama::Windows,
) -> Result<Blueprint, ModelError> {
    let variant = Variant {
        max_positions: 8192,
        mlp_bias: false,
        windows,
        ..Variant::with_biases(family, settings)?
    };
    let mut blueprint = llama::variant(settings, &variant)?;
    blueprint.residual = Residual::Parallel;
    blueprint.norm = NormKind::LayerWithoutShift;
    blueprint.eps = settings.positive("layer_norm_eps")?.unwrap_or(1e-5);
    blueprint.scales.logits = settings.positive("logit_scale")?.unwrap_or(0.0625);
    if let Some(rope) = &mut blueprint.rope {
        rope.interleaved = true;
    }
    blueprint.blocks.iter_mut().for_each(|block| block.mlp_norm = None);
    if !settings.mentions("tie_word_embeddings") {
        blueprint.head = Head::Tied;
    }
    Ok(blueprint)
}
