//! `surefoot verify`: does a fingerprint or a transcript hold?

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_verify::decision::Verdict;
use surefoot_verify::document::{Document as Contents, Recheck};
use surefoot_verify::fingerprint::{Fingerprint, Inclusion};
use surefoot_verify::seal;
use surefoot_verify::shard::Shard;
use surefoot_verify::site::Site;
use surefoot_verify::weight_form::WeightForm;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::fingerprinting::{Verification, exit_of};
use crate::footing_args::FootingArgs;
use crate::terminal::Terminal;

/// Check a fingerprint or the transcript of a comparison
#[derive(Debug, Args)]
#[command(after_help = "\
Computes everything again that the file's own contents give: digest and signature, challenges,
sketches' root, verdict. A damaged file is exit code 2. With --model, challenges drawn at random
are run again on that folder and compared with what the file says: exit code 0, 1 or 4 as for
`surefoot compare`. For a transcript that is the side whose files the folder has, else the
candidate.

Examples:
  surefoot verify transcript.json
  surefoot verify llama.json --model models/llama --sample 24
  surefoot verify llama.json --leaf \"3:block 5\" --json
  surefoot verify transcript.json --signed-by 5f2a…")]
pub(crate) struct Verify {
    /// The fingerprint or transcript
    transcript: PathBuf,
    /// Run a sample of the challenges again on this model folder
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// How many challenges are run again
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    sample: usize,
    /// Run this part of all challenges again on the model and write it to --out, for example 2/8;
    /// `surefoot merge` joins all parts and says whether the model is the reference of the file
    #[arg(long, value_name = "INDEX/COUNT", requires_all = ["model", "out"], conflicts_with = "sample")]
    shard: Option<Shard>,
    /// The file that --shard writes
    #[arg(long, value_name = "FILE", requires = "shard")]
    out: Option<PathBuf>,
    /// Show that a sketch belongs to the root: CHALLENGE:SITE
    #[arg(long, value_name = "LEAF")]
    leaf: Vec<Leaf>,
    /// Require the signature of this public key
    #[arg(long, value_name = "KEY")]
    signed_by: Option<String>,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Clone, Debug)]
struct Leaf {
    challenge: usize,
    site: Site,
}

impl FromStr for Leaf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (challenge, site) =
            text.split_once(':').ok_or("a leaf is CHALLENGE:SITE, as in \"3:block 5\"")?;
        let challenge = challenge
            .parse()
            .map_err(|_| format!("'{challenge}' is not the number of a challenge"))?;
        Ok(Self { challenge, site: site.parse()? })
    }
}

#[derive(Serialize)]
struct Document {
    file: String,
    kind: &'static str,
    root: String,
    signed_by: Option<String>,
    verdict: Option<Verdict>,
    leaves: Vec<Inclusion>,
    rerun: Option<Recheck>,
}

impl Verify {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let (opened, seal) = Contents::read(&self.transcript)?;
        if let Some(key) = &self.signed_by
            && seal.public_key.as_ref() != Some(key)
        {
            let who = seal.public_key.map_or_else(
                || "it is not signed".to_owned(),
                |other| format!("it is signed by {other}"),
            );
            terminal
                .result(&format!("{}: NOT signed by {key}: {who}\n", self.transcript.display()))?;
            return Ok(Exit::No);
        }
        let reference = opened.reference();
        let leaves = self
            .leaf
            .iter()
            .map(|leaf| reference.prove(leaf.challenge, leaf.site))
            .collect::<Result<Vec<_>, _>>()?;
        if let (Some(shard), Some(folder), Some(out)) = (self.shard, &self.model, &self.out) {
            return self.part(shard, folder, out, reference, global, terminal);
        }
        let rerun = match &self.model {
            Some(folder) => {
                let verification = Verification::new(
                    &self.footing,
                    weights_of(reference)?,
                    None,
                    global,
                    terminal,
                )?;
                let again = verification.verifier.recheck(&opened, folder, self.sample);
                Some(verification.finished(again)?)
            }
            None => None,
        };
        let exit =
            rerun.as_ref().map_or(Exit::Done, |rerun| exit_of(rerun.comparison.decision.verdict));
        let document = Document {
            file: self.transcript.display().to_string(),
            kind: match &opened {
                Contents::Fingerprint(_) => "fingerprint",
                Contents::Comparison(_) => "comparison",
            },
            root: reference.root.clone(),
            signed_by: seal.public_key,
            verdict: match &opened {
                Contents::Fingerprint(_) => None,
                Contents::Comparison(it) => Some(it.comparison.decision.verdict),
            },
            leaves,
            rerun,
        };
        if global.json {
            terminal.json(&document)?;
        } else {
            terminal.result(&told(&document))?;
        }
        Ok(exit)
    }
}

impl Verify {
    /// Runs a part of the challenges of `reference` on the model and writes it.
    fn part(
        &self,
        shard: Shard,
        folder: &Path,
        out: &Path,
        reference: &Fingerprint,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        crate::output::spare("--out", out, &[&self.transcript, folder])?;
        let verification =
            Verification::new(&self.footing, weights_of(reference)?, None, global, terminal)?;
        let part = verification.verifier.recheck_shard(reference, folder, shard);
        let part = verification.finished(part)?;
        seal::write(out, &part.seal(None)?)?;
        terminal
            .note(&format!("{}: shard {shard}; `surefoot merge` joins all parts", out.display()));
        Ok(Exit::Done)
    }
}

/// How the weights of a fingerprint's model were loaded, so that they are loaded so again.
fn weights_of(fingerprint: &Fingerprint) -> Result<WeightChoice, Failure> {
    match &fingerprint.run.weights {
        None => Ok(WeightChoice::AsStored),
        Some(WeightForm::Quantized(choice)) => Ok(*choice),
        Some(other) => Err(Failure::usage("the reference can't be run again alone")
            .because(format!("its weights were {other}, as those of the candidate are"))
            .hint("run `surefoot compare` with both again")),
    }
}

fn told(document: &Document) -> String {
    let mut text = format!("{}: holds, root {}\n", document.file, document.root);
    if let Some(verdict) = document.verdict {
        text.push_str(&format!("its verdict, computed again: {verdict}\n"));
    }
    text.push_str(&match &document.signed_by {
        Some(key) => format!("signed by {key}\n"),
        None => {
            "not signed: anybody who had the file could have changed it and its digest\n".to_owned()
        }
    });
    for leaf in &document.leaves {
        text.push_str(&format!(
            "challenge {} at {} is leaf {} of {}, {} hashes below the root\n",
            leaf.challenge,
            leaf.site,
            leaf.index,
            leaf.leaves,
            leaf.path.len()
        ));
    }
    if let Some(rerun) = &document.rerun {
        let decision = &rerun.comparison.decision;
        text.push_str(&format!(
            "{} challenges run again on the {}: {}; its files are {}\n",
            rerun.challenges.len(),
            rerun.side,
            decision.verdict,
            if rerun.same_files { "the very same" } else { "others" }
        ));
        if let Some(site) = decision.first_diverging {
            text.push_str(&format!("first diverging site: {site}\n"));
        }
    }
    text
}
