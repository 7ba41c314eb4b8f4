//! A small residual network for images.
//!
//! Group normalisation, not batch normalisation: a sample's result doesn't depend on the others
//! in its batch, so a batch that is run in parts gives the same gradients as the whole one.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor};
use surefoot::place::Autocast;

use super::{Score, Trainable, redraw};
use crate::batch::Batch;
use crate::data::Form;

/// Stages of residual blocks; each stage after the first halves the image and doubles the
/// channels.
#[derive(Module, Debug)]
pub struct Cnn {
    stem: Unit,
    blocks: Vec<Block>,
    head: Linear,
    #[module(skip)]
    shape: [usize; 3],
}

/// A convolution and its norm.
#[derive(Module, Debug)]
struct Unit {
    conv: Conv2d,
    norm: GroupNorm,
    #[module(skip)]
    stride: usize,
    #[module(skip)]
    padding: usize,
}

/// Two units and a way around them.
#[derive(Module, Debug)]
struct Block {
    first: Unit,
    second: Unit,
    around: Option<Unit>,
}

impl Cnn {
    /// A network for samples of this form, which must be numbers.
    pub fn new(form: Form, width: usize, stages: usize, seed: u64, device: &Device) -> Self {
        let (shape, classes) = match form {
            Form::Dense { channels, height, width, classes } => {
                ([channels, height, width], classes)
            }
            Form::Text { vocabulary, length } => ([1, 1, length], vocabulary),
        };
        let mut blocks = Vec::new();
        let mut inputs = width;
        for stage in 0..stages {
            let (outputs, stride) = (width << stage, if stage == 0 { 1 } else { 2 });
            blocks.push(Block::new(inputs, outputs, stride, device));
            inputs = outputs;
        }
        let head =
            LinearConfig::new(inputs, classes).with_initializer(Initializer::Zeros).init(device);
        let stem = Unit::new(shape[0], width, 3, 1, device);
        redraw(Self { stem, blocks, head, shape }, seed, device)
    }
}

impl Unit {
    fn new(inputs: usize, outputs: usize, kernel: usize, stride: usize, device: &Device) -> Self {
        let padding = kernel / 2;
        let conv = Conv2dConfig::new([inputs, outputs], [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
            .with_bias(false)
            .with_initializer(Initializer::Zeros)
            .init(device);
        let norm = GroupNormConfig::new(8, outputs).init(device);
        Self { conv, norm, stride, padding }
    }

    fn forward(&self, x: Tensor<4>, cast: Autocast) -> Tensor<4> {
        let options = ConvOptions::new([self.stride; 2], [self.padding; 2], [1, 1], 1);
        self.norm.forward(cast.conv2d(x, self.conv.weight.val(), None, options))
    }
}

impl Block {
    fn new(inputs: usize, outputs: usize, stride: usize, device: &Device) -> Self {
        let changes = inputs != outputs || stride != 1;
        Self {
            first: Unit::new(inputs, outputs, 3, stride, device),
            second: Unit::new(outputs, outputs, 3, 1, device),
            around: changes.then(|| Unit::new(inputs, outputs, 1, stride, device)),
        }
    }

    fn forward(&self, x: Tensor<4>, cast: Autocast) -> Tensor<4> {
        let around = match &self.around {
            Some(unit) => unit.forward(x.clone(), cast),
            None => x.clone(),
        };
        let through = self.second.forward(relu(self.first.forward(x, cast)), cast);
        relu(through + around)
    }
}

impl Trainable for Cnn {
    fn score(&self, batch: &Batch, cast: Autocast) -> Score {
        let x = batch.dense();
        let [samples, _] = x.dims();
        let [channels, height, width] = self.shape;
        let mut x = relu(self.stem.forward(x.reshape([samples, channels, height, width]), cast));
        for block in &self.blocks {
            x = block.forward(x, cast);
        }
        // The mean over the image, for each channel.
        let [_, channels, height, width] = x.dims();
        let x = x.reshape([samples, channels, height * width]).mean_dim(2);
        let x = x.reshape([samples, channels]);
        let logits =
            cast.linear(x, self.head.weight.val(), self.head.bias.as_ref().map(|bias| bias.val()));
        Score::of_classes(logits, batch.targets.clone())
    }
}
