//! A multi-layer perceptron.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use surefoot::place::Autocast;

use super::{Predictive, applied, redraw};
use crate::batch::Batch;

/// Linear layers with ReLU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// A network from `inputs` numbers over the hidden layers to `classes`.
    pub fn new(
        inputs: usize,
        hidden: &[usize],
        classes: usize,
        seed: u64,
        device: &Device,
    ) -> Self {
        let widths: Vec<usize> =
            std::iter::once(inputs).chain(hidden.iter().copied()).chain([classes]).collect();
        let layers = widths
            .windows(2)
            .map(|pair| {
                LinearConfig::new(pair[0], pair[1])
                    .with_initializer(Initializer::Zeros)
                    .init(device)
            })
            .collect();
        redraw(Self { layers }, seed, device)
    }

    /// Multiplications and additions of the products of one sample's forward pass.
    pub(super) fn forward_flops(&self) -> f64 {
        self.layers.iter().map(|layer| 2.0 * layer.weight.shape().num_elements() as f64).sum()
    }
}

impl Predictive for Mlp {
    fn outputs(&self, batch: &Batch, cast: Autocast) -> Tensor<2> {
        let last = self.layers.len() - 1;
        let mut x = batch.dense();
        for (at, layer) in self.layers.iter().enumerate() {
            x = applied(layer, x, None, cast);
            if at < last {
                x = relu(x);
            }
        }
        x
    }
}
