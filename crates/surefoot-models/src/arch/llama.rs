//! Llama, and the skeleton that most decoders share with it: RMS norms, rotary positions,
//! grouped heads, a gated feed-forward.

use super::activation::Activation;
use super::blueprint::{
    Block, Blueprint, Embeddings, Head, Heads, NormKind, Projection, QkvSplit, Residual, Rotary,
    Scales, limits,
};
use super::layer_types;
use super::rope::{self, Spelling};
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// What a family of this skeleton does differently from the others.
pub(crate) struct Variant {
    pub(crate) family: &'static str,
    /// `num_key_value_heads` where the file doesn't say.
    pub(crate) kv_heads: Option<usize>,
    /// `head_dim` where the file doesn't say and it doesn't follow from the width.
    pub(crate) head_dim: Option<usize>,
    /// `max_position_embeddings` where the file doesn't say.
    pub(crate) max_positions: usize,
    /// Biases of queries, keys and values.
    pub(crate) qkv_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) mlp_bias: bool,
    /// Norms over each head's queries and keys.
    pub(crate) qk_norm: bool,
    /// The key of the share of a head that is rotated, and its default; without it a share in the file is refused.
    pub(crate) rotary_share: Option<(&'static str, f64)>,
    /// The window of each layer.
    pub(crate) windows: Windows,
}

/// Reads the window of each of so many layers, if it has one.
pub(crate) type Windows = fn(&Settings, usize) -> Result<Vec<Option<usize>>, ModelError>;

impl Variant {
    /// No biases, no norms over queries and keys, no windows.
    pub(crate) fn plain(family: &'static str) -> Self {
        Self {
            family,
            kv_heads: None,
            head_dim: None,
            max_positions: 2048,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rotary_share: None,
            windows: |_, layers| Ok(vec![None; layers]),
        }
    }

    /// As [`Self::plain`], with the biases that the file asks for.
    pub(crate) fn with_biases(
        family: &'static str,
        settings: &Settings,
    ) -> Result<Self, ModelError> {
        let attention_bias = settings.flag("attention_bias")?.unwrap_or(false);
        Ok(Self {
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias: settings.flag("mlp_bias")?.unwrap_or(false),
            ..Self::plain(family)
        })
    }
}

/// Describes a Llama.
pub(crate) fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    variant(settings, &Variant::with_biases("llama", settings)?)
}

/// Describes a model of a family that is built like Llama.
pub(crate) fn variant(settings: &Settings, variant: &Variant) -> Result<Blueprint, ModelError> {
    let hidden = settings.needed("hidden_size", limits::WIDTH)?;
    let inner = settings.needed("intermediate_size", limits::WIDTH)?;
    let layers = settings.needed("num_hidden_layers", limits::LAYERS)?;
    let vocab = settings.needed("vocab_size", limits::VOCAB)?;
    let Heads { heads, kv_heads, head_dim } =
        Heads::read(settings, hidden, variant.kv_heads, variant.head_dim)?;
    let max_positions = settings
        .count("max_position_embeddings", limits::POSITIONS)?
        .unwrap_or(variant.max_positions);
    let rope = rope::read(
        settings,
        head_dim,
        &Spelling { base: ("rope_theta", 10_000.0), share: variant.rotary_share, max_positions },
    )?;
    let windows = (variant.windows)(settings, layers)?;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let blocks = windows
        .into_iter()
        .enumerate()
        .map(|(layer, window)| {
            let attention = format!("layers.{layer}.self_attn");
            let mlp = format!("layers.{layer}.mlp");
            let qkv = |name: &str, outputs| {
                Projection::linear(
                    &format!("{attention}.{name}"),
                    hidden,
                    outputs,
                    variant.qkv_bias,
                )
            };
            let up = |name: &str| {
                Projection::linear(&format!("{mlp}.{name}"), hidden, inner, variant.mlp_bias)
            };
            Block {
                attention_norm: Some(format!("layers.{layer}.input_layernorm")),
                qkv: vec![qkv("q_proj", queries), qkv("k_proj", keys), qkv("v_proj", keys)],
                qk_norm: variant
                    .qk_norm
                    .then(|| (format!("{attention}.q_norm"), format!("{attention}.k_norm"))),
                out: Projection::linear(
                    &format!("{attention}.o_proj"),
                    queries,
                    hidden,
                    variant.out_bias,
                ),
                mlp_norm: Some(format!("layers.{layer}.post_attention_layernorm")),
                up: vec![up("gate_proj"), up("up_proj")],
                down: Some(Projection::linear(
                    &format!("{mlp}.down_proj"),
                    inner,
                    hidden,
                    variant.mlp_bias,
                )),
                experts: None,
                rotary: Rotary::Global,
                post_norms: None,
                window,
                scale: (head_dim as f64).powf(-0.5),
            }
        })
        .collect();
    Ok(Blueprint {
        family: variant.family,
        prefix: "model.",
        vocab,
        hidden,
        heads,
        kv_heads,
        head_dim,
        max_positions,
        embeddings: Embeddings {
            tokens: "embed_tokens.weight".to_owned(),
            positions: None,
            first_position: 0,
            segments: None,
            norm: None,
        },
        rope: Some(rope),
        local_rope: None,
        norm: NormKind::Rms,
        norm_offset: 0.0,
        eps: settings.positive("rms_norm_eps")?.unwrap_or(1e-6),
        residual: Residual::Serial,
        causal: true,
        split: QkvSplit::Separate,
        qk_norm_over_all: false,
        fused_gate: false,
        scales: Scales::default(),
        activation: Activation::read(settings, "hidden_act", "silu")?,
        blocks,
        final_norm: Some("norm".to_owned()),
        head: if settings.flag("tie_word_embeddings")?.unwrap_or(false) {
            Head::Tied
        } else {
            Head::Own("lm_head.weight".to_owned())
        },
        classifier: None,
        ignored_endings: &["rotary_emb.inv_freq"],
        ignored_beginnings: &[],
    })
}

/// The windows of Qwen: off unless `use_sliding_window`, then of the later layers.
pub(crate) fn qwen_windows(
    settings: &Settings,
    layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let window = if settings.flag("use_sliding_window")?.unwrap_or(false) {
        // Left out means the default; null means none.
        match settings.mentions("sliding_window") {
            true => settings.count("sliding_window", limits::POSITIONS)?,
            false => Some(4096),
        }
    } else {
        None
    };
    let first = settings.count("max_window_layers", 0..=*limits::LAYERS.end())?.unwrap_or(28);
    layer_types::windows(settings, layers, window, |layer| layer >= first)
}
