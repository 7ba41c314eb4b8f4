//! `surefoot generate`: text from a prompt, or from a file of prompts as one batch.

mod chat;
mod printed;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::{FinishReason, Request};
use surefoot_models::runner::NewToken;
use surefoot_models::stream::plan::Placement;
use surefoot_models::stream::process;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_folder::ModelFolder;
use crate::model_run::{ModelRun, on_cpu};
use crate::speculation_args::{self, SpeculationArgs};
use crate::terminal::Terminal;
use crate::weights_args::WeightsArgs;
use printed::{PrintedTokens, Relay};

/// Generate text that continues a prompt, or each line of a file as one batch
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the continuation of the prompt. With --prompts, one line per prompt, in which \\n and \\\\ stand
for line breaks and backslashes. A prompt gives the same text alone and in a batch; where memory
does not allow all prompts at once, they run in groups.
Products with weights are in fp32 unless --precision says fp16 or bf16.

Examples:
  surefoot generate models/llama \"Once upon a time\" --stream
  surefoot generate models/llama $'Q: why?\\nA:' --temperature 0.8 --top-p 0.95 --seed 7 --stop Q:
  surefoot generate models/llama --chat --system \"Be brief.\" --temperature 0.7
  surefoot generate models/llama --prompts prompts.txt --max-tokens 64 --json
  surefoot generate models/llama \"$(cat report.txt) Summary:\" --speculate auto
  surefoot generate models/llama-8b \"Hello\" --draft models/llama-1b
  surefoot generate models/llama-70b \"Hello\" --memory 4GiB")]
pub(crate) struct Generate {
    /// The model folder (config.json, tokenizer.json and safetensors weights), a GGUF file, or a checkpoint of a
    /// text model that `surefoot train` wrote
    model: PathBuf,
    /// The prompt
    #[arg(required_unless_present_any = ["prompts", "chat"])]
    prompt: Option<String>,
    /// A file with one prompt per line, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// Chat: each line of stdin is a message; answers depend on the whole conversation so far. The line /reset starts a new
    /// conversation, /exit ends the chat, and /help lists these commands
    #[arg(long, conflicts_with_all = ["prompt", "prompts", "json", "stream", "isolate"])]
    chat: bool,
    /// The system message of a chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// The template of chats: a file, chatml, or plain (the role before each message)
    #[arg(long, value_name = "WHAT", requires = "chat")]
    chat_template: Option<String>,
    /// The most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    max_tokens: u32,
    /// Sampling temperature: 0 takes the most likely token, 1 samples from the model's probabilities, higher values are
    /// more random
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Sample from the N most likely tokens only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Sample from the most likely tokens that together have this probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Random seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the text before this one; can be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Print the text while it is generated
    #[arg(long, conflicts_with_all = ["prompts", "json"])]
    stream: bool,
    /// Where the tokens that were printed are kept for a process that is started again
    #[arg(long, value_name = "FILE", hide = true, requires = "stream")]
    resume_file: Option<PathBuf>,
    /// Run the model with this adapter: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    weights: WeightsArgs,
    // What has a heading of its own comes last: what follows it would be under it.
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Clone, Serialize)]
struct Completion {
    prompt: String,
    text: String,
    prompt_tokens: usize,
    tokens: Vec<u32>,
    ending: FinishReason,
}

#[derive(Serialize)]
struct Document {
    model: String,
    mode: Placement,
    on_cpu: Vec<String>,
    seconds: f64,
    load_seconds: f64,
    tokens_per_second: f64,
    planned_peak_bytes: u64,
    peak_bytes: Option<u64>,
    device_peak_bytes: Option<u64>,
    /// How often an expert that does not always stay was in memory when it was needed, and how often it was loaded.
    expert_hits: u64,
    expert_loads: u64,
    /// Proposed tokens that the model chose too, and those that were proposed in vain.
    accepted_proposals: u64,
    rejected_proposals: u64,
    completions: Vec<Completion>,
}

