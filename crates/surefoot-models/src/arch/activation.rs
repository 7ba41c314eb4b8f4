//! The activations that configuration files name.

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
}
