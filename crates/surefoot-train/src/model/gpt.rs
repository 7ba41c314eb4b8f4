//! A decoder for text: each token is predicted from those before it.

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{Device, Int, Tensor};
use surefoot::place::{Autocast, Dtype, float_dtype};
use surefoot_ops::{causal_attention, embedding, gelu, half_causal_attention, layer_norm};

use super::init::{Draw, redraw_as};
use super::{Predictive, applied};
use crate::batch::Batch;

/// Blocks of causal attention and a feed-forward part, with norms before each.
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct Block {
    attend_norm: LayerNorm,
    attend_in: Linear,
    attend_out: Linear,
    feed_norm: LayerNorm,
    feed_in: Linear,
    feed_out: Linear,
    #[module(skip)]
    heads: usize,
}

/// What a decoder is made of.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Different tokens.
    pub vocabulary: usize,
    /// The longest text.
    pub length: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of attention, which divide the width.
    pub heads: usize,
    /// Numbers for each token.
    pub width: usize,
}

impl Gpt {
    /// A decoder of these sizes.
    pub fn new(sizes: Sizes, seed: u64, device: &Device) -> Self {
        let Sizes { vocabulary, length, layers, heads, width } = sizes;
        let table = |rows: usize| {
            EmbeddingConfig::new(rows, width).with_initializer(Initializer::Zeros).init(device)
        };
        let gpt = Self {
            tokens: table(vocabulary),
            places: table(length),
            blocks: (0..layers).map(|_| Block::new(width, heads, device)).collect(),
            norm: norm(width, device),
            // Without a bias, as published decoders have it: then other programs can hold it.
            head: LinearConfig::new(width, vocabulary)
                .with_bias(false)
                .with_initializer(Initializer::Zeros)
                .init(device),
        };
        redraw_as(gpt, seed, device, Draw::Normal(0.02))
    }

    /// Multiplications and additions of the products of one sample's forward pass: with the weights of each linear layer,
    /// and of the attention of each token to those before it. Rows of a table are read, not multiplied.
    pub(super) fn forward_flops(&self, length: usize) -> f64 {
        let numbers = |layer: &Linear| layer.weight.shape().num_elements();
        let of_block = |block: &Block| {
            let weights = numbers(&block.attend_in)
                + numbers(&block.attend_out)
                + numbers(&block.feed_in)
                + numbers(&block.feed_out);
            let [width, _] = block.attend_out.weight.dims();
            // Scores and the weighted sum of values: two products over half of the square.
            2.0 * (weights * length) as f64 + 2.0 * (length * length * width) as f64
        };
        self.blocks.iter().map(of_block).sum::<f64>() + 2.0 * (numbers(&self.head) * length) as f64
    }
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).with_initializer(Initializer::Zeros).init(device)
}

/// Keeps the division of a norm finite.
const EPSILON: f64 = 1e-5;

fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).with_epsilon(EPSILON).init(device)
}

/// A norm of the last dimension.
fn normed(norm: &LayerNorm, x: Tensor<2>) -> Tensor<2> {
    match &norm.beta {
        Some(beta) => layer_norm(x, norm.gamma.val(), beta.val(), EPSILON),
        None => norm.forward(x),
    }
}

impl Block {
    fn new(width: usize, heads: usize, device: &Device) -> Self {
        Self {
            attend_norm: norm(width, device),
            attend_in: linear(width, 3 * width, device),
            attend_out: linear(width, width, device),
            feed_norm: norm(width, device),
            feed_in: linear(width, 4 * width, device),
            feed_out: linear(4 * width, width, device),
            heads,
        }
    }

    /// A row for each token, of samples that are `length` long.
    fn forward(&self, x: Tensor<2>, length: usize, cast: Autocast) -> Tensor<2> {
        let mixed = applied(&self.attend_in, normed(&self.attend_norm, x.clone()), None, cast);
        let [rows, wide] = mixed.dims();
        let mixed = mixed.reshape([rows / length, length, wide]);
        let attended = match cast.compute() {
            Dtype::F32 => causal_attention(mixed, self.heads),
            other => half_causal_attention(mixed, self.heads, float_dtype(other)),
        };
        let x = applied(&self.attend_out, attended.reshape([rows, wide / 3]), Some(x), cast);
        let fed = applied(&self.feed_in, normed(&self.feed_norm, x.clone()), None, cast);
        applied(&self.feed_out, gelu(fed), Some(x), cast)
    }
}

impl Predictive for Gpt {
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2> {
        let tokens = batch.tokens();
        let [samples, length] = tokens.dims();
        let places = Tensor::<1, Int>::arange(0..length as i64, &tokens.device());
        let placed = embedding(self.places.weight.val(), places);
        let x = embedding(self.tokens.weight.val(), tokens.reshape([samples * length]));
        let [rows, width] = x.dims();
        let x = x.reshape([samples, length, width]) + placed.unsqueeze::<3>();
        let mut x = x.reshape([rows, width]);
        for block in &self.blocks {
            x = block.forward(x, length, cast);
        }
        applied(&self.head, normed(&self.norm, x), None, cast)
    }
}