impl Generate {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return self.isolated(global, terminal);
        }
        let sampling = self.sampling()?;
        let mode = self.speculation.mode()?;
        let adapter = self.adapter.as_deref();
        let mut run =
            ModelRun::open(&self.footing, self.weights, global, terminal, &self.model, adapter)?;
        let opened = run.runner.opened();
        if !opened.has_head() || !opened.blueprint.causal {
            let what = format!("{} is an encoder, which can't generate text", self.model.display());
            return Err(Failure::usage(what).hint("surefoot embed MODEL gives vectors of texts"));
        }
        let positions = opened.blueprint.max_positions;
        let texts = Texts::open(run.folder(), opened.blueprint.vocab)?;
        let ends = opened.end_tokens()?;
        let draft = self.speculation.draft()?;
        let draft_folder = draft.as_ref().map(ModelFolder::path);
        if self.chat {
            let mut speculator = run.speculator(mode, draft_folder, 1, positions)?;
            let chat = chat::Chat { options: &self, run: &run, texts: &texts, sampling };
            return chat.talk(&mut speculator, terminal);
        }
        let prompts = self.prompts()?;
        let request = Request {
            prompts: self.encoded(&texts, &prompts)?,
            max_tokens: self.max_tokens as usize,
            ends,
            sampling,
        };
        let longest = request.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let length = longest.saturating_add(request.max_tokens);
        let mut speculator = run.speculator(mode, draft_folder, prompts.len(), length)?;
        if self.stream {
            run.hide_progress();
        }
        let begun = Instant::now();
        let printed = PrintedTokens::new(self.resume_file.as_deref());
        let earlier = vec![printed.tokens()?];
        let mut print = |new: NewToken<'_>| match self.stream {
            true => printed.print(new, terminal),
            false => Ok(()),
        };
        let outcome = run.runner.generate_speculating(
            &texts,
            &request,
            &self.stop,
            &earlier,
            &mut speculator,
            &mut print,
        );
        let outcome = run.finished(outcome)?;
        let completions: Vec<Completion> = outcome
            .value
            .iter()
            .zip(prompts.iter().zip(&request.prompts))
            .map(|(completion, (prompt, ids))| Completion {
                prompt: prompt.clone(),
                text: completion.text.clone(),
                prompt_tokens: ids.len(),
                tokens: completion.tokens.clone(),
                ending: completion.ending,
            })
            .collect();
        let seconds = begun.elapsed().as_secs_f64();
        if completions.iter().any(|completion| completion.ending == FinishReason::ContextFull) {
            terminal.note(&format!(
                "stopped at {positions} tokens, prompt included: the model takes no more"
            ));
        }
        let proposals = speculator.counts();
        if let Some(note) = speculation_args::told(proposals) {
            terminal.note(&note);
        }
        let (hits, loads) = (outcome.reading.expert_hits, outcome.reading.expert_loads);
        if loads > 0 {
            terminal.note(&format!(
                "experts: {:.0} % of those that were needed were in memory, within {} of cache; {loads} matrices were loaded",
                hits as f64 / (hits + loads) as f64 * 100.0,
                Bytes(outcome.plan.expert_cache_bytes)
            ));
        }
        if self.stream {
            printed.end(terminal)?;
        } else if global.json {
            let count: usize = completions.iter().map(|completion| completion.tokens.len()).sum();
            terminal.json(&Document {
                model: self.model.display().to_string(),
                mode: outcome.plan.mode,
                on_cpu: on_cpu(&outcome),
                seconds,
                load_seconds: outcome.load_time.as_secs_f64(),
                tokens_per_second: count as f64 / seconds,
                planned_peak_bytes: outcome.plan.peak_bytes,
                peak_bytes: process::memory().map(|memory| memory.peak),
                device_peak_bytes: outcome.device_peak_bytes,
                expert_hits: outcome.reading.expert_hits,
                expert_loads: outcome.reading.expert_loads,
                accepted_proposals: proposals.accepted,
                rejected_proposals: proposals.rejected,
                completions,
            })?;
        } else {
            for completion in &completions {
                let text = match self.prompts {
                    Some(_) => on_one_line(&completion.text),
                    None => completion.text.clone(),
                };
                terminal.result(&(text + "\n"))?;
            }
        }
        Ok(Exit::Done)
    }

    /// Runs in a child process. What it streams is printed by this process, so that a child that is started
    /// again goes on behind it.
    fn isolated(&self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if !self.stream {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let relay = Relay::new()?;
        let ended = crate::child::supervise_by(
            crate::child::supervisor(Duration::ZERO),
            terminal,
            global.open_journal()?,
            |command, _| {
                relay.attach(command);
            },
        );
        relay.finish();
        ended
    }

    fn sampling(&self) -> Result<Sampling, Failure> {
        let samples = self.top_k.is_some() || self.top_p.is_some() || self.seed.is_some();
        let temperature = self.temperature.unwrap_or(if samples { 1.0 } else { 0.0 });
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(Failure::usage("--temperature must be 0 or more"));
        }
        if self.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
            return Err(Failure::usage("--top-p must be more than 0 and at most 1"));
        }
        Ok(Sampling {
            temperature,
            top_k: self.top_k.map(|k| k as usize),
            top_p: self.top_p,
            seed: self.seed.unwrap_or(0),
        })
    }

    fn prompts(&self) -> Result<Vec<String>, Failure> {
        let Some(file) = &self.prompts else {
            return Ok(self.prompt.iter().cloned().collect());
        };
        let text = match file.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(file),
        };
        let text = text.map_err(|error| {
            Failure::usage(format!("{} can't be read", file.display())).caused_by(&error)
        })?;
        let prompts: Vec<String> = text.lines().map(str::to_owned).collect();
        if prompts.is_empty() {
            return Err(Failure::usage(format!("{} has no prompts", file.display())));
        }
        Ok(prompts)
    }

    fn encoded(&self, texts: &Texts, prompts: &[String]) -> Result<Vec<Vec<u32>>, Failure> {
        let mut all = Vec::with_capacity(prompts.len());
        for (number, prompt) in prompts.iter().enumerate() {
            let ids = texts.encode(prompt)?;
            if ids.is_empty() {
                let what = match &self.prompts {
                    Some(file) => format!("line {} of {} is empty", number + 1, file.display()),
                    None => "the prompt is empty".to_owned(),
                };
                return Err(Failure::usage(what).hint("give at least one token to start from"));
            }
            all.push(ids);
        }
        Ok(all)
    }
}

fn on_one_line(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}
