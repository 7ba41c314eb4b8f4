//! Phi-3: Llama with one fused projection for queries, keys and values, and one for gate and up.

use super::blueprint::{Blueprint, Projection, QkvSplit, limits};
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Phi-3.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(
        settings,
        &Variant {
            max_positions: 4096,
            rotary_share: Some(("partial_rotary_factor", 1.0)),
            windows: |settings, layers| {
                Ok(vec![settings.count("sliding_window", limits::POSITIONS)?; layers])
            },
            ..Variant::plain("phi3")
        },
    )?;
    let (hidden, dim) = (blueprint.hidden, blueprint.head_dim);
    let outputs = (blueprint.heads + 2 * blueprint.kv_heads) * dim;
    let inner = blueprint.inner();
    blueprint.split = QkvSplit::Blocks;
    blueprint.fused_gate = true;
    for (layer, block) in blueprint.blocks.iter_mut().enumerate() {
        let name = |part: &str| format!("layers.{layer}.{part}");
        block.qkv = vec![Projection::linear(&name("self_attn.qkv_proj"), hidden, outputs, false)];
        block.up = vec![Projection::linear(&name("mlp.gate_up_proj"), hidden, 2 * inner, false)];
    }
    Ok(blueprint)
}
