//! Granite: Llama with constant factors on embeddings, attention scores, residual additions and logits.

use super::blueprint::{Blueprint, Scales};
use super::llama::{self, Variant};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes a Granite.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama::variant(settings, &Variant::with_biases("granite", settings)?)?;
    let factor = |key: &str| Ok::<_, ModelError>(settings.positive(key)?.unwrap_or(1.0));
    let attention = factor("attention_multiplier")?;
    blueprint.blocks.iter_mut().for_each(|block| block.scale = attention);
    blueprint.scales = Scales {
        embedding: factor("embedding_multiplier")?,
        residual: factor("residual_multiplier")?,
        logits: 1.0 / factor("logits_scaling")?,
        ..Scales::default()
    };
    Ok(blueprint)
}
