//! `surefoot plan`: what will be in memory, what streamed, and how fast, before anything is
//! loaded.

mod training;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens;
use surefoot_models::stream::choices::{ChoicePlan, recommended};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::{Placement, Plan as ModelPlan};
use surefoot_models::stream::rate::Rate;
use surefoot_models::{Logits, Opened, Want, embed};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::ModelRun;
use crate::terminal::{Table, Terminal};
use crate::weights_args::WeightsArgs;

/// Estimate the memory and speed of a model or a training run before it starts
#[derive(Debug, Args)]
#[command(after_help = "\
The weights of a model are not loaded. The forms of its weights (--weights) are compared, and one is
recommended. The expected rate comes from small samples of this machine. For a training
configuration, a few steps are run and their results thrown away. Exit code 1 if the memory is not
enough; the plan says how much would be.

Examples:
  surefoot plan models/llama
  surefoot plan models/llama --memory 2GiB --prompt-tokens 512 --max-tokens 128 --batch 8
  surefoot plan models/llama --memory 2GiB --json
  surefoot plan configs/digits.yaml --set batch_size=512 --memory 200MiB
                        memory, time per step and the batch that fits, before training")]
pub(crate) struct Plan {
    /// The model folder (config.json, tokenizer.json and safetensors weights), a GGUF file, a checkpoint of a
    /// text model, or the configuration of a training run (.yaml)
    model: PathBuf,
    /// Tokens of the longest prompt
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    prompt_tokens: u32,
    /// Tokens to generate; 0 for a forward pass only
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=16_777_216))]
    max_tokens: u32,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Override a key of a training configuration: --set batch_size=64
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct Document<'a> {
    model: String,
    family: &'a str,
    file_bytes: u64,
    device: String,
    precision: &'static str,
    batch: u32,
    prompt_tokens: u32,
    max_tokens: u32,
    #[serde(flatten)]
    plan: &'a ModelPlan,
    expected: Rate,
    weights: &'static str,
    choices: &'a [ChoicePlan],
    recommended: Option<&'static str>,
}

