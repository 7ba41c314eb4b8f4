//! The activations that configuration files name.

use burn::tensor::{Tensor, activation};

use crate::error::ModelError;
use crate::folder::settings::Settings;

/// What a feed-forward does between its two projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    /// `x · sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// The activation that `key` names.
    pub fn read(settings: &Settings, key: &str, default: &str) -> Result<Self, ModelError> {
        Ok(match settings.text(key)?.unwrap_or(default) {
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh"
            | "gelu_accurate" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "silu" | "swish" => Self::Silu,
            "relu" => Self::Relu,
            "relu2" => Self::ReluSquared,
            "tanh" => Self::Tanh,
            other => {
                return Err(settings.problem(key, format!("is '{other}', which is not supported")));
            }
        })
    }

    /// Applies it.
    pub fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => activation::gelu(x),
            Self::GeluTanh => {
                // x³ by multiplication: a power of a negative number is NaN on some devices.
                let cube = x.clone() * x.clone() * x.clone();
                let inner = (x.clone() + cube * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
                x * (inner.tanh() + 1.0) * 0.5
            }
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
