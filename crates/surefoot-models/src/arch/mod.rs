//! The families of models, one file each: from a configuration to a [`Blueprint`]. To add a family,
//! write its file and name it in [`FAMILIES`] and [`describe`].

pub mod activation;
pub mod blueprint;
pub mod rope;

mod bert;
mod experts;
mod gpt2;
mod gpt_neox;
mod granite;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod smollm3;

use blueprint::Blueprint;

use crate::error::ModelError;
use crate::folder::settings::Settings;

/// The architectures that can be run, by their `model_type`.
pub const FAMILIES: [&str; 14] = [
    "bert",
    "gpt2",
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
];

/// `quant_method` in the `config.json` of folders that `surefoot quantize` writes.
pub(crate) const QUANT_METHOD: &str = "surefoot";

/// Weights that other programs quantised are refused by the name of the method. Those of `surefoot quantize` are found by their
/// tensors.
fn refuse_other_quantization(settings: &Settings) -> Result<(), ModelError> {
    const KEY: &str = "quantization_config";
    let Some(config) = settings.object(KEY)? else { return Ok(()) };
    match config.text("quant_method")? {
        Some(QUANT_METHOD) => Ok(()),
        method => Err(settings.problem(
            KEY,
            format!(
                "says that weights are quantised by '{}', which can't be read; take the model's original folder and \
                 quantise it with --weights q4 or `surefoot quantize`, or take a GGUF file of it",
                method.unwrap_or("an unnamed method")
            ),
        )),
    }
}

/// Describes the model that a configuration is of.
pub fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let family =
        settings.text("model_type")?.ok_or_else(|| settings.problem("model_type", "is missing"))?;
    refuse_other_quantization(settings)?;
    match family {
        "bert" => bert::describe(settings),
        "gpt2" => gpt2::describe(settings),
        "gpt_neox" => gpt_neox::describe(settings),
        "granite" => granite::describe(settings),
        "llama" => llama::describe(settings),
        "mistral" => mistral::describe(settings),
        "mixtral" => mixtral::describe(settings),
        "olmo2" => olmo2::describe(settings),
        "phi3" => phi3::describe(settings),
        "qwen2" => qwen2::describe(settings),
        "qwen2_moe" => qwen2_moe::describe(settings),
        "qwen3" => qwen3::describe(settings),
        "qwen3_moe" => qwen3_moe::describe(settings),
        "smollm3" => smollm3::describe(settings),
        other => Err(settings
            .problem("model_type", format!("is '{other}'; supported are {}", FAMILIES.join(", ")))),
    }
}
