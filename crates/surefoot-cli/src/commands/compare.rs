//! `surefoot compare`: is this the same model?

mod page;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use surefoot_models::folder::gguf::is_gguf;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_verify::challenge_source::ChallengeKey;
use surefoot_verify::compare::Comparison;
use surefoot_verify::decision::{DecisionRule, Verdict};
use surefoot_verify::endpoint::Weakness;
use surefoot_verify::noise::NoiseClass;
use surefoot_verify::quality::{Quality, QualityOptions};
use surefoot_verify::seal;
use surefoot_verify::shard::{ComparisonShard, Shard};
use surefoot_verify::subject::Subject;
use surefoot_verify::transcript::Candidate;
use surefoot_verify::verdict::{CompareOptions, Compared};
use surefoot_verify::weight_form::WeightForm;
use surefoot_verify::weights::FileComparison;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::fingerprinting::{ChallengeArgs, SignArgs, Verification, exit_of};
use crate::footing_args::FootingArgs;
use crate::model_folder::ModelFolder;
use crate::terminal::{Table, Terminal};
use crate::weights_args::WeightsArgs;

/// The environment variable with an endpoint's key.
const API_KEY: &str = "OPENAI_API_KEY";

/// Compare a model with a reference: SAME, DIFFERENT or UNDECIDED
#[derive(Debug, Args)]
#[command(after_help = "\
Each side is a model folder, a GGUF file or a fingerprint; the second can also be the base URL of
an OpenAI-compatible endpoint, which shows far less of its model. Two folders are compared on new
challenges that nobody can know in advance.

SAME: at every site the models deviate by less than the noise of the reference allows. DIFFERENT:
at some site by more; the first one is named. Each is wrong with a probability of at most --beta
and --alpha. Where weights are stored in the same dtype and run in the same precision on the
same device (or one of --calibrate-on) only the order of sums is allowed for, else rounding to
bf16 as well. A verdict is about behaviour on the challenges; the files of both are compared too,
and tensors that differ are named where both are folders.

A candidate whose weights are quantised (a GGUF file, a folder of `surefoot quantize`, --weights)
is compared with the reference rounded to the same formats, if that is a folder: SAME then means
that it is that quantisation of that model.

--quality TEXTFILE measures instead how well the candidate replaces the reference on a text
of yours: divergence of its predictions, agreement, perplexity; cosine of embeddings of the lines
for encoders. There --weights is for the candidate only.

Exit code 0 for SAME, 1 for DIFFERENT, 4 for UNDECIDED, 2 if the two can't be compared.

Examples:
  surefoot compare models/llama models/llama-copy
  surefoot compare llama.json models/download --html report.html
  surefoot compare models/llama llama-Q4_0.gguf
  surefoot compare models/llama models/llama --weights q4 --quality my-text.txt
  surefoot compare models/llama http://localhost:8000/v1 --out transcript.json")]
pub(crate) struct Compare {
    /// The reference: a model folder, a GGUF file or a fingerprint
    reference: String,
    /// What is compared with it: a model folder, a GGUF file, a fingerprint or the URL of an endpoint
    candidate: String,
    /// The largest probability of a false DIFFERENT
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    alpha: f64,
    /// The largest probability of a false SAME
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    beta: f64,
    /// The mean excess from which models are different: 0 is the tolerance, 1 is twice as much
    #[arg(long, value_name = "EXCESS", default_value_t = 0.3)]
    delta: f64,
    /// Write the transcript to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write an HTML report to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The model to request from the endpoint, if it is not the first one that it lists
    #[arg(long, value_name = "NAME")]
    endpoint_model: Option<String>,
    /// Measure how far the candidate's predictions are from the reference's on this text, instead of a verdict
    #[arg(long, value_name = "TEXTFILE", conflicts_with_all = ["out", "html"])]
    quality: Option<PathBuf>,
    /// Tokens of the text that are used, at most
    #[arg(long, value_name = "COUNT", default_value_t = 1024, requires = "quality")]
    quality_tokens: usize,
    #[command(flatten)]
    sign: SignArgs,
    #[command(flatten)]
    challenges: ChallengeArgs,
    /// Compare A with B and this adapter merged into it: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct QualityDocument<'a> {
    reference: &'a str,
    candidate: &'a str,
    weights: &'static str,
    quality: Quality,
}

#[derive(Serialize)]
struct Document<'a> {
    reference: &'a str,
    candidate: &'a str,
    commitment: &'a str,
    rule: &'a DecisionRule,
    comparison: &'a Comparison,
    /// How the reference's weights were rounded before the comparison.
    rounding: Option<&'a WeightForm>,
    weakness: Option<&'a Weakness>,
    files: Option<&'a FileComparison>,
}

