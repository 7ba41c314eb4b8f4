//! RoBERTa and XLM-RoBERTa: BERT whose table of positions begins behind the row of padding. Most multilingual encoders of texts
//! are of this shape.

use super::activation::Activation;
use super::bert::{self, Variant};
use super::blueprint::{Blueprint, Classifier, limits};
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
            classifier: Classifier {
                takes_mean: false,
                dense: "classifier.dense",
                activation: Activation::Tanh,
                norm: None,
                labels: "classifier.out_proj",
            },
            ignored: &["pooler.", "roberta.pooler.", "lm_head.", "classifier.", "qa_outputs."],
        },
    )
}
