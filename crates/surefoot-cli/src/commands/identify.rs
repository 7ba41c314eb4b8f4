//! `surefoot identify`: which known model is this?

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use surefoot_verify::decision::DecisionRule;
use surefoot_verify::fingerprint::Fingerprint;
use surefoot_verify::library::{Library, Match, Relation};

use crate::args::Global;
use crate::commands::compare::shown;
use crate::exit::{Exit, Failure};
use crate::fingerprinting::{ChallengeArgs, DefaultKey, Maker};
use crate::footing_args::FootingArgs;
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
    known: bool,
    fingerprints: usize,
    of_the_same_challenges: usize,
    search_seconds: f64,
    matches: Vec<Match>,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Refused {
    file: String,
    reason: String,
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
        let fingerprint = self.fingerprint(global, terminal)?;
        let begun = Instant::now();
        let library = Library::open(&self.library)?;
        if library.is_empty() {
            let hint = "`surefoot fingerprint MODEL --out FOLDER/MODEL.json` adds one";
            terminal.note(&format!("{} has no fingerprints: {hint}", self.library.display()));
        }
        let (near, comparable) = library.nearest(&fingerprint, self.nearest as usize)?;
        let search_seconds = begun.elapsed().as_secs_f64();
        let rule = DecisionRule::default();
        let (mut matches, mut refused) = (Vec::new(), library.refused.clone());
        for near in near {
            let file = near.file.clone();
            match library.compare(near, &fingerprint, &rule) {
                Ok(found) => matches.push(found),
                // Another tokenizer with as many tokens, say: no reason to stop.
                Err(error) => refused.push((file.clone(), format!("{file}: {error}"))),
            }
        }
        let document = Document {
            model: self.model.display().to_string(),
            known: matches.iter().any(|found| found.relation != Relation::Unrelated),
            fingerprints: library.len(),
            of_the_same_challenges: comparable,
            search_seconds,
            matches,
            refused: refused.into_iter().map(|(file, reason)| Refused { file, reason }).collect(),
        };
        for refused in &document.refused {
            terminal.note(&format!("left out: {}", refused.reason));
        }
        if global.json {
            terminal.json(&document)?;
        } else {
            terminal.result(&told(&document))?;
        }
        Ok(if document.known { Exit::Done } else { Exit::No })
    }

    fn fingerprint(&self, global: &Global, terminal: &Terminal) -> Result<Fingerprint, Failure> {
        let path: &Path = &self.model;
        if path.is_file() {
            return Ok(Fingerprint::read(path)?);
        }
        let policy = self.challenges.policy()?;
        let set = self.challenges.set(path, DefaultKey::Public)?;
        let maker = Maker::new(&self.footing, global, terminal)?;
        maker.announce(&set);
        maker.candidate(path, &set, policy)
    }
}

fn told(document: &Document) -> String {
    let first = document.matches.first().filter(|_| document.known);
    let mut text = match first {
        Some(found) => {
            let relation = match found.relation {
                Relation::Same => "the same as",
                Relation::Related => "related to",
                Relation::Unrelated => "nearest to",
            };
            format!("{}: {relation} {}\n", document.model, found.near.model)
        }
        None => format!("{}: unknown\n", document.model),
    };
    text.push_str(&format!(
        "{} fingerprints, {} of the same challenges, searched in {:.1} ms\n",
        document.fingerprints,
        document.of_the_same_challenges,
        document.search_seconds * 1e3
    ));
    if document.of_the_same_challenges == 0 && document.fingerprints > 0 {
        text.push_str(
            "none of them was asked the same challenges: another vocabulary, key or run id\n",
        );
    }
    if document.matches.is_empty() {
        return text;
    }
    let mut table =
        Table::new(["model", "relation", "distance", "verdict", "against unrelated", "file"]);
    for found in &document.matches {
        let relation = match found.relation {
            Relation::Same => "same",
            Relation::Related => "related",
            Relation::Unrelated => "unrelated",
        };
        table.row([
            found.near.model.clone(),
            relation.to_owned(),
            format!("{:.4}", found.near.distance),
            found.comparison.decision.verdict.to_string(),
            shown(found.ln_e_related),
            found.near.file.clone(),
        ]);
    }
    format!("{text}\n{table}")
}
