//! `surefoot forward`: one pass over a sequence, its logits or hidden states to a file.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot_models::generate::text::Texts;
use surefoot_models::runner::RunRequest;
use surefoot_models::save::save;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::stream::process;
use surefoot_models::{Logits, Output, Rows, TokenBatch, Want};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::{ModelRun, on_cpu};
use crate::terminal::Terminal;
use crate::weights_args::WeightsArgs;

/// Run tokens or a text through a model once and write the logits or the last hidden state
#[derive(Debug, Args)]
#[command(after_help = "\
The file gets the tensor `logits`, or `last_hidden_state` for encoders: f32, one row per token.
With --hidden also `hidden_0` (the embeddings) to `hidden_n` (after the final norm).
Products with weights are in fp32 unless --precision says fp16 or bf16; sums stay in fp32.

Examples:
  surefoot forward models/llama --tokens 1,15043,3186 --out out.safetensors
  surefoot forward models/llama --text \"Hello world\" --hidden --out out.safetensors
  surefoot forward models/llama --tokens 1,2,3 --memory 512MiB --out out.safetensors")]
pub(crate) struct Forward {
    /// The model folder (config.json, tokenizer.json and safetensors weights), a GGUF file, or a checkpoint of a
    /// text model that `surefoot train` wrote
    model: PathBuf,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required_unless_present = "text")]
    tokens: Vec<u32>,
    /// A text, for the model's tokenizer
    #[arg(long, conflicts_with = "tokens")]
    text: Option<String>,
    /// The safetensors file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the hidden state of every block as well
    #[arg(long)]
    hidden: bool,
    /// Run the model with this adapter: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct Document {
    out: String,
    tokens: usize,
    tensors: Vec<String>,
    mode: Placement,
    on_cpu: Vec<String>,
    seconds: f64,
    load_seconds: f64,
    planned_peak_bytes: u64,
    peak_bytes: Option<u64>,
    device_peak_bytes: Option<u64>,
}

impl Forward {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        crate::output::spare("--out", &self.out, &[&self.model])?;
        let adapter = self.adapter.as_deref();
        let run =
            ModelRun::open(&self.footing, self.weights, global, terminal, &self.model, adapter)?;
        let vocab = run.runner.blueprint().vocab;
        let tokens = match &self.text {
            Some(text) => Texts::open(run.folder(), vocab)?.encode(text)?,
            None => self.tokens.clone(),
        };
        let batch = TokenBatch::new(std::slice::from_ref(&tokens), vocab)?;
        let has_head = run.runner.opened().has_head();
        let want = Want {
            logits: if has_head { Logits::All } else { Logits::None },
            hidden: self.hidden,
            last_hidden: !has_head,
        };
        let work = Work { batch: 1, prompt: tokens.len(), new_tokens: 0, want };
        let begun = Instant::now();
        let outcome = run.run(&RunRequest::new("forward", work), |attempt| {
            attempt.model().forward(&batch, want)
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let output = &outcome.value;
        let tensors = named(output);
        save(&self.out, &tensors)?;
        for (name, rows) in named(output).into_iter().filter(|(_, rows)| rows.not_finite() > 0) {
            terminal.note(&format!(
                "{name}: {} of {} numbers are NaN or infinite",
                rows.not_finite(),
                rows.numbers.len()
            ));
        }
        let document = Document {
            out: self.out.display().to_string(),
            tokens: tokens.len(),
            tensors: tensors.into_iter().map(|(name, _)| name).collect(),
            mode: outcome.plan.mode,
            on_cpu: on_cpu(&outcome),
            seconds,
            load_seconds: outcome.load_time.as_secs_f64(),
            planned_peak_bytes: outcome.plan.peak_bytes,
            peak_bytes: process::memory().map(|memory| memory.peak),
            device_peak_bytes: outcome.device_peak_bytes,
        };
        if global.json {
            terminal.json(&document)?;
        } else {
            terminal.note(&format!(
                "{}: {} for {} tokens in {:.2} s{}",
                document.out,
                document.tensors.join(", "),
                document.tokens,
                document.seconds,
                document.memory()
            ));
        }
        Ok(Exit::Done)
    }
}

impl Document {
    /// The memory that it took, in words.
    fn memory(&self) -> String {
        match (self.peak_bytes, self.device_peak_bytes) {
            (Some(host), Some(device)) => {
                format!(", {} at most and {} on the device", Bytes(host), Bytes(device))
            }
            (Some(host), None) => format!(", {} at most", Bytes(host)),
            _ => String::new(),
        }
    }
}

fn named(output: &Output) -> Vec<(String, &Rows)> {
    let mut tensors = Vec::new();
    if let Some(logits) = &output.logits {
        tensors.push(("logits".to_owned(), logits));
    }
    if let Some(last) = &output.last_hidden {
        tensors.push(("last_hidden_state".to_owned(), last));
    }
    for (number, hidden) in output.hidden.iter().enumerate() {
        tensors.push((format!("hidden_{number}"), hidden));
    }
    tensors
}
