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
        if let Some(out) = &self.out {
            crate::output::spare("--out", out, &[&self.model, &self.texts])?;
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
        let streams = opened.plan_here(&work, run.budget()).streamed_file_bytes > 0;
        drop(opened);
        let batches = alike(&sequences, size, streams);
        let rows = run.run("embed", &self.model, &work, batches.len(), |model, _| {
            let cols = model.blueprint().hidden;
            let mut numbers = vec![0.0; sequences.len() * cols];
            for batch in &batches {
                let some: Vec<Vec<u32>> = batch.iter().map(|at| sequences[*at].clone()).collect();
                let vectors = model.embed(&some, pooling)?;
                for (row, at) in batch.iter().enumerate() {
                    numbers[at * cols..(at + 1) * cols].copy_from_slice(vectors.row(row));
                }
            }
            Ok(Rows { cols, numbers })
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

/// Which texts go together, at most `size`: those of about the same length, since the shorter
/// ones are padded to the longest. If weights stream, as few batches as can be: each reads them.
fn alike(sequences: &[Vec<u32>], size: usize, streams: bool) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..sequences.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(sequences[*at].len()));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match batches.last_mut() {
            Some(batch)
                if batch.len() < size
                    && (streams || 4 * sequences[at].len() >= 3 * sequences[batch[0]].len()) =>
            {
                batch.push(at);
            }
            _ => batches.push(vec![at]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_about_one_length_go_together_and_none_is_lost() {
        let lengths = [3, 100, 4, 80, 70, 4, 4];
        let sequences: Vec<Vec<u32>> = lengths.iter().map(|length| vec![0; *length]).collect();
        assert_eq!(alike(&sequences, 3, false), [vec![1, 3], vec![4], vec![2, 5, 6], vec![0]]);
        assert_eq!(alike(&sequences, 3, true), [vec![1, 3, 4], vec![2, 5, 6], vec![0]]);
    }
}
