//! `surefoot identify`: which known model is this?

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_verify::challenge_source::ChallengeKey;
use surefoot_verify::library::{Identification, Relation};
use surefoot_verify::subject::Subject;

use crate::args::Global;
use crate::commands::compare::shown;
use crate::exit::{Exit, Failure};
use crate::fingerprinting::{ChallengeArgs, Verification};
use crate::footing_args::FootingArgs;
use crate::model_folder::ModelFolder;
use crate::terminal::{Table, Terminal};

/// Find a model in a folder of fingerprints
#[derive(Debug, Args)]
#[command(after_help = "\
The nearest fingerprints of the same challenges are compared in full: `same` within tolerance,
`related` if it is another model but nearer than unrelated ones can be (a fine-tuned or rounded
copy, say), `unrelated` else. If all are unrelated, the model is unknown.

Exit code 0 if the model is the same as or related to one of the folder, 1 if it is unknown.

Examples:
  surefoot identify models/download --library fingerprints/
  surefoot identify download.json --library fingerprints/ --nearest 3 --json")]
pub(crate) struct Identify {
    /// The model folder, or its fingerprint
    model: PathBuf,
    /// The folder of fingerprints
    #[arg(long, value_name = "FOLDER")]
    library: PathBuf,
    /// How many of the nearest are compared in full
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nearest: u32,
    #[command(flatten)]
    challenges: ChallengeArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct Document {
    model: String,
    #[serde(flatten)]
    found: Identification,
}

impl Identify {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        if !self.library.is_dir() {
            return Err(Failure::usage(format!("{} is not a folder", self.library.display()))
                .hint("surefoot fingerprint MODEL --out FOLDER/MODEL.json"));
        }
        if self.challenges.shard.is_some() {
            return Err(Failure::usage("--shard has no meaning for identify").hint(
                "surefoot fingerprint MODEL --shard INDEX/COUNT, then merge and identify that",
            ));
        }
        let options = self.challenges.options(ChallengeKey::Public)?;
        let folder = ModelFolder::of(&self.model)?;
        let subject = Subject::open(&folder.path().to_string_lossy())?;
        let verification =
            Verification::new(&self.footing, WeightChoice::AsStored, None, global, terminal)?;
        let nearest = self.nearest as usize;
        let found = verification.verifier.identify(subject, &self.library, nearest, &options);
        let found = verification.finished(found)?;
        if found.fingerprints == 0 {
            let hint = "`surefoot fingerprint MODEL --out FOLDER/MODEL.json` adds one";
            terminal.note(&format!("{} has no fingerprints: {hint}", self.library.display()));
        }
        for refused in &found.refused {
            terminal.note(&format!("left out: {}", refused.reason));
        }
        let document = Document { model: self.model.display().to_string(), found };
        if global.json {
            terminal.json(&document)?;
        } else {
            terminal.result(&told(&document))?;
        }
        Ok(if document.found.known { Exit::Done } else { Exit::No })
    }
}

fn told(document: &Document) -> String {
    let found = &document.found;
    let first = found.matches.first().filter(|_| found.known);
    let mut text = match first {
        Some(first) => {
            let relation = match first.relation {
                Relation::Same => "the same as",
                Relation::Related => "related to",
                Relation::Unrelated => "nearest to",
            };
            format!("{}: {relation} {}\n", document.model, first.near.model)
        }
        None => format!("{}: unknown\n", document.model),
    };
    text.push_str(&format!(
        "fingerprints: {}, with the same challenges: {}, searched in {:.1} ms\n",
        found.fingerprints,
        found.of_the_same_challenges,
        found.search_seconds * 1e3
    ));
    if found.of_the_same_challenges == 0 && found.fingerprints > 0 {
        text.push_str(
            "none of them was asked the same challenges: another vocabulary, key or run id\n",
        );
    }
    if found.matches.is_empty() {
        return text;
    }
    let mut table =
        Table::new(["model", "relation", "distance", "verdict", "against unrelated", "file"]);
    for near in &found.matches {
        let relation = match near.relation {
            Relation::Same => "same",
            Relation::Related => "related",
            Relation::Unrelated => "unrelated",
        };
        table.row([
            near.near.model.clone(),
            relation.to_owned(),
            format!("{:.4}", near.near.distance),
            near.comparison.decision.verdict.to_string(),
            shown(near.ln_e_related),
            near.near.file.clone(),
        ]);
    }
    format!("{text}\n{table}")
}
