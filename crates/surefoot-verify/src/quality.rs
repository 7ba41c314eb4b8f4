//! How well a model stands in for another: on a text of the user's, not on challenges, and without a verdict.
//!
//! For models that predict tokens: the Kullback-Leibler divergence of the next token's distribution from the
//! reference's, how often the likeliest token is the same, and the perplexity of both. For encoders: the cosine of
//! embeddings of the text's lines. The reference runs first and its logits go to a temporary file, so at most one
//! model is in memory.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use serde::Serialize;
use surefoot_models::embed::Recipe;
use surefoot_models::generate::text::Texts;
use surefoot_models::runner::{RunRequest, Runner};
use surefoot_models::stream::needs::Work;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_models::{Logits, ModelError, TokenBatch, Want};

use crate::error::VerifyError;
use crate::verifier::Verifier;

const WANT: Want = Want { logits: Logits::All, hidden: false, last_hidden: false };
/// Logits that are in memory at once, at most, where memory is not limited further.
const LOGITS_AT_ONCE: usize = 16 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QualityOptions {
    /// Tokens of the text that are used, at most.
    pub tokens: usize,
    /// Tokens that a model sees at once; each is predicted from those before it.
    pub window: usize,
    /// In which form the candidate's weights are loaded. The reference's are as stored.
    pub weights: WeightChoice,
}

impl Default for QualityOptions {
    fn default() -> Self {
        Self { tokens: 1024, window: 128, weights: WeightChoice::AsStored }
    }
}

/// How far a candidate is from its reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "of")]
#[non_exhaustive]
pub enum Quality {
    /// Of predictions of the next token.
    Predictions {
        /// Predictions that were compared.
        predictions: usize,
        /// The mean divergence of the candidate's distribution from the reference's, in nats.
        kl_mean: f64,
        /// The divergence that 99 of 100 predictions stay below.
        kl_99: f64,
        /// The largest.
        kl_max: f64,
        /// The share of predictions whose likeliest token is the same.
        top1_agreement: f64,
        /// Of the text, by the reference.
        reference_perplexity: f64,
        /// Of the text, by the candidate.
        candidate_perplexity: f64,
    },
    /// Of embeddings of lines.
    Embeddings {
        /// Lines that were compared.
        lines: usize,
        /// The mean cosine of the two embeddings of a line.
        cosine_mean: f64,
        /// The least.
        cosine_least: f64,
    },
}

impl Verifier<'_> {
    /// Measures how far `candidate` is from `reference` on `text`.
    pub fn quality(
        &self,
        reference: &Path,
        candidate: &Path,
        text: &str,
        options: &QualityOptions,
    ) -> Result<Quality, VerifyError> {
        let exact = self.runner(reference)?;
        let other = exact.open_another(candidate)?.weights(options.weights);
        let vocab = exact.blueprint().vocab;
        if other.blueprint().vocab != vocab
            || other.opened().has_head() != exact.opened().has_head()
        {
            return Err(VerifyError::incomparable(
                "the models have other vocabularies, or only one of them predicts tokens",
            ));
        }
        let texts = Texts::open(reference, vocab)?;
        if !exact.opened().has_head() {
            return embeddings(&exact, &other, &texts, reference, text);
        }
        let tokens = texts.encode(text)?;
        let window = options.window.min(exact.blueprint().max_positions).min(tokens.len());
        if window < 2 {
            return Err(VerifyError::request(
                "the text has fewer than two tokens: nothing is predicted",
            ));
        }
        let windows: Vec<Vec<u32>> = tokens
            .chunks_exact(window)
            .take((options.tokens / window).max(1))
            .map(<[u32]>::to_vec)
            .collect();
        let file = tempfile::tempfile().map_err(|error| {
            VerifyError::request(format!("there is no temporary file: {error}"))
        })?;
        record(&exact, &windows, &file)?;
        exact.unload();
        let sums = follow(&other, &windows, &file)?;
        other.unload();
        Ok(sums.quality())
    }
}

/// Windows at once.
fn group(runner: &Runner, windows: &[Vec<u32>]) -> Result<(usize, Work), VerifyError> {
    let length = windows[0].len();
    let work = |batch| Work { batch, prompt: length, new_tokens: 0, want: WANT };
    let most = (LOGITS_AT_ONCE / (length * runner.blueprint().vocab)).clamp(1, windows.len());
    let group = runner.fitting_samples(most, work)?;
    Ok((group, work(group)))
}

fn broken(error: std::io::Error) -> ModelError {
    ModelError::Request(format!("the temporary file of logits can't be used: {error}"))
}

/// Writes all logits of the reference.
fn record(runner: &Runner, windows: &[Vec<u32>], file: &File) -> Result<(), VerifyError> {
    let (group, work) = group(runner, windows)?;
    let request = RunRequest::new("quality", work).passes(windows.len().div_ceil(group));
    runner.run(&request, |attempt| {
        let mut file = file;
        // An attempt that failed may have written some.
        file.rewind().map_err(broken)?;
        let mut target = BufWriter::with_capacity(1 << 20, file);
        for some in windows.chunks(group) {
            let batch = TokenBatch::new(some, attempt.model().blueprint().vocab)?;
            let logits = attempt.model().forward(&batch, WANT)?.logits;
            for number in logits.iter().flat_map(|rows| &rows.numbers) {
                target.write_all(&number.to_le_bytes()).map_err(broken)?;
            }
        }
        target.flush().map_err(broken)
    })?;
    Ok(())
}

