//! Layers of two kinds: sliding-window attention (`sliding_attention`) and full attention (`full_attention`).

use super::rope::{self, Rope, Spelling};
use crate::error::ModelError;
use crate::folder::settings::Settings;

const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

/// The window of each layer: by `layer_types` if the file has it, else for the layers that `is_local` names.
pub(crate) fn windows(
    settings: &Settings,
    layers: usize,
    window: Option<usize>,
    is_local: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    const KEY: &str = "layer_types";
    let Some(types) = settings.texts(KEY)? else {
        return Ok((0..layers).map(|layer| window.filter(|_| is_local(layer))).collect());
    };
    if types.len() != layers {
        let problem = format!("has {} entries for {layers} layers", types.len());
        return Err(settings.problem(KEY, problem));
    }
    let one = |kind| match (kind, window) {
        (GLOBAL, _) => Ok(None),
        (LOCAL, Some(window)) => Ok(Some(window)),
        (LOCAL, None) => {
            Err(settings.problem(KEY, "has sliding layers, but no sliding window is set"))
        }
        (other, _) => Err(settings.problem(KEY, format!("has '{other}', which is not supported"))),
    };
    types.into_iter().map(one).collect()
}

/// The keys of a rotation's base beside `rope_parameters`, and its default.
pub(crate) type Base = (&'static str, f64);

/// The rotary positions of layers with full attention and of those with a sliding window, where they differ: an object each in
/// `rope_parameters`, or, in older files, keys beside it. A `rope_scaling` of older files stretches the first alone.
pub(crate) fn ropes(
    settings: &Settings,
    head_dim: usize,
    max_positions: usize,
    (global, local): (Base, Base),
) -> Result<(Rope, Rope), ModelError> {
    let spelling = |base| Spelling { base, share: None, max_positions };
    let all = settings.object("rope_parameters")?;
    let own = |kind: &str| all.as_ref().map_or(Ok(None), |all| all.object(kind));
    let global = match own(GLOBAL)? {
        Some(own) => rope::of(settings, Some(own), head_dim, &spelling(global))?,
        None => rope::read(settings, head_dim, &spelling(global))?,
    };
    let local = rope::of(settings, own(LOCAL)?, head_dim, &spelling(local))?;
    Ok((global, local))
}
