//! Low-rank adapters of a model, in the format of PEFT: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! An adapter belongs to a model: it is read for an [`Opened`](crate::Opened) one, and every pair of tensors must be of a
//! projection that the model has, with its sizes. What an adapter of PEFT can hold beside that (DoRA, trained
//! biases, trained embeddings, whole modules) is refused by name, since a model without it would be another one.
//!
//! Names: `base_model.model.MODULE.lora_A.weight`, where `MODULE` is the projection's name in transformers
//! (`model.layers.0.self_attn.q_proj`), whatever the checkpoint itself puts before its names.

mod config;
mod interleaved;
mod merge;
mod read;
mod targets;
mod write;

use std::path::PathBuf;

use burn::tensor::{Device, Tensor, TensorData};

pub use config::AdapterConfig;
pub use merge::merge;
pub use targets::{Projections, Target, default_targets};

use crate::run::tuning::{LowRank, Tuning};

/// The file of an adapter's settings.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The file of its tensors.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// The pair of one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterPair {
    /// The projection that it is added to.
    pub target: Target,
    /// Rows of `a`.
    pub rank: usize,
    /// `[rank, inputs]`, row after row.
    pub a: Vec<f32>,
    /// `[outputs, rank]`, row after row, in the order of the model's weight.
    pub b: Vec<f32>,
    /// Applied to the product of both.
    pub scale: f64,
}

/// An adapter in the host's memory.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Its settings.
    pub config: AdapterConfig,
    /// Its pairs, in the order of the model's projections.
    pub pairs: Vec<AdapterPair>,
    /// The folder that it was read from.
    pub folder: Option<PathBuf>,
}

impl Adapter {
    /// Its tensors on `device`, to run a model with.
    pub fn tuning(&self, device: &Device) -> Tuning {
        let mut tuning = Tuning::default();
        for pair in &self.pairs {
            let Target { inputs, outputs, .. } = pair.target;
            let tensor = |numbers: &[f32], shape: [usize; 2]| {
                Tensor::from_data(TensorData::new(numbers.to_vec(), shape), device)
            };
            let (a, b) =
                (tensor(&pair.a, [pair.rank, inputs]), tensor(&pair.b, [outputs, pair.rank]));
            tuning.add(
                pair.target.tensor.clone(),
                LowRank { a, b, scale: pair.scale, dropout: None },
            );
        }
        tuning
    }

    /// The bytes of its tensors.
    pub fn bytes(&self) -> u64 {
        self.pairs.iter().map(|pair| (pair.a.len() + pair.b.len()) as u64 * 4).sum()
    }
}
