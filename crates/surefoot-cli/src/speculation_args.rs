//! The options of speculative decoding, of the commands that generate text.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use surefoot_models::generate::speculate::{SpeculationCounts, SpeculationMode};

use crate::exit::Failure;
use crate::model_folder::ModelFolder;

/// Whether tokens are proposed, and by what.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct SpeculationArgs {
    /// Speculative decoding: propose tokens that the model checks several at a time
    ///
    /// This changes the speed, never the text. It works on the CPU, for models without an adapter. Without this option: auto if
    /// there is a draft model, else off.
    #[arg(long, value_enum, value_name = "HOW")]
    speculate: Option<Speculate>,
    /// A smaller model with the same tokenizer, which proposes tokens: a folder, a GGUF file or a checkpoint
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Speculate {
    /// Propose nothing
    Off,
    /// Always propose the tokens that followed the same tokens earlier in the text
    Lookup,
    /// Always propose tokens of the draft model
    Draft,
    /// Propose as lookup does or tokens of the draft model, whichever measurements show to be faster, as long as it
    /// pays; a draft model that is not smaller than the model is not used
    Auto,
}

impl SpeculationArgs {
    /// How tokens are proposed.
    pub(crate) fn mode(&self) -> Result<SpeculationMode, Failure> {
        let usual = if self.draft.is_some() { Speculate::Auto } else { Speculate::Off };
        match (self.speculate.unwrap_or(usual), &self.draft) {
            (Speculate::Off, None) => Ok(SpeculationMode::Off),
            (Speculate::Lookup, None) => Ok(SpeculationMode::Lookup),
            (Speculate::Off | Speculate::Lookup, Some(_)) => {
                Err(Failure::usage("--draft names a model that --speculate leaves no use for")
                    .hint("--speculate draft or auto, or no --draft"))
            }
            (Speculate::Draft, None) => {
                Err(Failure::usage("--speculate draft needs a model that drafts")
                    .hint("--draft MODEL, a smaller model with the same tokenizer"))
            }
            (Speculate::Draft, Some(_)) => Ok(SpeculationMode::Draft),
            (Speculate::Auto, _) => Ok(SpeculationMode::Auto),
        }
    }

    /// The folder of the draft model, which has to live as long as the model is used.
    pub(crate) fn draft(&self) -> Result<Option<ModelFolder>, Failure> {
        let Some(named) = &self.draft else { return Ok(None) };
        let folder = ModelFolder::of(named)?;
        match folder.adapter() {
            None => Ok(Some(folder)),
            Some(_) => Err(Failure::usage(format!(
                "{} is an adapter, which can't be a draft model",
                named.display()
            ))
            .hint("surefoot merge-adapter makes a model of it")),
        }
    }

    /// Whether a draft model was named.
    pub(crate) fn has_draft(&self) -> bool {
        self.draft.is_some()
    }
}

/// What became of proposals, for a note; none if there were none.
pub(crate) fn told(counts: SpeculationCounts) -> Option<String> {
    let share = counts.share()?;
    Some(format!(
        "speculation: {} of {} proposed tokens were accepted ({:.0} %)",
        counts.accepted,
        counts.accepted + counts.rejected,
        100.0 * share
    ))
}
