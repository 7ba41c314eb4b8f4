//! A small residual network for images.
//!
//! Group normalisation, not batch normalisation: a sample's result doesn't depend on the others
//! in its batch, so a batch that is run in parts gives the same gradients as the whole one.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use surefoot::place::{Autocast, Dtype, float_dtype};
use surefoot_ops::{GroupNorm as Normed, conv2d, group_norm, half_conv2d};

use super::{Predictive, applied, redraw};
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

/// Two units with a residual connection around them.
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
            Form::Dense { channels, height, width, target } => {
                ([channels, height, width], target.outputs())
            }
            Form::Text { length, .. } | Form::Sequences { length, .. } => {
                ([1, 1, length], form.outputs())
            }
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

    /// Multiplications and additions of the products of one sample's forward pass.
    pub(super) fn forward_flops(&self) -> f64 {
        let [_, mut height, mut width] = self.shape;
        let mut flops = self.stem.forward_flops(height, width);
        for block in &self.blocks {
            // The first unit of a block, and the one around it, may halve the image.
            height = height.div_ceil(block.first.stride);
            width = width.div_ceil(block.first.stride);
            flops += [Some(&block.first), Some(&block.second), block.around.as_ref()]
                .into_iter()
                .flatten()
                .map(|unit| unit.forward_flops(height, width))
                .sum::<f64>();
        }
        flops + 2.0 * self.head.weight.shape().num_elements() as f64
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

    /// Multiplications and additions of the convolution, for a result of this size.
    fn forward_flops(&self, height: usize, width: usize) -> f64 {
        2.0 * self.conv.weight.shape().num_elements() as f64 * (height * width) as f64
    }

    /// The convolution and its norm; then the residual is added and ReLU applied.
    fn forward(
        &self,
        x: Tensor<4>,
        around: Option<Tensor<4>>,
        relu: bool,
        cast: Autocast,
    ) -> Tensor<4> {
        let weight = self.conv.weight.val();
        let x = match cast.compute() {
            Dtype::F32 => conv2d(x, weight, self.stride, self.padding),
            other => half_conv2d(x, weight, self.stride, self.padding, float_dtype(other)),
        };
        let GroupNorm { gamma, beta, num_groups, epsilon, .. } = &self.norm;
        let norm = Normed { groups: *num_groups, epsilon: *epsilon, relu };
        match (gamma, beta) {
            (Some(gamma), Some(beta)) => group_norm(x, gamma.val(), beta.val(), around, norm),
            _ => unreachable!("these norms are made with a scale and a shift"),
        }
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
            Some(unit) => unit.forward(x.clone(), None, false, cast),
            None => x.clone(),
        };
        let x = self.first.forward(x, None, true, cast);
        self.second.forward(x, Some(around), true, cast)
    }
}

impl Predictive for Cnn {
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2> {
        let x = batch.dense();
        let [samples, _] = x.dims();
        let [channels, height, width] = self.shape;
        let x = x.reshape([samples, channels, height, width]);
        let mut x = self.stem.forward(x, None, true, cast);
        for block in &self.blocks {
            x = block.forward(x, cast);
        }
        // The mean over the image, for each channel.
        let [_, channels, height, width] = x.dims();
        let x = x.reshape([samples, channels, height * width]).mean_dim(2);
        let x = x.reshape([samples, channels]);
        applied(&self.head, x, None, cast)
    }
}
