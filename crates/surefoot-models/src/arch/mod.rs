//! The families of models, one file each: from a configuration to a [`Blueprint`]. To add a family,
//! write its file and name it in [`FAMILIES`] and [`describe`].

pub mod activation;
pub mod blueprint;
pub mod rope;

mod bert;
mod cohere;
mod experts;
mod gemma2;
mod gemma3;
mod gpt2;
mod gpt_neox;
mod granite;
mod layer_types;
mod llama;
mod mistral;
mod mixtral;
mod modernbert;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod smollm3;
mod xlm_roberta;

use blueprint::Blueprint;

use crate::error::ModelError;
use crate::folder::quantization::Scheme;
use crate::folder::settings::Settings;

/// The architectures that can be run, by their `model_type`.
pub const FAMILIES: [&str; 21] = [
    "bert",
    "cohere",
    "cohere2",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "modernbert",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "roberta",
    "smollm3",
    "xlm-roberta",
];

/// Describes the model that a configuration is of.
pub fn describe(settings: &Settings) -> Result<Blueprint, ModelError> {
    let family =
        settings.text("model_type")?.ok_or_else(|| settings.problem("model_type", "is missing"))?;
    // What can't be read is refused before anything else is said about the model.
    Scheme::read(settings)?;
    match family {
        "bert" => bert::describe(settings),
        "cohere" => cohere::describe(settings),
        "cohere2" => cohere::describe_2(settings),
        "gemma2" => gemma2::describe(settings),
        "gemma3_text" => gemma3::describe(settings),
        "gpt2" => gpt2::describe(settings),
        "gpt_neox" => gpt_neox::describe(settings),
        "granite" => granite::describe(settings),
        "llama" => llama::describe(settings),
        "mistral" => mistral::describe(settings),
        "mixtral" => mixtral::describe(settings),
        "modernbert" => modernbert::describe(settings),
        "olmo2" => olmo2::describe(settings),
        "phi3" => phi3::describe(settings),
        "qwen2" => qwen2::describe(settings),
        "qwen2_moe" => qwen2_moe::describe(settings),
        "qwen3" => qwen3::describe(settings),
        "qwen3_moe" => qwen3_moe::describe(settings),
        "roberta" => xlm_roberta::describe(settings, "roberta"),
        "smollm3" => smollm3::describe(settings),
        "xlm-roberta" => xlm_roberta::describe(settings, "xlm-roberta"),
        other => Err(settings
            .problem("model_type", format!("is '{other}'; supported are {}", FAMILIES.join(", ")))),
    }
}
