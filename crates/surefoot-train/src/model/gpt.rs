//! A decoder for text: tokens are foretold from those before them.

use burn::module::{Module, Param};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::gelu;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor};
use surefoot::place::Autocast;

use super::init::{Draw, redraw_as};
use super::{Score, Trainable};
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
            norm: LayerNormConfig::new(width).init(device),
            head: linear(width, vocabulary, device),
        };
        redraw_as(gpt, seed, device, Draw::Normal(0.02))
    }
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).with_initializer(Initializer::Zeros).init(device)
}

fn value<const D: usize>(param: &Option<Param<Tensor<D>>>) -> Option<Tensor<D>> {
    param.as_ref().map(|param| param.val())
}

impl Block {
    fn new(width: usize, heads: usize, device: &Device) -> Self {
        Self {
            attend_norm: LayerNormConfig::new(width).init(device),
            attend_in: linear(width, 3 * width, device),
            attend_out: linear(width, width, device),
            feed_norm: LayerNormConfig::new(width).init(device),
            feed_in: linear(width, 4 * width, device),
            feed_out: linear(4 * width, width, device),
            heads,
        }
    }

    fn forward(&self, x: Tensor<3>, cast: Autocast) -> Tensor<3> {
        let apply =
            |layer: &Linear, x: Tensor<3>| cast.linear(x, layer.weight.val(), value(&layer.bias));
        let attended =
            self.attend(apply(&self.attend_in, self.attend_norm.forward(x.clone())), cast);
        let x = x + apply(&self.attend_out, attended);
        let fed = gelu(apply(&self.feed_in, self.feed_norm.forward(x.clone())));
        x + apply(&self.feed_out, fed)
    }

    /// Causal attention over queries, keys and values that lie side by side.
    fn attend(&self, mixed: Tensor<3>, cast: Autocast) -> Tensor<3> {
        let [samples, tokens, wide] = mixed.dims();
        let (width, each) = (wide / 3, wide / 3 / self.heads);
        let part = |at: usize| {
            mixed
                .clone()
                .narrow(2, at * width, width)
                .reshape([samples, tokens, self.heads, each])
                .swap_dims(1, 2)
        };
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        cast.attention(part(0), part(1), part(2), options)
            .swap_dims(1, 2)
            .reshape([samples, tokens, width])
    }
}

impl Trainable for Gpt {
    fn score(&self, batch: &Batch, cast: Autocast) -> Score {
        let tokens = batch.tokens();
        let [samples, length] = tokens.dims();
        let places = Tensor::<1, Int>::arange(0..length as i64, &tokens.device()).unsqueeze::<2>();
        let mut x = self.tokens.forward(tokens) + self.places.forward(places);
        for block in &self.blocks {
            x = block.forward(x, cast);
        }
        let x = self.norm.forward(x);
        let [_, _, width] = x.dims();
        let x = x.reshape([samples * length, width]);
        let logits = cast.linear(x, self.head.weight.val(), value(&self.head.bias));
        Score::of_classes(logits, batch.targets.clone())
    }
}
