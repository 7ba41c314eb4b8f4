//! `surefoot embed`: one vector for each line of text.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use surefoot_models::embed::{Pooling, Recipe};
use surefoot_models::generate::text::Texts;
use surefoot_models::save::save;

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::{ModelRun, on_cpu};
use crate::terminal::Terminal;
use crate::weights_args::WeightsArgs;

/// Compute a normalised embedding vector for each line of text
#[derive(Debug, Args)]
#[command(after_help = "\
Prints one JSON array a line, or writes the tensor `embeddings` with --out. How tokens are pooled
is read from the folder (1_Pooling/config.json), else it is their mean. A text with more tokens
than the model takes is cut, with a note.

Examples:
  surefoot embed models/minilm texts.txt > vectors.jsonl
  printf 'one\\ntwo\\n' | surefoot embed models/minilm --json
  surefoot embed models/minilm texts.txt --pooling cls --out vectors.safetensors")]
pub(crate) struct Embed {
    /// The model folder (config.json, tokenizer.json and safetensors weights), a GGUF file, or a checkpoint of a
    /// text model that `surefoot train` wrote
    model: PathBuf,
    /// The file with one text per line, or - for stdin
    #[arg(default_value = "-")]
    texts: PathBuf,
    /// How the tokens of a text become one vector
    #[arg(long, value_enum, value_name = "HOW")]
    pooling: Option<PoolingArg>,
    /// The safetensors file to write
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    weights: WeightsArgs,
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
    max_tokens: usize,
    truncated: Vec<Truncated>,
    on_cpu: Vec<String>,
    embeddings: Vec<&'a [f32]>,
}

/// A text that was longer than the model takes.
#[derive(Serialize)]
struct Truncated {
    line: usize,
    /// How many tokens it has in all.
    tokens: usize,
}

impl Embed {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        if let Some(out) = &self.out {
            crate::output::spare("--out", out, &[&self.model, &self.texts])?;
        }
        let run = ModelRun::open(&self.footing, self.weights, global, terminal, &self.model, None)?;
        let blueprint = run.runner.blueprint();
        let recipe = Recipe::read(run.folder())?;
        let pooling = match self.pooling {
            Some(PoolingArg::Mean) => Pooling::Mean,
            Some(PoolingArg::Cls) => Pooling::Cls,
            None => recipe.pooling,
        };
        let mut texts = Texts::open(run.folder(), blueprint.vocab)?;
        let positions = blueprint.max_positions;
        let max_tokens = recipe.max_tokens.map_or(positions, |most| most.min(positions));
        texts.truncate(max_tokens)?;
        let (sequences, truncated) = self.sequences(&texts)?;
        if let Some(longest) = truncated.iter().max_by_key(|text| text.tokens) {
            terminal.note(&format!(
                "{} of {} texts were cut to {max_tokens} tokens, the most that the model takes; \
                 the longest, line {}, has {}",
                truncated.len(),
                sequences.len(),
                longest.line,
                longest.tokens
            ));
        }
        let outcome = run.finished(run.runner.embed(&sequences, pooling))?;
        let rows = &outcome.value;
        let vectors: Vec<&[f32]> = rows.numbers.chunks_exact(rows.cols.max(1)).collect();
        if let Some(out) = &self.out {
            save(out, &[("embeddings".to_owned(), rows)])?;
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
                max_tokens,
                truncated,
                on_cpu: on_cpu(&outcome),
                embeddings: vectors,
            })?;
        }
        Ok(Exit::Done)
    }

    /// The tokens of each line, and which lines were cut.
    fn sequences(&self, texts: &Texts) -> Result<(Vec<Vec<u32>>, Vec<Truncated>), Failure> {
        let mut input = String::new();
        let read = if self.texts.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut input).map(|_| ())
        } else {
            std::fs::read_to_string(&self.texts).map(|text| input = text)
        };
        read.map_err(|error| {
            Failure::usage(format!("{} can't be read", self.texts.display())).caused_by(&error)
        })?;
        let (mut sequences, mut truncated) = (Vec::new(), Vec::new());
        for (number, line) in input.lines().enumerate() {
            let (ids, cut) = texts.encode_truncated(line)?;
            if ids.is_empty() {
                return Err(Failure::usage(format!("line {} has no tokens", number + 1)));
            }
            if cut > 0 {
                truncated.push(Truncated { line: number + 1, tokens: ids.len() + cut });
            }
            sequences.push(ids);
        }
        if sequences.is_empty() {
            return Err(Failure::usage("there are no texts to embed"));
        }
        Ok((sequences, truncated))
    }
}
