//! ModernBERT: an encoder with rotary positions, norms before attention and feed-forward, a gated
//! feed-forward, and layers of local attention, which have rotary positions of their own.

use super::activation::Activation;
use super::blueprint::{
    Block, Blueprint, Classifier, Embeddings, Head, NormKind, Projection, QkvSplit, Residual,
    Rotary, Scales, limits, whole_heads,
};
use super::layer_types;
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// The head of a ModernBERT that classifies texts.
fn classifier(settings: &Settings) -> Result<Option<Classifier>, ModelError> {
    if !Classifier::is_named(settings)? {
        return Ok(None);
    }
    let takes_mean = match settings.text("classifier_pooling")?.unwrap_or("cls") {
        "cls" => false,
        "mean" => true,
        other => {
            let problem = format!("is '{other}'; cls and mean are supported");
            return Err(settings.problem("classifier_pooling", problem));
        }
    };
    Ok(Some(Classifier {
        takes_mean,
        dense: "head.dense",
        activation: Activation::read(settings, "classifier_activation", "gelu")?,
        norm: Some("head.norm"),
        labels: "classifier",
    }))
}

/// Describes a ModernBERT.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let hidden = settings.needed("hidden_size", limits::WIDTH)?;
    let inner = settings.needed("intermediate_size", limits::WIDTH)?;
    let layers = settings.needed("num_hidden_layers", limits::LAYERS)?;
    let heads = settings.needed("num_attention_heads", limits::HEADS)?;
    let vocab = settings.needed("vocab_size", limits::VOCAB)?;
    let max_positions =
        settings.count("max_position_embeddings", limits::POSITIONS)?.unwrap_or(8192);
    let head_dim = whole_heads(settings, "num_attention_heads", hidden, heads)?;
    let attention_bias = settings.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = settings.flag("mlp_bias")?.unwrap_or(false);
    let norm = match settings.flag("norm_bias")?.unwrap_or(false) {
        true => NormKind::Layer,
        false => NormKind::LayerWithoutShift,
    };
    let bases = (("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0));
    let (global, local) = layer_types::ropes(settings, head_dim, max_positions, bases)?;
    // The file's window is the whole neighbourhood; half of it lies on each side.
    let whole = settings.count("local_attention", limits::POSITIONS)?.unwrap_or(128);
    let every = settings.count("global_attn_every_n_layers", limits::LAYERS)?.unwrap_or(3);
    let windows = layer_types::windows(settings, layers, Some(whole / 2 + 1), |layer| {
        !layer.is_multiple_of(every)
    })?;
    let block = |(layer, window): (usize, Option<usize>)| {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let linear = |part: &str, inputs, outputs, bias| {
            Projection::linear(&name(part), inputs, outputs, bias)
        };
        Block {
            // The norm of the embeddings stands for that of the first layer.
            attention_norm: (layer > 0).then(|| name("attn_norm")),
            qkv: vec![linear("attn.Wqkv", hidden, 3 * hidden, attention_bias)],
            qk_norm: None,
            out: linear("attn.Wo", hidden, hidden, attention_bias),
            mlp_norm: Some(name("mlp_norm")),
            post_norms: None,
            up: vec![linear("mlp.Wi", hidden, 2 * inner, mlp_bias)],
            down: Some(linear("mlp.Wo", inner, hidden, mlp_bias)),
            experts: None,
            rotary: if window.is_some() { Rotary::Local } else { Rotary::Global },
            window,
            scale: (head_dim as f64).powf(-0.5),
        }
    };
    Ok(Blueprint {
        family: "modernbert",
        prefix: "model.",
        vocab,
        hidden,
        heads,
        kv_heads: heads,
        head_dim,
        max_positions,
        embeddings: Embeddings {
            tokens: "embeddings.tok_embeddings.weight".to_owned(),
            positions: None,
            first_position: 0,
            segments: None,
            norm: Some("embeddings.norm".to_owned()),
        },
        rope: Some(global),
        local_rope: Some(local),
        norm,
        norm_offset: 0.0,
        eps: settings.positive("norm_eps")?.unwrap_or(1e-5),
        residual: Residual::Serial,
        causal: false,
        split: QkvSplit::Blocks,
        qk_norm_over_all: false,
        fused_gate: true,
        scales: Scales::default(),
        activation: Activation::read(settings, "hidden_activation", "gelu")?,
        blocks: windows.into_iter().enumerate().map(block).collect(),
        final_norm: Some("final_norm".to_owned()),
        head: Head::None,
        classifier: classifier(settings)?,
        ignored_endings: &[],
        // The heads of what a checkpoint was trained on.
        ignored_beginnings: &["head.", "decoder.", "classifier."],
    })
}
