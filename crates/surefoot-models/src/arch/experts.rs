//! What the families with experts share: how many there are, how many a token goes through, and which layers have them.

use std::ops::RangeInclusive;

use super::blueprint::{Blueprint, Expert, Experts, Projection, limits};
use crate::error::ModelError;
use crate::folder::settings::Settings;

const EXPERTS: RangeInclusive<usize> = 1..=1024;
/// Experts of all layers: far more than any published model has, and few enough to list.
const ALL_EXPERTS: usize = 1 << 16;

/// The experts of a layer, as its tensors are named and sized.
pub(super) struct Naming {
    /// What precedes the names of a layer's experts: `mlp` or `block_sparse_moe`.
    pub(super) part: &'static str,
    /// The names of an expert's gate, up and down projections.
    pub(super) projections: [&'static str; 3],
    /// The width of an expert.
    pub(super) inner: usize,
    /// Whether the router's probabilities of the chosen experts are scaled to add up to 1.
    pub(super) normalize: bool,
}

/// The number of experts, under the first of `keys` that is there, and how many a token goes through.
pub(super) fn counts(settings: &Settings, keys: [&str; 2]) -> Result<(usize, usize), ModelError> {
    let count = match settings.count(keys[0], EXPERTS)? {
        Some(count) => count,
        None => settings.needed(keys[1], EXPERTS)?,
    };
    let key = "num_experts_per_tok";
    let per_token = settings.needed(key, EXPERTS)?;
    if per_token > count {
        return Err(settings.problem(key, format!("is {per_token}, but there are {count} experts")));
    }
    Ok((count, per_token))
}

/// Replaces the feed-forward of those layers that have experts by them, as the keys of Qwen's configurations say.
pub(super) fn put_as_qwen(
    settings: &Settings,
    blueprint: &mut Blueprint,
    shared: Option<usize>,
) -> Result<(), ModelError> {
    let counts = counts(settings, ["num_experts", "num_local_experts"])?;
    let naming = Naming {
        part: "mlp",
        projections: ["gate_proj", "up_proj", "down_proj"],
        inner: settings.needed("moe_intermediate_size", limits::WIDTH)?,
        normalize: settings.flag("norm_topk_prob")?.unwrap_or(false),
    };
    let step = settings.count("decoder_sparse_step", limits::LAYERS)?.unwrap_or(1);
    let dense = settings.counts("mlp_only_layers")?;
    for layer in 0..blueprint.blocks.len() {
        let is_dense = dense.iter().any(|dense| *dense as usize == layer);
        if !is_dense && (layer + 1).is_multiple_of(step) {
            put(settings, blueprint, layer, &naming, counts, shared)?;
        }
    }
    Ok(())
}

/// Replaces the feed-forward of a layer by experts; `shared` is the width of a feed-forward for all tokens.
pub(super) fn put(
    settings: &Settings,
    blueprint: &mut Blueprint,
    layer: usize,
    naming: &Naming,
    (count, per_token): (usize, usize),
    shared: Option<usize>,
) -> Result<(), ModelError> {
    if count * blueprint.blocks.len() > ALL_EXPERTS {
        return Err(settings.problem(
            "num_hidden_layers",
            format!("times {count} experts is more than {ALL_EXPERTS}"),
        ));
    }
    let hidden = blueprint.hidden;
    let Some(block) = blueprint.blocks.get_mut(layer) else { return Ok(()) };
    let part = format!("layers.{layer}.{}", naming.part);
    let [gate, up, down] = naming.projections;
    let expert = |at: usize| {
        let name = |projection: &str| format!("{part}.experts.{at}.{projection}");
        Expert {
            gate: Projection::linear(&name(gate), hidden, naming.inner, false),
            up: Projection::linear(&name(up), hidden, naming.inner, false),
            down: Projection::linear(&name(down), naming.inner, hidden, false),
        }
    };
    let of_all = |name: &str| format!("{part}.shared_expert.{name}");
    block.up = match shared {
        Some(inner) => ["gate_proj", "up_proj"]
            .map(|name| Projection::linear(&of_all(name), hidden, inner, false))
            .into(),
        None => Vec::new(),
    };
    block.down = shared.map(|inner| Projection::linear(&of_all("down_proj"), inner, hidden, false));
    block.experts = Some(Experts {
        router: Projection::linear(&format!("{part}.gate"), hidden, count, false),
        experts: (0..count).map(expert).collect(),
        per_token,
        normalize: naming.normalize,
        shared_gate: shared
            .map(|_| Projection::linear(&format!("{part}.shared_expert_gate"), hidden, 1, false)),
    });
    Ok(())
}
