//! RoBERTa and XLM-RoBERTa: BERT whose table of positions begins behind the row of padding. Most multilingual encoders of texts
//! are of this shape.

use super::bert::{self, Variant};
use super::blueprint::{Blueprint, limits};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Describes one; `family` is its `model_type`.
pub(crate) fn describe(settings: &Settings, family: &'static str) -> Result<Blueprint, ModelError> {
    let padding = settings.count("pad_token_id", 0..=*limits::VOCAB.end())?.unwrap_or(1);
    bert::variant(
        settings,
        &Variant {
            family,
            prefix: "roberta.",
            first_position: padding + 1,
            ignored: &["pooler.", "roberta.pooler.", "lm_head.", "classifier.", "qa_outputs."],
        },
    )
}
