//! Rotary positions: how configuration files write them, and the frequencies that follow.
//!
//! The settings are in `rope_parameters` (newer files) or `rope_scaling` (older ones), the base
//! in either of them or beside them. Frequencies are computed in f32, step by step as
//! transformers does, because a difference in the last bit grows with the position.

use super::blueprint::limits;
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Rotary positions of one model.
#[derive(Clone, Debug)]
pub struct Rope {
    /// One frequency for each pair of rotated dimensions.
    pub frequencies: Vec<f32>,
    /// What cosine and sine are multiplied with.
    pub factor: f32,
    /// Whether the two dimensions of a pair are neighbours; else one is in the first half of what is
    /// rotated and the other in the second.
    pub interleaved: bool,
    /// Whether the file has the rows of queries and keys in another order than the family's folders.
    pub reordered: bool,
}

impl Rope {
    fn of_halves(frequencies: Vec<f32>, factor: f32) -> Self {
        Self { frequencies, factor, interleaved: false, reordered: false }
    }

    /// How many dimensions of a head are rotated.
    pub fn dims(&self) -> usize {
        self.frequencies.len() * 2
    }
}

/// What differs between families in how the settings are written.
pub(crate) struct Spelling {
    /// The key of the base beside the object, and its default.
    pub(crate) base: (&'static str, f64),
    /// The key of the rotated share beside the object, and its default; without it the whole
    /// head is rotated and a share in the file is refused.
    pub(crate) share: Option<(&'static str, f64)>,
    /// The most positions, which some scalings fall back on.
    pub(crate) max_positions: usize,
}

/// Reads the settings for heads of `head_dim`.
pub(crate) fn read(
    settings: &Settings,
    head_dim: usize,
    spelling: &Spelling,
) -> Result<Rope, ModelError> {
    let mut object = None;
    for key in ["rope_scaling", "rope_parameters"] {
        object = object.or(settings.object(key)?.filter(|object| !object.is_empty()));
    }
    of(settings, object, head_dim, spelling)
}

/// Those that `object` describes, where a file has several; what it leaves out is beside it.
pub(crate) fn of(
    settings: &Settings,
    object: Option<Settings>,
    head_dim: usize,
    spelling: &Spelling,
) -> Result<Rope, ModelError> {
    let inside = object.as_ref().unwrap_or(settings);
    let inner = object.as_ref();
    let mut base = None;
    if let Some(inner) = inner {
        base = inner.positive("rope_theta")?;
    }
    let base = base.or(settings.positive(spelling.base.0)?).unwrap_or(spelling.base.1);
    if base <= 1.0 {
        return Err(inside.problem("rope_theta", format!("is {base}; it must be more than 1")));
    }
    let share = share(settings, inner, spelling)?;
    let dims = (head_dim as f64 * share) as usize;
    // An odd number of rotated dimensions is rounded up to a pair.
    if dims == 0 || dims.div_ceil(2) * 2 > head_dim {
        return Err(inside.problem(
            "partial_rotary_factor",
            format!("rotates {dims} dimensions of a head that has {head_dim}"),
        ));
    }
    let plain = plain(base, dims);
    let kind = match inner {
        Some(inner) => inner.text("rope_type")?.or(inner.text("type")?).unwrap_or("default"),
        None => "default",
    };
    match (kind, inner) {
        ("default", _) | (_, None) => Ok(Rope::of_halves(plain, 1.0)),
        ("linear", Some(inner)) => {
            let by = needed(inner, "factor")? as f32;
            Ok(Rope::of_halves(plain.iter().map(|f| f / by).collect(), 1.0))
        }
        ("llama3", Some(inner)) => {
            let context = original_context(settings, inner, spelling)?;
            Ok(Rope::of_halves(llama3(inner, &plain, context)?, 1.0))
        }
        ("yarn", Some(inner)) => {
            let context = original_context(settings, inner, spelling)?;
            yarn(inner, &plain, base, dims, context)
        }
        (other, Some(inner)) => Err(inner.problem(
            "rope_type",
            format!("is '{other}'; default, linear, llama3 and yarn are supported"),
        )),
    }
}

fn share(
    settings: &Settings,
    inner: Option<&Settings>,
    spelling: &Spelling,
) -> Result<f64, ModelError> {
    const KEY: &str = "partial_rotary_factor";
    let written = match inner {
        Some(inner) => inner.positive(KEY)?,
        None => None,
    };
    let written = match written {
        Some(written) => Some(written),
        None => settings.positive(KEY)?,
    };
    match spelling.share {
        Some((key, default)) => {
            let share = written.or(settings.positive(key)?).unwrap_or(default);
            if share > 1.0 {
                return Err(settings.problem(key, format!("is {share}; it can't be more than 1")));
            }
            Ok(share)
        }
        None if written.is_some_and(|share| share != 1.0) => Err(inner
            .unwrap_or(settings)
            .problem(KEY, "is not 1, but this family rotates whole heads")),
        None => Ok(1.0),
    }
}

fn needed(settings: &Settings, key: &str) -> Result<f64, ModelError> {
    settings.positive(key)?.ok_or_else(|| settings.problem(key, "is missing"))
}

fn original_context(
    settings: &Settings,
    inner: &Settings,
    spelling: &Spelling,
) -> Result<f64, ModelError> {
    const KEY: &str = "original_max_position_embeddings";
    // Beside the object it takes precedence, as transformers has it.
    let outer = settings.count(KEY, limits::POSITIONS)?;
    let context = outer.or(inner.count(KEY, limits::POSITIONS)?);
    Ok(context.unwrap_or(spelling.max_positions) as f64)
}

fn plain(base: f64, dims: usize) -> Vec<f32> {
    let base = base as f32;
    (0..dims).step_by(2).map(|i| 1.0 / base.powf(i as f32 / dims as f32)).collect()
}

fn llama3(inner: &Settings, plain: &[f32], context: f64) -> Result<Vec<f32>, ModelError> {
    let by = needed(inner, "factor")?;
    let low = needed(inner, "low_freq_factor")?;
    let high = needed(inner, "high_freq_factor")?;
    if high <= low {
        return Err(
            inner.problem("high_freq_factor", format!("is {high}, not more than low_freq_factor"))
        );
    }
    let (long, short) = ((context / low) as f32, (context / high) as f32);
    let (by, low, high, context) = (by as f32, low as f32, high as f32, context as f32);
    Ok(plain
        .iter()
        .map(|&frequency| {
            let wave = (2.0 * std::f64::consts::PI) as f32 / frequency;
            if wave > long {
                frequency / by
            } else if wave < short {
                frequency
            } else {
                let smooth = (context / wave - low) / (high - low);
                (1.0 - smooth) * frequency / by + smooth * frequency
            }
        })
        .collect())
}

fn yarn(
    inner: &Settings,
    plain: &[f32],
    base: f64,
    dims: usize,
    context: f64,
) -> Result<Rope, ModelError> {
    let by = needed(inner, "factor")?;
    let growth = |weight: f64| if by <= 1.0 { 1.0 } else { 0.1 * weight * by.ln() + 1.0 };
    let factor = match inner.positive("attention_factor")? {
        Some(factor) => factor,
        None => match (inner.positive("mscale")?, inner.positive("mscale_all_dim")?) {
            (Some(scale), Some(all)) => growth(scale) / growth(all),
            _ => growth(1.0),
        },
    };
    let fast = inner.positive("beta_fast")?.unwrap_or(32.0);
    let slow = inner.positive("beta_slow")?.unwrap_or(1.0);
    let dim_of = |rotations: f64| {
        dims as f64 * (context / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
    };
    let (mut from, mut to) = (dim_of(fast), dim_of(slow));
    if inner.flag("truncate")?.unwrap_or(true) {
        (from, to) = (from.floor(), to.ceil());
    }
    let (from, mut to) = (from.max(0.0), to.min(dims as f64 - 1.0));
    if from == to {
        to += 0.001;
    }
    let (from, width) = (from as f32, (to - from) as f32);
    let frequencies = plain
        .iter()
        .enumerate()
        .map(|(i, &frequency)| {
            let kept = 1.0 - ((i as f32 - from) / width).clamp(0.0, 1.0);
            let slowed = 1.0 / (by as f32 * (1.0 / frequency));
            slowed * (1.0 - kept) + frequency * kept
        })
        .collect();
    Ok(Rope::of_halves(frequencies, factor as f32))
}
