//! What a transformer is made of: the one description from which every architecture here is
//! configured. It names tensors and sizes; it holds no weights and knows no device.

use super::activation::Activation;
use super::rope::Rope;
use crate::error::ModelError;
use crate::folder::settings::Settings;

/// Bounds of configuration values: generous, but nothing in them can overflow a product.
pub(crate) mod limits {
    use std::ops::RangeInclusive;

    pub(crate) const LAYERS: RangeInclusive<usize> = 1..=1024;
    pub(crate) const WIDTH: RangeInclusive<usize> = 1..=(1 << 20);
    pub(crate) const HEADS: RangeInclusive<usize> = 1..=(1 << 14);
    pub(crate) const VOCAB: RangeInclusive<usize> = 1..=(1 << 24);
    pub(crate) const POSITIONS: RangeInclusive<usize> = 1..=(1 << 30);
}

/// How a matrix is stored in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[outputs, inputs]`, as `torch.nn.Linear` stores it.
    OutIn,
    /// `[inputs, outputs]`, as GPT-2's `Conv1D` stores it.
    InOut,
}

/// One matrix of a projection, with its bias.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The weight's tensor name, without the checkpoint's prefix.
    pub weight: String,
    /// The bias's tensor name.
    pub bias: Option<String>,
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
    /// How the weight is stored in its file.
    pub layout: Layout,
}

impl Projection {
    /// A `torch.nn.Linear` called `name`.
    pub fn linear(name: &str, inputs: usize, outputs: usize, bias: bool) -> Self {
        Self {
            weight: format!("{name}.weight"),
            bias: bias.then(|| format!("{name}.bias")),
            inputs,
            outputs,
            layout: Layout::OutIn,
        }
    }

    /// A GPT-2 `Conv1D` called `name`.
    pub fn conv1d(name: &str, inputs: usize, outputs: usize) -> Self {
        Self { layout: Layout::InOut, ..Self::linear(name, inputs, outputs, true) }
    }
}

/// The kinds of normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// Root mean square, a scale.
    Rms,
    /// Mean and variance, a scale and a shift.
    Layer,
    /// Mean and variance, and a scale alone.
    LayerWithoutShift,
}

/// Where a block normalises, and how its attention and feed-forward are added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// `x += attention(norm(x)); x += mlp(norm(x))`.
    Serial,
    /// `x += attention(norm(x)) + mlp(norm(x))`; both halves share one norm if the block has no `mlp_norm`.
    Parallel,
    /// `x = norm(x + attention(x)); x = norm(x + mlp(x))`.
    PostNorm,
    /// `x += norm(attention(x)); x += norm(mlp(x))`.
    NormedHalves,
    /// `x += norm(attention(norm(x))); x += norm(mlp(norm(x)))`; the norms behind are the block's `post_norms`.
    Sandwich,
}

/// How queries, keys and values come out of the projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvSplit {
    /// Three projections.
    Separate,
    /// One: all queries, all keys, all values.
    Blocks,
    /// One: for each head its query, key and value.
    PerHead,
}

/// One block: attention and feed-forward.
#[derive(Clone, Debug)]
pub struct Block {
    /// The norm of the attention half; without one it gets the hidden state as it is.
    pub attention_norm: Option<String>,
    /// Queries, keys and values: three projections or one.
    pub qkv: Vec<Projection>,
    /// The norms of queries and keys, by head.
    pub qk_norm: Option<(String, String)>,
    /// The projection behind attention.
    pub out: Projection,
    /// The norm of the feed-forward half; without one it gets what [`Residual`] says.
    pub mlp_norm: Option<String>,
    /// Into the feed-forward: one projection, or gate and value; none where there are only experts.
    pub up: Vec<Projection>,
    /// Out of the feed-forward.
    pub down: Option<Projection>,
    /// Experts, whose results are added to the feed-forward's.
    pub experts: Option<Experts>,
    /// How many positions back, itself included, a position may look; as many ahead where positions see what follows them.
    pub window: Option<usize>,
    /// How queries and keys are rotated, in a model that has rotary positions.
    pub rotary: Rotary,
    /// The norms behind attention and behind the feed-forward, where both have one before and one behind.
    pub post_norms: Option<(String, String)>,
    /// What queries × keys are multiplied with.
    pub scale: f64,
}

/// A gated feed-forward that only some tokens go through.
#[derive(Clone, Debug)]
pub struct Expert {
    /// The gate, which goes through the activation.
    pub gate: Projection,
    /// The value.
    pub up: Projection,
    /// The way out.
    pub down: Projection,
}

/// A mixture of experts: a router chooses a few of them for each token.
#[derive(Clone, Debug)]
pub struct Experts {
    /// From the hidden state to a number for each expert; softmax makes weights of them.
    pub router: Projection,
    /// The experts.
    pub experts: Vec<Expert>,
    /// How many of them a token goes through: those with the largest weights.
    pub per_token: usize,
    /// Whether the weights of the chosen ones are scaled so that their sum is 1.
    pub normalize: bool,
    /// Where the block has a feed-forward for all tokens as well: to the one number whose sigmoid its result is
    /// multiplied with.
    pub shared_gate: Option<Projection>,
}

/// Which rotation a block uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotary {
    /// None.
    None,
    /// The model's.
    Global,
    /// The one of layers with sliding-window attention.
    Local,
}

/// What some families multiply with, and how large they let numbers become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// The first hidden state.
    pub embedding: f64,
    /// What each half of a block adds to the hidden state.
    pub residual: f64,
    /// Logits.
    pub logits: f64,
    /// Scores of attention `s` become `cap · tanh(s / cap)` before masks and softmax.
    pub attention_cap: Option<f64>,
    /// The same for logits, after their factor.
    pub logit_cap: Option<f64>,
}

