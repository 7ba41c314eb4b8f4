//! The architectures, one file each: from a configuration to a [`Blueprint`]. To add a sibling,
//! write its file and name it in [`describe`].

pub mod activation;
pub mod blueprint;
pub mod rope;

mod bert;
mod gpt2;
mod gpt_neox;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use blueprint::Blueprint;

use crate::error::ModelError;
use crate::folder::settings::Settings;

/// The architectures that can be run, by their `model_type`.
pub const FAMILIES: [&str; 7] = ["bert", "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"];

/// Weights that other programs quantised are refused by the name of the method. Those of `surefoot quantize` are found by their
/// tensors.
fn refuse_other_quantization(settings: &Settings) -> Result<(), ModelError> {
    const KEY: &str = "quantization_config";
    let Some(config) = settings.object(KEY)? else { return Ok(()) };
    match config.text("quant_method")? {
        Some(crate::quantize::METHOD) => Ok(()),
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
        "llama" => llama::describe(settings),
        "mistral" => mistral::describe(settings),
        "qwen2" => qwen2::describe(settings),
        "qwen3" => qwen3::describe(settings),
        other => Err(settings
            .problem("model_type", format!("is '{other}'; supported are {}", FAMILIES.join(", ")))),
    }
}
