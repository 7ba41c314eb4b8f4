//! The option for the form of weights in memory, of every command that runs a model.

use clap::Args;
use surefoot_models::weights::choice::WeightChoice;

/// In how many bits weights are kept and multiplied with.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct WeightsArgs {
    /// Form of the weights in memory: as-stored, q8 or q4; they are quantised while they are loaded
    ///
    /// q8 (Q8_0) takes 8.5 bits a number, q4 (Q4_0, with a head in Q8_0) 4.5; on a GPU 9 and 5, since scales are f32
    /// there. They stay packed in memory. The CPU computes products with integers, a GPU converts a part at a time
    /// to its precision. Weights that are streamed are read as they are stored and quantised in every pass: quantise such a
    /// model once with `surefoot quantize`.
    #[arg(long, value_name = "FORM", default_value_t, hide_default_value = true)]
    pub(crate) weights: WeightChoice,
}
