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

/// Describes the model that a configuration is of.
pub fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let family =
        settings.text("model_type")?.ok_or_else(|| settings.problem("model_type", "is missing"))?;
    if settings.has("quantization_config") {
        return Err(
            settings.problem("quantization_config", "is set: quantised weights are not supported")
        );
    }
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
