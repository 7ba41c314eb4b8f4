//! `surefoot fingerprint`: sketches of a model's activations on a set of challenges, in a file.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use surefoot_verify::challenge_source::ChallengeKey;
use surefoot_verify::fingerprint::{Fingerprint, KeptSite};
use surefoot_verify::noise::VariantName;
use surefoot_verify::seal;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::fingerprinting::{ChallengeArgs, SignArgs, Verification};
use crate::footing_args::FootingArgs;
use crate::model_folder::ModelFolder;
use crate::terminal::{Table, Terminal};
use crate::weights_args::WeightsArgs;

/// Run a model on a set of challenges and save compact sketches of its hidden states
#[derive(Debug, Args)]
#[command(after_help = "\
The model is run in one pass, streamed if it doesn't fit --memory, then a few times more in other
variants to measure how far it deviates from itself. The file holds no weights and no texts.
Compare it with `surefoot compare`, look it up with `surefoot identify`, check it with `surefoot
verify`.

Challenges follow from a key and a run id. The usual key is public, so that everyone's
fingerprints can be compared; take a key of your own if a model could be prepared for it.

Examples:
  surefoot fingerprint models/llama --out llama.json
  surefoot fingerprint models/llama --memory 2GiB --sites auto --out llama.json
  surefoot fingerprint models/llama --key-file secret --run-id audit-7 --out llama.json
  surefoot fingerprint models/llama --prompts questions.txt --new-key my.key --out llama.json")]
pub(crate) struct FingerprintCommand {
    /// The model folder (config.json, tokenizer.json and safetensors weights), a GGUF file, or a checkpoint of a
    /// text model that `surefoot train` wrote
    model: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    sign: SignArgs,
    #[command(flatten)]
    challenges: ChallengeArgs,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct Document<'a> {
    out: String,
    model: &'a str,
    commitment: &'a str,
    root: &'a str,
    files: String,
    challenges: usize,
    sites: &'a [KeptSite],
    noise: Vec<&'a VariantName>,
    seconds: f64,
}

impl FingerprintCommand {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        crate::output::spare("--out", &self.out, &[&self.model])?;
        let begun = Instant::now();
        let options = self.challenges.options(ChallengeKey::Public)?;
        let device = self.challenges.calibration_device();
        let verification =
            Verification::new(&self.footing, self.weights.weights, device, global, terminal)?;
        let key = self.sign.key(terminal)?;
        let folder = ModelFolder::of(&self.model)?;
        if let Some(shard) = self.challenges.shard {
            let verifier = &verification.verifier;
            let part = verifier.fingerprint_shard(folder.path(), &options, device, shard);
            let part = verification.finished(part)?;
            seal::write(&self.out, &part.seal(key.as_ref())?)?;
            terminal.note(&format!(
                "{}: shard {shard}; `surefoot merge` joins all parts",
                self.out.display()
            ));
            return Ok(Exit::Done);
        }
        let made = verification.verifier.fingerprint(folder.path(), &options, device);
        let fingerprint = verification.finished(made)?;
        seal::write(&self.out, &fingerprint.seal(key.as_ref())?)?;
        let document = Document {
            out: self.out.display().to_string(),
            model: &fingerprint.model.name,
            commitment: &fingerprint.commitment,
            root: &fingerprint.root,
            files: fingerprint.model.digest(),
            challenges: fingerprint.sketches.len(),
            sites: &fingerprint.sites,
            noise: fingerprint.noise.variants.iter().map(|variant| &variant.name).collect(),
            seconds: begun.elapsed().as_secs_f64(),
        };
        if global.json {
            terminal.json(&document)?;
        } else {
            terminal.result(&told(&document, &fingerprint))?;
        }
        Ok(Exit::Done)
    }
}

fn told(document: &Document<'_>, fingerprint: &Fingerprint) -> String {
    let mut table = Table::new(["site", "changes by"]);
    for kept in &fingerprint.sites {
        let change = format!("{:.1} %", f64::from(kept.change) / 100.0);
        table.row([kept.site.to_string(), change]);
    }
    format!(
        "{}: {} at {} sites, {} challenges, {:.1} s\nroot {}\nfiles {}\n\n{table}",
        document.out,
        document.model,
        fingerprint.sites.len(),
        document.challenges,
        document.seconds,
        document.root,
        document.files
    )
}