impl Compare {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let rule = DecisionRule {
            alpha: self.alpha,
            beta: self.beta,
            delta: self.delta,
            ..DecisionRule::default()
        };
        rule.check()?;
        let sides = [Path::new(&self.reference), Path::new(&self.candidate)];
        for (option, file) in [("--out", &self.out), ("--html", &self.html)] {
            if let Some(file) = file {
                crate::output::spare(option, file, &sides)?;
            }
        }
        let reference_folder = ModelFolder::of(sides[0])?.merged()?;
        let candidate_folder = ModelFolder::adapted(sides[1], self.adapter.as_deref())?.merged()?;
        let reference = Subject::open(&reference_folder.path().to_string_lossy())?;
        let candidate = Subject::open(&candidate_folder.path().to_string_lossy())?;
        if let Some(file) = &self.quality {
            let (reference, candidate) = (reference_folder.path(), candidate_folder.path());
            return self.quality(file, reference, candidate, global, terminal);
        }
        let key = self.sign.key(terminal)?;
        let options = CompareOptions {
            rule,
            challenges: self.challenges.options(ChallengeKey::Fresh)?,
            calibrate_on: self.challenges.calibration_device(),
            endpoint_model: self.endpoint_model.clone(),
            endpoint_key: std::env::var(API_KEY).ok(),
        };
        let verification = Verification::new(
            &self.footing,
            self.weights.weights,
            options.calibrate_on,
            global,
            terminal,
        )?;
        if let Some(shard) = self.challenges.shard {
            let part = self.shard(&verification, (reference, candidate), &options, shard)?;
            let out = self.out.as_ref().ok_or_else(|| {
                Failure::usage("a part of a comparison needs a file to go to").hint("--out FILE")
            })?;
            seal::write(out, &part.seal(key.as_ref())?)?;
            terminal.note(&format!(
                "{}: shard {shard}, no verdict yet; `surefoot merge` joins all parts",
                out.display()
            ));
            return Ok(Exit::Done);
        }
        let compared = verification.verifier.compare(reference, candidate, &options);
        let Compared { transcript, files, .. } = verification.finished(compared)?;
        if let Some(out) = &self.out {
            seal::write(out, &transcript.seal(key.as_ref())?)?;
        }
        if let Some(html) = &self.html {
            let page = page::html(&transcript).map_err(|error| {
                Failure::usage("the report could not be made").caused_by(&error)
            })?;
            seal::write(html, &page)?;
        }
        let rounding = transcript.reference.run.weights.as_ref();
        let weakness = match &transcript.candidate {
            Candidate::Endpoint(_, weakness) => Some(weakness),
            Candidate::Model(_) => None,
        };
        if global.json {
            terminal.json(&Document {
                reference: &self.reference,
                candidate: &self.candidate,
                commitment: &transcript.reference.commitment,
                rule: &transcript.rule,
                comparison: &transcript.comparison,
                rounding,
                weakness,
                files: files.as_ref(),
            })?;
        } else {
            terminal.result(&told(
                &transcript.comparison,
                &rule,
                weakness,
                files.as_ref(),
                rounding,
            ))?;
        }
        Ok(exit_of(transcript.comparison.decision.verdict))
    }
}

impl Compare {
    /// Measures the candidate on a text, in the form of `--weights`, against the reference as it is stored.
    fn quality(
        &self,
        file: &Path,
        reference: &Path,
        candidate: &Path,
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        for side in [reference, candidate] {
            if !side.is_dir() && !is_gguf(side) {
                return Err(Failure::usage(format!(
                    "--quality runs both models, and {} is neither a model folder nor a GGUF file",
                    side.display()
                )));
            }
        }
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::usage(format!("{} can't be read", file.display())).caused_by(&error)
        })?;
        let verification =
            Verification::new(&self.footing, WeightChoice::AsStored, None, global, terminal)?;
        let mut options = QualityOptions::default();
        (options.tokens, options.weights) = (self.quality_tokens, self.weights.weights);
        let measured = verification.verifier.quality(reference, candidate, &text, &options);
        let quality = verification.finished(measured)?;
        if global.json {
            terminal.json(&QualityDocument {
                reference: &self.reference,
                candidate: &self.candidate,
                weights: self.weights.weights.as_str(),
                quality,
            })?;
        } else {
            terminal.result(&told_quality(&quality))?;
        }
        Ok(Exit::Done)
    }

    /// Runs a part of the comparison.
    fn shard(
        &self,
        verification: &Verification<'_>,
        (reference, candidate): (Subject, Subject),
        options: &CompareOptions,
        shard: Shard,
    ) -> Result<ComparisonShard, Failure> {
        if matches!(reference, Subject::Folder(_)) && !self.challenges.are_repeatable() {
            return Err(Failure::usage("--shard needs the same challenges on every machine")
                .because("two folders are asked challenges from a new key each time")
                .hint("--key-file FILE, with the same key on all machines: `openssl rand -hex 32 > FILE`"));
        }
        let Subject::Folder(folder) = candidate else {
            return Err(Failure::usage(format!(
                "{} can't be run in shards: it is not a model folder",
                self.candidate
            )));
        };
        let part = verification.verifier.compare_shard(reference, &folder, options, shard);
        verification.finished(part)
    }
}

