//! Computes activation functions.

use burn::tensor::{Tensor, activation};

use crate::arch::activation::Activation;

impl Activation {
    /// The activation of `gate`, times `value`.
    pub fn gated(self, gate: Tensor<2>, value: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Silu => surefoot_ops::gated_silu(&gate, &value),
            _ => None,
        }
        .unwrap_or_else(|| self.apply(gate) * value)
    }

    /// Applies it.
    pub fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => surefoot_ops::gelu(x),
            Self::GeluTanh => surefoot_ops::gelu_tanh(x),
            Self::QuickGelu => activation::sigmoid(x.clone() * 1.702) * x,
            Self::Silu => activation::silu(x),
            Self::Relu => activation::relu(x),
            Self::ReluSquared => {
                let x = activation::relu(x);
                x.clone() * x
            }
            Self::Tanh => x.tanh(),
        }
    }
}
