//! `surefoot generate`: text from a prompt, or from a file of prompts as one batch.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::{self, Ending, Request};
use surefoot_models::generate::writer::Writer;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::stream::process;
use surefoot_models::{Model, ModelError, Opened};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::ModelRun;
use crate::terminal::Terminal;

/// Generate text behind a prompt, or behind each line of a file as one batch
#[derive(Debug, Args)]
#[command(after_help = "\
Prints what comes behind the prompt. With --prompts, one line per prompt, in which \\n and \\\\ stand
for line breaks and backslashes. A prompt gives the same text alone and in a batch.
Products with weights are in fp32 unless --precision says fp16 or bf16.

Examples:
  surefoot generate models/llama \"Once upon a time\" --stream
  surefoot generate models/llama $'Q: why?\\nA:' --temperature 0.8 --top-p 0.95 --seed 7 --stop Q:
  surefoot generate models/llama --prompts prompts.txt --max-tokens 64 --json
  surefoot generate models/llama-70b \"Hello\" --memory 4GiB")]
pub(crate) struct Generate {
    /// The model folder: config.json, tokenizer.json and safetensors weights
    model: PathBuf,
    /// The prompt
    #[arg(required_unless_present = "prompts")]
    prompt: Option<String>,
    /// A file with one prompt a line, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// The most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    max_tokens: u32,
    /// 0 takes the most likely token, 1 samples as the model says, more is bolder
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Sample from the N most likely tokens only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Sample from the most likely tokens that together have this probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Where the random numbers start
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End a text before this; can be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Print the text as it comes
    #[arg(long, conflicts_with_all = ["prompts", "json"])]
    stream: bool,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Clone, Serialize)]
struct Completion {
    prompt: String,
    text: String,
    prompt_tokens: usize,
    tokens: Vec<u32>,
    ending: Ending,
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
    completions: Vec<Completion>,
}

impl Generate {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let sampling = self.sampling()?;
        let opened = Opened::new(&self.model)?;
        if !opened.has_head() || !opened.blueprint.causal {
            let what = format!("{} is an encoder, which can't generate text", self.model.display());
            return Err(Failure::usage(what).hint("surefoot embed MODEL gives vectors of texts"));
        }
        let positions = opened.blueprint.max_positions;
        let texts = Texts::open(&self.model, opened.blueprint.vocab)?;
        let prompts = self.prompts()?;
        let request = Request {
            prompts: self.encoded(&texts, &prompts)?,
            max_tokens: self.max_tokens as usize,
            ends: opened.end_tokens()?,
            sampling,
        };
        drop(opened);
        let work = Work {
            batch: prompts.len(),
            prompt: request.prompts.iter().map(Vec::len).max().unwrap_or(1),
            new_tokens: request.max_tokens,
            want: tokens::WANT,
        };
        let mut run = ModelRun::new(&self.footing, global, terminal)?;
        if self.stream {
            run = run.without_progress();
        }
        let begun = Instant::now();
        let printed = RefCell::new(0);
        let (completions, mode, planned) =
            run.run("generate", &self.model, &work, request.max_tokens, |model, plan| {
                let completions =
                    self.generate(model, &request, &prompts, &texts, terminal, &printed)?;
                Ok((completions, plan.mode, plan.peak_bytes))
            })?;
        let seconds = begun.elapsed().as_secs_f64();
        if completions.iter().any(|completion| completion.ending == Ending::ContextFull) {
            terminal.note(&format!(
                "stopped at {positions} tokens, prompt included: the model takes no more"
            ));
        }
        if self.stream {
            terminal.result("\n")?;
        } else if global.json {
            let count: usize = completions.iter().map(|completion| completion.tokens.len()).sum();
            terminal.json(&Document {
                model: self.model.display().to_string(),
                mode,
                on_cpu: run.on_cpu(),
                seconds,
                load_seconds: run.load_seconds(),
                tokens_per_second: count as f64 / seconds,
                planned_peak_bytes: planned,
                peak_bytes: process::memory().map(|memory| memory.peak),
                device_peak_bytes: run.device_peak_bytes(),
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

    /// Generates and, if asked to, prints what is new since `printed`, which an earlier try may
    /// have come to.
    fn generate(
        &self,
        model: &Model,
        request: &Request,
        prompts: &[String],
        texts: &Texts,
        terminal: &Terminal,
        printed: &RefCell<usize>,
    ) -> Result<Vec<Completion>, ModelError> {
        let mut writers: Vec<Writer<'_>> =
            prompts.iter().map(|_| Writer::new(texts, &self.stop)).collect();
        let mut failed = None;
        let print = |text: &str, upto: usize| -> Result<(), Failure> {
            let mut printed = printed.borrow_mut();
            let from = (upto - text.len()).max(*printed);
            if let Some(fresh) = text.get(from - (upto - text.len())..).filter(|t| !t.is_empty()) {
                terminal.result(fresh)?;
                *printed = upto;
            }
            Ok(())
        };
        let generated = model.generate(request, |number, token| {
            let writer = &mut writers[number];
            let stopped = match writer.push(token) {
                Ok(stopped) => stopped,
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            };
            if self.stream {
                let fresh = writer.fresh().to_owned();
                let upto = writer.given();
                if let Err(failure) = print(&fresh, upto) {
                    failed = Some(ModelError::Request(failure.what));
                    return ControlFlow::Break(());
                }
            }
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if self.stream {
            for writer in &mut writers {
                let rest = writer.rest().to_owned();
                let upto = writer.given();
                print(&rest, upto).map_err(|failure| ModelError::Request(failure.what))?;
            }
        }
        Ok(generated
            .into_iter()
            .zip(&writers)
            .zip(prompts.iter().zip(&request.prompts))
            .map(|((generated, writer), (prompt, ids))| Completion {
                prompt: prompt.clone(),
                text: writer.text().to_owned(),
                prompt_tokens: ids.len(),
                tokens: generated.tokens,
                ending: generated.ending,
            })
            .collect())
    }
}

fn on_one_line(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}