impl Default for Scales {
    fn default() -> Self {
        Self { embedding: 1.0, residual: 1.0, logits: 1.0, attention_cap: None, logit_cap: None }
    }
}

/// What turns tokens into the first hidden state.
#[derive(Clone, Debug)]
pub struct Embeddings {
    /// The token table.
    pub tokens: String,
    /// The table of learned positions.
    pub positions: Option<String>,
    /// The row of that table for the first position.
    pub first_position: usize,
    /// The table of segments and its rows; every token is in the first.
    pub segments: Option<(String, usize)>,
    /// A norm over the sum.
    pub norm: Option<String>,
}

/// What turns the last hidden state into logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing: an encoder, or a decoder saved without its head.
    None,
    /// The token table.
    Tied,
    /// A matrix of its own, by its full name.
    Own(String),
}

/// A head that gives a text a number for each of its labels: a layer over the text's state, an activation, perhaps a
/// norm, and a layer for the labels. It is computed beside the model (`classify.rs`), not as part of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// Whether a text's state is the mean of those of its tokens, not that of the first one.
    pub takes_mean: bool,
    /// The first layer, with or without the checkpoint's prefix.
    pub dense: &'static str,
    /// What is behind it.
    pub activation: Activation,
    /// The norm behind that, of the kind that the model has.
    pub norm: Option<&'static str>,
    /// The layer of the labels.
    pub labels: &'static str,
}

impl Classifier {
    /// Whether the configuration is that of a model which classifies texts.
    pub(crate) fn is_named(settings: &Settings) -> Result<bool, ModelError> {
        let architectures = settings.texts("architectures")?.unwrap_or_default();
        Ok(architectures.iter().any(|name| name.ends_with("ForSequenceClassification")))
    }
}

/// The description of a transformer.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The `model_type` it comes from.
    pub family: &'static str,
    /// What precedes the names of all tensors but the head's, in checkpoints that have it.
    pub prefix: &'static str,
    /// Rows of the token table.
    pub vocab: usize,
    /// The width of the hidden state.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// The width of a head.
    pub head_dim: usize,
    /// The most positions the model was made for; a hard limit where positions are learned.
    pub max_positions: usize,
    /// The way in.
    pub embeddings: Embeddings,
    /// Rotary positions.
    pub rope: Option<Rope>,
    /// Those of blocks with [`Rotary::Local`].
    pub local_rope: Option<Rope>,
    /// The norm of every place but a query's or a key's, which is always RMS.
    pub norm: NormKind,
    /// What is added to the scale of every norm: files of some families store the difference from 1.
    pub norm_offset: f64,
    /// What is added to a variance before its root is taken.
    pub eps: f64,
    /// How a block is put together.
    pub residual: Residual,
    /// Whether a position sees only what precedes it.
    pub causal: bool,
    /// How the projection of queries, keys and values is split.
    pub split: QkvSplit,
    /// Whether the norms of queries and keys go over all heads together.
    pub qk_norm_over_all: bool,
    /// Whether gate and value of the feed-forward come out of one projection, the gate first.
    pub fused_gate: bool,
    /// What is multiplied on the way.
    pub scales: Scales,
    /// The feed-forward's activation.
    pub activation: Activation,
    /// The blocks in order.
    pub blocks: Vec<Block>,
    /// The norm behind the last block.
    pub final_norm: Option<String>,
    /// The way out.
    pub head: Head,
    /// The head of a model that classifies texts.
    pub classifier: Option<Classifier>,
    /// Tensors that checkpoints of this family carry and nothing needs, by how their names end.
    pub ignored_endings: &'static [&'static str],
    /// The same, by how their names begin.
    pub ignored_beginnings: &'static [&'static str],
}

impl Blueprint {
    /// The width of the widest feed-forward.
    pub fn inner(&self) -> usize {
        let dense = self.blocks.iter().flat_map(|block| &block.down);
        let experts = self.blocks.iter().flat_map(|block| &block.experts);
        let of_experts = experts.flat_map(|experts| experts.experts.first().map(|it| &it.down));
        dense.chain(of_experts).map(|down| down.inputs).max().unwrap_or(0)
    }
}

/// Head counts and sizes, checked against each other.
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Heads {
    /// Reads `num_attention_heads`, `num_key_value_heads` and `head_dim`.
    pub(crate) fn read(
        settings: &Settings,
        hidden: usize,
        kv_default: Option<usize>,
        dim_default: Option<usize>,
    ) -> Result<Self, ModelError> {
        let heads = settings.needed("num_attention_heads", limits::HEADS)?;
        // Left out means the family's default; null means as many as there are queries.
        let key = "num_key_value_heads";
        let kv_default = kv_default.filter(|_| !settings.mentions(key));
        let kv_heads = settings.count(key, limits::HEADS)?.or(kv_default).unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(settings.problem(
                "num_key_value_heads",
                format!("is {kv_heads}, which doesn't divide the {heads} attention heads"),
            ));
        }
        let head_dim = match settings.count("head_dim", limits::WIDTH)?.or(dim_default) {
            Some(head_dim) => head_dim,
            None => whole_heads(settings, "num_attention_heads", hidden, heads)?,
        };
        Ok(Self { heads, kv_heads, head_dim })
    }
}

/// The width of a head where it follows from the hidden state's.
pub(crate) fn whole_heads(
    settings: &Settings,
    key: &str,
    hidden: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    if hidden.is_multiple_of(heads) {
        Ok(hidden / heads)
    } else {
        Err(settings.problem(key, format!("is {heads}, which doesn't divide the width {hidden}")))
    }
}
