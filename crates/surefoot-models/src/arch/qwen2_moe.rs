//! Qwen2-MoE: Qwen2 with experts in most layers, and a feed-forward beside them that all tokens go through.

use super::blueprint::{Blueprint, limits};
use super::experts::{self, Naming};
use super::llama::{self, Kin};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Qwen2-MoE.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::kin(
        settings,
        &Kin {
            family: "qwen2_moe",
            kv_heads: Some(16),
            head_dim: None,
            max_positions: 32_768,
            qkv_bias: settings.flag("qkv_bias")?.unwrap_or(true),
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rotary_share: None,
            windows: llama::qwen_windows,
        },
    )?;
    let counts = experts::counts(settings, ["num_experts", "num_local_experts"])?;
    let naming = Naming {
        part: "mlp",
        projections: ["gate_proj", "up_proj", "down_proj"],
        inner: settings.needed("moe_intermediate_size", limits::WIDTH)?,
        normalize: settings.flag("norm_topk_prob")?.unwrap_or(false),
    };
    let shared = settings.needed("shared_expert_intermediate_size", limits::WIDTH)?;
    let sparse = experts::sparse_layers(settings, blueprint.blocks.len())?;
    for layer in (0..sparse.len()).filter(|layer| sparse[*layer]) {
        experts::put(settings, &mut blueprint, layer, &naming, counts, Some(shared))?;
    }
    Ok(blueprint)
}