impl Plan {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        let extension = self.model.extension().unwrap_or_default();
        if extension == "yaml" || extension == "yml" {
            return training::plan(&self.model, &self.set, &self.footing, global, terminal);
        }
        if !self.set.is_empty() {
            return Err(Failure::usage("--set is for the configuration of a training run")
                .because(format!("{} is none", self.model.display())));
        }
        let run = ModelRun::open(&self.footing, self.weights, global, terminal, &self.model, None)?;
        let footing = run.runner.footing();
        let (device, precision) = (footing.device()?, footing.precision()?);
        let opened = run.runner.opened();
        // Part of what the process will hold, and checked here so that a plan can be relied on.
        let texts = match Texts::exist(run.folder()) {
            true => Some(Texts::open(run.folder(), opened.blueprint.vocab)?),
            false => None,
        };
        let work = self.work(opened);
        if work.prompt + work.new_tokens < (self.prompt_tokens + self.max_tokens) as usize
            && work.new_tokens > 0
        {
            terminal.note(&format!(
                "{} takes {} tokens: planned for a prompt of {} and {} new tokens",
                self.model.display(),
                opened.blueprint.max_positions,
                work.prompt,
                work.new_tokens
            ));
        }
        let plan = run.runner.plan(&work)?;
        let expected = run.runner.expected_rate(&plan)?;
        let choices = run.runner.choices(&work)?;
        drop(texts);
        if global.json {
            terminal.json(&Document {
                model: self.model.display().to_string(),
                family: opened.blueprint.family,
                file_bytes: opened.file_bytes,
                device: device.name().to_string(),
                precision: precision.compute.as_str(),
                batch: self.batch,
                prompt_tokens: self.prompt_tokens,
                max_tokens: self.max_tokens,
                plan: &plan,
                expected,
                weights: self.weights.weights.as_str(),
                choices: &choices,
                recommended: recommended(&choices).map(|choice| choice.weights),
            })?;
        } else {
            let text = self.told(opened, &plan, &expected);
            terminal.result(&format!("{text}{}", told_choices(&choices)))?;
        }
        Ok(if plan.fits { Exit::Done } else { Exit::No })
    }

    fn work(&self, opened: &Opened) -> Work {
        let generates = opened.binding.matrices.iter().any(|matrix| matrix.block.is_none());
        // More than the model takes is never run, and `generate` stops there.
        let positions = opened.blueprint.max_positions;
        let new_tokens = if generates { self.max_tokens as usize } else { 0 };
        let prompt = (self.prompt_tokens as usize).min(positions - usize::from(new_tokens > 0));
        Work {
            batch: self.batch as usize,
            prompt,
            new_tokens: new_tokens.min(positions - prompt),
            want: match (generates, self.max_tokens) {
                (true, 0) => Want { logits: Logits::All, hidden: false, last_hidden: false },
                (true, _) => tokens::WANT,
                (false, _) => embed::WANT,
            },
        }
    }

    fn told(&self, opened: &Opened, plan: &ModelPlan, rate: &Rate) -> String {
        let mut text = String::new();
        let blueprint = &opened.blueprint;
        let _ = writeln!(
            text,
            "{}: {} with {} blocks, {} of weights",
            self.model.display(),
            blueprint.family,
            blueprint.blocks.len(),
            Bytes(opened.file_bytes)
        );
        if let (false, Some(budget)) = (plan.fits, plan.budget_bytes) {
            let _ = writeln!(
                text,
                "does not fit in {}: {} would be enough, streaming all weights; {} to stream none",
                Bytes(budget),
                mebibytes(plan.least_bytes),
                mebibytes(plan.all_resident_bytes)
            );
        }
        let mut table = Table::new(["", "bytes", ""]);
        let mut row = |name: &str, bytes: u64, note: &str| {
            table.row([name.to_owned(), Bytes(bytes).to_string(), note.to_owned()]);
        };
        row("process", plan.needs.baseline_bytes, "current size, and room to compute");
        row("norms and biases", plan.needs.vector_bytes, "");
        row("cache", plan.needs.kv_cache_bytes, "keys and values");
        row("activations", plan.needs.activation_bytes, "at most");
        row("resident weights", plan.resident_bytes, "");
        let passing = "buffers for streamed weights";
        match plan.expert_cache_bytes {
            0 => row("streaming", plan.window_bytes, passing),
            cache => {
                let note =
                    format!("of {} of experts, the ones used last", Bytes(plan.expert_bytes));
                row("experts", cache, &note);
                row("streaming", plan.window_bytes - cache, passing);
            }
        }
        row(
            "peak",
            plan.peak_bytes,
            &plan
                .budget_bytes
                .map_or_else(String::new, |budget| format!("of {} allowed", Bytes(budget))),
        );
        let _ = write!(text, "{table}");
        let _ = writeln!(text, "{}", placements(plan));
        for share in &plan.device_map {
            let _ = writeln!(
                text,
                "{}: {}, {} of weights, {} resident, {:.1} GB/s",
                share.device,
                share.parts(),
                Bytes(share.bytes),
                Bytes(share.resident_bytes),
                share.decode_bytes_per_second / 1e9
            );
        }
        let _ = writeln!(
            text,
            "expected: {:.1} tokens/s per sequence, limited by {}; {} read from files in each step",
            rate.tokens_per_second,
            rate.limited_by,
            Bytes(plan.streamed_file_bytes)
        );
        text
    }
}

/// The forms of the weights side by side, and which to take.
fn told_choices(choices: &[ChoicePlan]) -> String {
    let mut table = Table::new(["--weights", "bytes", "peak", "placement", "tokens/s"]);
    for choice in choices {
        let placement = match (choice.fits, choice.mode) {
            (false, _) => "does not fit",
            (true, Placement::Resident) => "resident",
            (true, Placement::Mixed) => "streamed in part",
            (true, Placement::Streamed) => "streamed",
        };
        table.row([
            choice.weights.to_owned(),
            Bytes(choice.weight_bytes).to_string(),
            Bytes(choice.peak_bytes).to_string(),
            placement.to_owned(),
            format!("{:.1}", choice.tokens_per_second),
        ]);
    }
    let advice = match recommended(choices) {
        None => "recommended: none of them fits; more memory, or fewer tokens".to_owned(),
        Some(choice) if choice.quantize_first => format!(
            "recommended: {0}; quantise once with `surefoot quantize MODEL --to {0} --out DIR`, since it is streamed",
            choice.weights
        ),
        Some(choice) if choice.mode == Placement::Resident => {
            format!("recommended: {}, the most exact form that stays in memory", choice.weights)
        }
        Some(choice) => format!("recommended: {}, the fastest that fits", choice.weights),
    };
    format!("\n{table}{advice}\n")
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn placements(plan: &ModelPlan) -> String {
    let count = |placement| plan.parts.iter().filter(|part| part.placement == placement).count();
    format!(
        "parts: {} resident, {} partly resident, {} streamed",
        count(Placement::Resident),
        count(Placement::Mixed),
        count(Placement::Streamed)
    )
}