/// Runs the candidate and compares each of its rows with the reference's.
fn follow(runner: &Runner, windows: &[Vec<u32>], file: &File) -> Result<Sums, VerifyError> {
    let (group, work) = group(runner, windows)?;
    let request = RunRequest::new("quality", work).passes(windows.len().div_ceil(group));
    let outcome = runner.run(&request, |attempt| {
        let mut file = file;
        file.rewind().map_err(broken)?;
        let mut source = BufReader::with_capacity(1 << 20, file);
        let vocab = attempt.model().blueprint().vocab;
        let (mut bytes, mut expected) = (vec![0; vocab * 4], vec![0.0_f32; vocab]);
        let mut sums = Sums::default();
        for some in windows.chunks(group) {
            let batch = TokenBatch::new(some, vocab)?;
            let logits = attempt.model().forward(&batch, WANT)?.logits;
            let rows = logits.iter().flat_map(|rows| rows.numbers.chunks_exact(vocab));
            let next = some
                .iter()
                .flat_map(|window| window.iter().skip(1).map(|token| Some(*token)).chain([None]));
            for (row, next) in rows.zip(next) {
                source.read_exact(&mut bytes).map_err(broken)?;
                for (number, bytes) in expected.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *number = f32::from_le_bytes(*bytes);
                }
                if let Some(next) = next {
                    sums.add(&expected, row, next as usize);
                }
            }
        }
        Ok(sums)
    })?;
    Ok(outcome.value)
}

/// What is added up over all predictions.
#[derive(Clone, Debug, Default)]
struct Sums {
    divergences: Vec<f64>,
    agreed: usize,
    reference_surprise: f64,
    candidate_surprise: f64,
}

impl Sums {
    fn add(&mut self, reference: &[f32], candidate: &[f32], next: usize) {
        let (ours, theirs) = (log_sum_exp(reference), log_sum_exp(candidate));
        let divergence: f64 = reference
            .iter()
            .zip(candidate)
            .map(|(one, other)| {
                let (one, other) = (f64::from(*one) - ours, f64::from(*other) - theirs);
                one.exp() * (one - other)
            })
            .sum();
        // It is not negative; rounding may make it so.
        self.divergences.push(divergence.max(0.0));
        self.agreed += usize::from(likeliest(reference) == likeliest(candidate));
        self.reference_surprise += ours - f64::from(reference[next]);
        self.candidate_surprise += theirs - f64::from(candidate[next]);
    }

    fn quality(mut self) -> Quality {
        let count = self.divergences.len();
        self.divergences.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = ((count as f64 * share).ceil() as usize).clamp(1, count.max(1)) - 1;
            self.divergences.get(place).copied().unwrap_or(0.0)
        };
        let each = count.max(1) as f64;
        Quality::Predictions {
            predictions: count,
            kl_mean: self.divergences.iter().sum::<f64>() / each,
            kl_99: at(0.99),
            kl_max: at(1.0),
            top1_agreement: self.agreed as f64 / each,
            reference_perplexity: (self.reference_surprise / each).exp(),
            candidate_perplexity: (self.candidate_surprise / each).exp(),
        }
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = f64::from(most);
    most + row.iter().map(|number| (f64::from(*number) - most).exp()).sum::<f64>().ln()
}

fn likeliest(row: &[f32]) -> usize {
    let mut best = 0;
    for (at, number) in row.iter().enumerate() {
        if *number > row[best] {
            best = at;
        }
    }
    best
}

fn embeddings(
    exact: &Runner,
    other: &Runner,
    texts: &Texts,
    folder: &Path,
    text: &str,
) -> Result<Quality, VerifyError> {
    let recipe = Recipe::read(folder)?;
    let positions = exact.blueprint().max_positions;
    let most = recipe.max_tokens.map_or(positions, |most| most.min(positions));
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut tokens = texts.encode(line)?;
        tokens.truncate(most);
        lines.push(tokens);
    }
    if lines.is_empty() {
        return Err(VerifyError::request("the text has no lines to embed"));
    }
    let ours = exact.embed(&lines, recipe.pooling)?.value;
    exact.unload();
    let theirs = other.embed(&lines, recipe.pooling)?.value;
    other.unload();
    let cosines: Vec<f64> =
        (0..lines.len()).map(|at| cosine(ours.row(at), theirs.row(at))).collect();
    Ok(Quality::Embeddings {
        lines: lines.len(),
        cosine_mean: cosines.iter().sum::<f64>() / lines.len() as f64,
        cosine_least: cosines.iter().copied().fold(f64::INFINITY, f64::min),
    })
}

fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tokens with 3/4 and 1/4 against 1/2 and 1/2: 0.75 ln 1.5 + 0.25 ln 0.5 = 0.1308.
    #[test]
    fn divergence_agreement_and_perplexity_are_those_of_the_definitions() {
        let mut sums = Sums::default();
        let reference = [3.0_f32.ln() + 5.0, 5.0];
        sums.add(&reference, &[1.0, 1.0], 1);
        sums.add(&reference, &reference, 0);
        let Quality::Predictions {
            predictions,
            kl_mean,
            kl_max,
            top1_agreement,
            reference_perplexity,
            candidate_perplexity,
            ..
        } = sums.quality()
        else {
            panic!("these are predictions");
        };
        assert_eq!(predictions, 2);
        assert!((kl_max - 0.1308).abs() < 1e-4 && (kl_mean - 0.0654).abs() < 1e-4, "{kl_mean}");
        // Of two that are equally likely the first counts.
        assert!((top1_agreement - 1.0).abs() < 1e-12);
        assert!((reference_perplexity - (4.0_f64 * 4.0 / 3.0).sqrt()).abs() < 1e-5);
        assert!((candidate_perplexity - (2.0_f64 * 4.0 / 3.0).sqrt()).abs() < 1e-5);
    }
}
