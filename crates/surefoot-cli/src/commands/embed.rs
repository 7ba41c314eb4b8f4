//! `surefoot embed`: one vector for each line of text.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use surefoot_models::embed::{self, Pooling, Recipe};
use surefoot_models::generate::text::Texts;
use surefoot_models::save::save;
use surefoot_models::stream::needs::Work;
use surefoot_models::{Opened, Rows};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::ModelRun;
use crate::terminal::Terminal;

/// Texts that go through the model together, if memory allows.
const BATCH: usize = 32;

/// Turn each line of text into a vector of length 1
#[derive(Debug, Args)]
#[command(after_help = "\
Prints one JSON array a line, or writes the tensor `embeddings` with --out. How tokens are pooled
is read from the folder (1_Pooling/config.json), else it is their mean.

Examples:
  surefoot embed models/minilm texts.txt > vectors.jsonl
  printf 'one\\ntwo\\n' | surefoot embed models/minilm --json
  surefoot embed models/minilm texts.txt --pooling cls --out vectors.safetensors")]
pub(crate) struct Embed {
    /// The model folder: config.json, tokenizer.json and safetensors weights
    model: PathBuf,
    /// The file with one text a line, or - for stdin
    #[arg(default_value = "-")]
    texts: PathBuf,
    /// How the tokens of a text become one vector
    #[arg(long, value_enum, value_name = "HOW")]
    pooling: Option<PoolingArg>,
    /// The safetensors file to write
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingArg {
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
}

#[derive(Serialize)]
struct Document<'a> {
    model: String,
    pooling: Pooling,
    dimensions: usize,
    on_cpu: Vec<String>,
    embeddings: Vec<&'a [f32]>,
}

impl Embed {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let opened = Opened::new(&self.model)?;
        let recipe = Recipe::read(&self.model)?;
        let pooling = match self.pooling {
            Some(PoolingArg::Mean) => Pooling::Mean,
            Some(PoolingArg::Cls) => Pooling::Cls,
            None => recipe.pooling,
        };
        let mut texts = Texts::open(&self.model, opened.blueprint.vocab)?;
        let limit = opened.blueprint.max_positions;
        texts.truncate(recipe.max_tokens.map_or(limit, |most| most.min(limit)))?;
        let sequences = self.sequences(&texts)?;
        let run = ModelRun::new(&self.footing, global, terminal)?;
        let opened = run.placed(opened)?;
        let (work, size) = fitting(&opened, &sequences, run.budget());
        drop(opened);
        let passes = sequences.len().div_ceil(size);
        let rows = run.run("embed", &self.model, &work, passes, |model, _| {
            let mut all = Rows { cols: model.blueprint().hidden, numbers: Vec::new() };
            for some in sequences.chunks(size) {
                all.numbers.extend(model.embed(some, pooling)?.numbers);
            }
            Ok(all)
        })?;
        let vectors: Vec<&[f32]> = rows.numbers.chunks_exact(rows.cols.max(1)).collect();
        if let Some(out) = &self.out {
            save(out, &[("embeddings".to_owned(), &rows)])?;
            terminal.note(&format!(
                "{}: {} vectors of {} numbers",
                out.display(),
                vectors.len(),
                rows.cols
            ));
        } else if !global.json {
            for vector in &vectors {
                terminal.json_line(vector)?;
            }
        }
        if global.json {
            terminal.json(&Document {
                model: self.model.display().to_string(),
                pooling,
                dimensions: rows.cols,
                on_cpu: run.on_cpu(),
                embeddings: vectors,
            })?;
        }
        Ok(Exit::Done)
    }

    fn sequences(&self, texts: &Texts) -> Result<Vec<Vec<u32>>, Failure> {
        let mut input = String::new();
        let read = if self.texts.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut input).map(|_| ())
        } else {
            std::fs::read_to_string(&self.texts).map(|text| input = text)
        };
        read.map_err(|error| {
            Failure::usage(format!("{} can't be read", self.texts.display())).caused_by(&error)
        })?;
        let mut sequences = Vec::new();
        for (number, line) in input.lines().enumerate() {
            let ids = texts.encode(line)?;
            if ids.is_empty() {
                return Err(Failure::usage(format!("line {} has no tokens", number + 1)));
            }
            sequences.push(ids);
        }
        if sequences.is_empty() {
            return Err(Failure::usage("there are no texts to embed"));
        }
        Ok(sequences)
    }
}

/// The largest batch that fits the budget, and the work it is; one text if none does, so that
/// the refusal says what one needs.
fn fitting(opened: &Opened, sequences: &[Vec<u32>], budget: Option<u64>) -> (Work, usize) {
    let prompt = sequences.iter().map(Vec::len).max().unwrap_or(1);
    let mut size = sequences.len().clamp(1, BATCH);
    loop {
        let work = Work { batch: size, prompt, new_tokens: 0, want: embed::WANT };
        if size == 1 || opened.plan_here(&work, budget).fits {
            return (work, size);
        }
        size = size.div_ceil(2);
    }
}
