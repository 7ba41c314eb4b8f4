//! `surefoot rerank`: texts in the order of how well they fit a query, by a cross-encoder.

use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use surefoot_models::classify::{ClassificationHead, ScoreActivation};
use surefoot_models::generate::text::{Texts, TokenPair};

use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::footing_args::FootingArgs;
use crate::model_run::{ModelRun, on_cpu};
use crate::terminal::Terminal;
use crate::weights_args::WeightsArgs;

/// Order texts by how well they match a query, with a cross-encoder
#[derive(Debug, Args)]
#[command(after_help = "\
A cross-encoder reads the query and a text together and gives them one number: BERT, RoBERTa,
XLM-RoBERTa and ModernBERT models for sequence classification with one label, such as the rerankers
of ms-marco and bge. Prints a line for each text, best first: score, line number and text, with tabs
between them. What makes a score of the number is in the model's config.json: the sigmoid, unless it
names the identity; --raw leaves the number. A pair with more tokens than the model takes is cut,
from the longer text first, with a note.

Examples:
  surefoot rerank models/reranker --query 'how much memory does it need' passages.txt
  grep -rh memory docs | surefoot rerank models/reranker --query 'out of memory' --top-n 5
  surefoot rerank models/reranker --query 'out of memory' passages.txt --json")]
pub(crate) struct Rerank {
    /// The model folder (config.json, tokenizer.json and safetensors weights)
    model: PathBuf,
    /// The file with one text per line, or - for stdin
    #[arg(default_value = "-")]
    texts: PathBuf,
    /// What the texts are compared with
    #[arg(long, value_name = "TEXT")]
    query: String,
    /// Print only this many texts, the best ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top_n: Option<u32>,
    /// Print the model's numbers as they are, without the sigmoid
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    footing: FootingArgs,
}

#[derive(Serialize)]
struct Document<'a> {
    model: String,
    query: &'a str,
    activation: ScoreActivation,
    max_tokens: usize,
    truncated: Vec<usize>,
    on_cpu: Vec<String>,
    results: Vec<RankedLine<'a>>,
}

/// A text with its score.
#[derive(Serialize)]
struct RankedLine<'a> {
    /// Its place among the texts, from 0, as `/v1/rerank` counts.
    index: usize,
    relevance_score: f32,
    document: &'a str,
}

impl Rerank {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.footing.isolate {
            return crate::child::supervise(terminal, global.open_journal()?);
        }
        let run = ModelRun::open(&self.footing, self.weights, global, terminal, &self.model, None)?;
        let head = self.head(&run)?;
        let blueprint = run.runner.blueprint();
        let max_tokens = blueprint.max_positions;
        let tokenizer = Texts::open(run.folder(), blueprint.vocab)?;
        let input = self.input()?;
        let lines: Vec<&str> = input.lines().collect();
        if lines.is_empty() {
            return Err(Failure::usage("there are no texts to order"));
        }
        let mut pairs: Vec<TokenPair> = Vec::with_capacity(lines.len());
        let mut truncated = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            let (pair, cut) = tokenizer.encode_pair(&self.query, line, max_tokens)?;
            if cut > 0 {
                truncated.push(number + 1);
            }
            pairs.push(pair);
        }
        if let Some(first) = truncated.first() {
            terminal.note(&format!(
                "{} of {} texts were cut, so that query and text have {max_tokens} tokens, the most \
                 that the model takes; the first is line {first}",
                truncated.len(),
                lines.len()
            ));
        }
        let outcome = run.finished(run.runner.classify(&pairs, &head))?;
        let activation = if self.raw { ScoreActivation::Identity } else { head.score_activation };
        let mut results: Vec<RankedLine<'_>> = outcome
            .value
            .numbers
            .iter()
            .zip(&lines)
            .enumerate()
            .map(|(index, (number, document))| RankedLine {
                index,
                relevance_score: activation.score(*number),
                document,
            })
            .collect();
        // A stable sort: of equal scores the earlier text comes first.
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(self.top_n.map_or(usize::MAX, |count| count as usize));
        if global.json {
            terminal.json(&Document {
                model: self.model.display().to_string(),
                query: &self.query,
                activation,
                max_tokens,
                truncated,
                on_cpu: on_cpu(&outcome),
                results,
            })?;
            return Ok(Exit::Done);
        }
        for line in &results {
            let RankedLine { index, relevance_score, document } = line;
            terminal.result(&format!("{relevance_score:.6}\t{}\t{document}\n", index + 1))?;
        }
        Ok(Exit::Done)
    }

    /// The head of a cross-encoder.
    fn head(&self, run: &ModelRun<'_>) -> Result<ClassificationHead, Failure> {
        let refused = |why: String| {
            Failure::usage(format!("{} is not a cross-encoder", self.model.display()))
                .because(why)
                .hint("a model for sequence classification with one label, such as a reranker")
                .hint("`surefoot embed MODEL` gives vectors, whose cosine is a score too")
        };
        match ClassificationHead::read(run.runner.opened())? {
            Some(head) if head.labels() == 1 => Ok(head),
            Some(head) => Err(refused(format!("it classifies texts by {} labels", head.labels()))),
            None => Err(refused(format!(
                "it is a model of the family {} without a head for classes",
                run.runner.blueprint().family
            ))),
        }
    }

    fn input(&self) -> Result<String, Failure> {
        let mut input = String::new();
        let read = if self.texts.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut input).map(|_| ())
        } else {
            std::fs::read_to_string(&self.texts).map(|text| input = text)
        };
        read.map_err(|error| {
            Failure::usage(format!("{} can't be read", self.texts.display())).caused_by(&error)
        })?;
        Ok(input)
    }
}
