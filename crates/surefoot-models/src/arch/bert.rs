//! BERT: an encoder whose attention sees the whole text, with norms after attention and after the
//! feed-forward. MiniLM and most sentence encoders are built like this.

use super::activation::Activation;
use super::blueprint::{
    Block, Blueprint, Classifier, Embeddings, Head, NormKind, Projection, QkvSplit, Residual,
    Rotary, Scales, limits, whole_heads,
};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// What a family that is built like BERT does differently.
pub(super) struct Variant {
    pub(super) family: &'static str,
    pub(super) prefix: &'static str,
    /// The row of the table of positions for the first one.
    pub(super) first_position: usize,
    /// The head of models that classify texts.
    pub(super) classifier: Classifier,
    /// How the names of tensors begin that belong to what a checkpoint was trained on.
    pub(super) ignored: &'static [&'static str],
}

/// Describes a BERT.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    variant(
        settings,
        &Variant {
            family: "bert",
            prefix: "bert.",
            first_position: 0,
            classifier: Classifier {
                takes_mean: false,
                dense: "pooler.dense",
                activation: Activation::Tanh,
                norm: None,
                labels: "classifier",
            },
            ignored: &["pooler.", "bert.pooler.", "cls.", "classifier.", "qa_outputs."],
        },
    )
}

/// Describes a model of a family that is built like BERT.
pub(super) fn variant(settings: &Settings, variant: &Variant) -> Result<Blueprint, ModelError> {
    for key in ["is_decoder", "add_cross_attention"] {
        if settings.flag(key)?.unwrap_or(false) {
            return Err(settings.problem(key, "is true, which is not supported"));
        }
    }
    if let Some(kind) = settings.text("position_embedding_type")?.filter(|kind| *kind != "absolute")
    {
        return Err(settings.problem(
            "position_embedding_type",
            format!("is '{kind}'; only absolute is supported"),
        ));
    }
    let hidden = settings.needed("hidden_size", limits::WIDTH)?;
    let inner = settings.needed("intermediate_size", limits::WIDTH)?;
    let layers = settings.needed("num_hidden_layers", limits::LAYERS)?;
    let heads = settings.needed("num_attention_heads", limits::HEADS)?;
    let vocab = settings.needed("vocab_size", limits::VOCAB)?;
    let max_positions =
        settings.count("max_position_embeddings", limits::POSITIONS)?.unwrap_or(512);
    if max_positions <= variant.first_position {
        return Err(settings.problem(
            "max_position_embeddings",
            format!("is {max_positions}, and the first position is {}", variant.first_position),
        ));
    }
    let max_positions = max_positions - variant.first_position;
    let segments = settings.count("type_vocab_size", 1..=1024)?.unwrap_or(2);
    let head_dim = whole_heads(settings, "num_attention_heads", hidden, heads)?;
    let linear = |name: String, inputs, outputs| Projection::linear(&name, inputs, outputs, true);
    let blocks = (0..layers)
        .map(|layer| {
            let layer = format!("encoder.layer.{layer}");
            let qkv = |name| linear(format!("{layer}.attention.self.{name}"), hidden, hidden);
            Block {
                attention_norm: Some(format!("{layer}.attention.output.LayerNorm")),
                qkv: vec![qkv("query"), qkv("key"), qkv("value")],
                qk_norm: None,
                out: linear(format!("{layer}.attention.output.dense"), hidden, hidden),
                mlp_norm: Some(format!("{layer}.output.LayerNorm")),
                up: vec![linear(format!("{layer}.intermediate.dense"), hidden, inner)],
                down: Some(linear(format!("{layer}.output.dense"), inner, hidden)),
                experts: None,
                rotary: Rotary::Global,
                post_norms: None,
                window: None,
                scale: (head_dim as f64).powf(-0.5),
            }
        })
        .collect();
    Ok(Blueprint {
        family: variant.family,
        prefix: variant.prefix,
        vocab,
        hidden,
        heads,
        kv_heads: heads,
        head_dim,
        max_positions,
        embeddings: Embeddings {
            tokens: "embeddings.word_embeddings.weight".to_owned(),
            positions: Some("embeddings.position_embeddings.weight".to_owned()),
            first_position: variant.first_position,
            segments: Some(("embeddings.token_type_embeddings.weight".to_owned(), segments)),
            norm: Some("embeddings.LayerNorm".to_owned()),
        },
        rope: None,
        local_rope: None,
        norm: NormKind::Layer,
        norm_offset: 0.0,
        eps: settings.positive("layer_norm_eps")?.unwrap_or(1e-12),
        residual: Residual::PostNorm,
        causal: false,
        split: QkvSplit::Separate,
        qk_norm_over_all: false,
        fused_gate: false,
        scales: Scales::default(),
        activation: Activation::read(settings, "hidden_act", "gelu")?,
        blocks,
        final_norm: None,
        head: Head::None,
        classifier: Classifier::is_named(settings)?.then(|| variant.classifier.clone()),
        ignored_endings: &["embeddings.position_ids"],
        ignored_beginnings: variant.ignored,
    })
}