fn told_quality(quality: &Quality) -> String {
    match quality {
        Quality::Predictions {
            predictions,
            kl_mean,
            kl_99,
            kl_max,
            top1_agreement,
            reference_perplexity,
            candidate_perplexity,
            ..
        } => format!(
            "{predictions} predictions of the next token\n\
             KL divergence from the reference: {kl_mean:.5} nats on average, 99 % below {kl_99:.4}, at most {kl_max:.4}\n\
             likeliest token the same: {:.2} %\n\
             perplexity: {candidate_perplexity:.3}, reference {reference_perplexity:.3} ({:+.2} %)\n",
            top1_agreement * 100.0,
            (candidate_perplexity / reference_perplexity - 1.0) * 100.0
        ),
        Quality::Embeddings { lines, cosine_mean, cosine_least, .. } => format!(
            "embeddings of {lines} lines\ncosine with the reference's: {cosine_mean:.6} on average, {cosine_least:.6} at least\n"
        ),
        _ => String::new(),
    }
}

/// An e-value as people read it.
pub(crate) fn shown(ln_e: f64) -> String {
    let ten = ln_e / std::f64::consts::LN_10;
    if ten.abs() < 4.0 { format!("{:.3}", ln_e.exp()) } else { format!("10^{ten:.1}") }
}

fn told(
    comparison: &Comparison,
    rule: &DecisionRule,
    weakness: Option<&Weakness>,
    files: Option<&FileComparison>,
    rounding: Option<&WeightForm>,
) -> String {
    let decision = &comparison.decision;
    let mut text = format!(
        "{} after {} of {} challenges\n",
        decision.verdict,
        decision.challenges_used,
        decision.curve.len()
    );
    if let Some(site) = decision.first_diverging {
        let _ = writeln!(text, "first diverging site: {site}");
    }
    if let Some(files) = files {
        text.push_str(&told_files(files));
    }
    let _ = writeln!(
        text,
        "evidence against the same: {} (needs {:.0}); against different: {} (needs {:.0})",
        shown(decision.evidence.ln_e_different),
        1.0 / rule.alpha,
        shown(decision.evidence.ln_e_same),
        1.0 / rule.beta
    );
    let allowed = match comparison.class {
        NoiseClass::Arithmetic => {
            "other orders of summation only: same dtypes, same precision, known device"
        }
        NoiseClass::Rounding => "other orders of summation, and rounding to bf16",
    };
    let _ = match rounding {
        Some(weights) => writeln!(text, "allowed for: {weights} ({})", weights.common_name())
            .and_then(|()| writeln!(text, "beside it: {allowed}")),
        None => writeln!(text, "allowed for: {allowed}"),
    };
    if let Some(weak) = weakness {
        let _ = writeln!(
            text,
            "weak evidence: {} numbers of {} challenges, where a model folder shows {} of each; \
             nothing inside the model was seen{}",
            weak.numbers,
            weak.challenges,
            weak.of_numbers,
            if decision.verdict == Verdict::Same {
                ", SAME means: as far as its answers show"
            } else {
                ""
            }
        );
    }
    let mut table = Table::new(["site", "deviation", "tolerance", "bits", "excess"]);
    for site in &comparison.sites {
        table.row([
            site.site.to_string(),
            format!("{:.2e}", site.distance.fine),
            format!("{:.2e}", site.tolerance),
            format!("{:.2} %", site.distance.hamming * 100.0),
            format!("{:.2}", site.excess),
        ]);
    }
    format!("{text}\n{table}")
}

/// Tensors that are named, at most.
const NAMED_TENSORS: usize = 8;

/// Whether the files are the same, and what differs.
fn told_files(files: &FileComparison) -> String {
    if files.same {
        return "files: the same, byte by byte\n".to_owned();
    }
    let mut text = format!("files: {} differ", files.differing_files.join(", "));
    match &files.differing_tensors {
        None => text.push('\n'),
        Some(tensors) if tensors.is_empty() => text.push_str("; no weights differ\n"),
        Some(tensors) => {
            let plural = if tensors.len() == 1 { "" } else { "s" };
            let _ = writeln!(text, "; the weights differ in {} tensor{plural}", tensors.len());
            for tensor in tensors.iter().take(NAMED_TENSORS) {
                let _ = writeln!(text, "  {tensor}");
            }
            if tensors.len() > NAMED_TENSORS {
                let _ = writeln!(text, "  and {} more", tensors.len() - NAMED_TENSORS);
            }
        }
    }
    text
}
