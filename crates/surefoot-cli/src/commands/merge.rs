//! `surefoot merge`: the parts that several machines made, as one fingerprint or one verdict.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use surefoot_verify::decision::Verdict;
use surefoot_verify::shard::{self, Merged};
use surefoot_verify::{VerifyError, seal};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::fingerprinting::{SignArgs, exit_of};
use crate::terminal::Terminal;

/// Join the parts of a fingerprint or comparison that were made with --shard
#[derive(Debug, Args)]
#[command(after_help = "\
Parts can be given in any order. A part that is missing, is there twice or belongs to another run
(another model, other challenges, another device) is refused by name. On the CPU, the merged file is
the one that a single machine would have written.

Exit code 0 for a fingerprint or SAME, 1 for DIFFERENT, 4 for UNDECIDED, 2 if parts don't fit.

Examples:
  surefoot fingerprint models/llama --shard 1/2 --out part-1.json      on one machine
  surefoot fingerprint models/llama --shard 2/2 --out part-2.json      on another
  surefoot merge part-*.json --out llama.json
  parallel surefoot fingerprint models/llama --shard {}/8 --out part-{}.json ::: $(seq 8)")]
pub(crate) struct Merge {
    /// The files of all parts
    #[arg(value_name = "PART", required = true)]
    parts: Vec<PathBuf>,
    /// Write the fingerprint or transcript to this file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    sign: SignArgs,
}

#[derive(Serialize)]
struct Document {
    out: PathBuf,
    kind: &'static str,
    parts: usize,
    challenges: usize,
    root: String,
    verdict: Option<Verdict>,
}

impl Merge {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let parts: Vec<&std::path::Path> = self.parts.iter().map(PathBuf::as_path).collect();
        crate::output::spare("--out", &self.out, &parts)?;
        let key = self.sign.key(terminal)?;
        let merged = shard::merge(&parts).map_err(failed)?;
        let (kind, verdict, bytes, fingerprint) = match &merged {
            Merged::Fingerprint(it) => ("fingerprint", None, it.seal(key.as_ref())?, it.as_ref()),
            Merged::Comparison(it) => {
                let verdict = Some(it.comparison.decision.verdict);
                ("comparison", verdict, it.seal(key.as_ref())?, &it.reference)
            }
        };
        seal::write(&self.out, &bytes)?;
        let document = Document {
            out: self.out.clone(),
            kind,
            parts: self.parts.len(),
            challenges: fingerprint.sketches.len(),
            root: fingerprint.root.clone(),
            verdict,
        };
        if global.json {
            terminal.json(&document)?;
        } else {
            let verdict = verdict.map(|verdict| format!("{verdict}\n")).unwrap_or_default();
            terminal.result(&format!(
                "{verdict}{}: {kind} of {} challenges from {} parts, root {}\n",
                document.out.display(),
                document.challenges,
                document.parts,
                document.root
            ))?;
        }
        Ok(verdict.map_or(Exit::Done, exit_of))
    }
}

fn failed(error: VerifyError) -> Failure {
    match error {
        VerifyError::Incomparable(why) => Failure::usage("the parts can't be merged").because(why),
        other => other.into(),
    }
}
