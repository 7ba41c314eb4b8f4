//! Mixtral: Mistral with experts in every layer.

use super::blueprint::{Blueprint, limits};
use super::experts::{self, Naming};
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Mixtral.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(
        settings,
        &Variant {
            kv_heads: Some(8),
            max_positions: 4096 * 32,
            windows: |settings, layers| {
                Ok(vec![settings.count("sliding_window", limits::POSITIONS)?; layers])
            },
            ..Variant::plain("mixtral")
        },
    )?;
    let counts = experts::counts(settings, ["num_local_experts", "num_experts"])?;
    let naming = Naming {
        part: "block_sparse_moe",
        projections: ["w1", "w3", "w2"],
        inner: settings.needed("intermediate_size", limits::WIDTH)?,
        normalize: true,
    };
    for layer in 0..blueprint.blocks.len() {
        experts::put(settings, &mut blueprint, layer, &naming, counts, None)?;
    }
    Ok(blueprint)
}
