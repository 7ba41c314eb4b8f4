//! Generating tokens for a batch of prompts with a cache: one pass over the prompts, then one
//! pass a token for the whole batch.

use std::ops::ControlFlow;

use rayon::prelude::*;

use super::sample::{Sampler, Sampling};
use super::speculate::Speculator;
use crate::error::ModelError;
use crate::run::batch::TokenBatch;
use crate::run::cache::Cache;
use crate::run::model::Model;
use crate::run::output::{Logits, StepOutput, Want};
use crate::run::recorded_step::StepRecorder;

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompts.
    pub prompts: Vec<Vec<u32>>,
    /// The most tokens behind a prompt.
    pub max_tokens: usize,
    /// Tokens that end a sequence; they are not part of the result.
    pub ends: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

/// What a pass of generation keeps.
pub const WANT: Want = Want { logits: Logits::Last, hidden: false, last_hidden: false };

/// Numbers of logits with which it is worth to choose tokens on several threads.
const WORTH_THREADS: usize = 1 << 18;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A token that ends the text.
    EndOfText,
    /// Whoever took the tokens had enough.
    Stopped,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The model has learned no further positions.
    ContextFull,
}

/// The tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Behind the prompt.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub ending: FinishReason,
}

impl Model {
    /// Generates. `each` is given every token with the number of its sequence as it comes and
    /// may end that sequence.
    pub fn generate(
        &self,
        request: &Request,
        each: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, ModelError> {
        self.generate_behind(request, &[], each)
    }

    /// [`Self::generate`], going on behind tokens that each sequence has already: `known` has them
    /// for each sequence, or is empty. They are run again as they were the first time,
    /// and not given to `each`; the result has them.
    pub fn generate_behind(
        &self,
        request: &Request,
        known: &[Vec<u32>],
        each: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, ModelError> {
        self.generate_speculating(request, known, &mut Speculator::default(), each)
    }

    /// [`Self::generate_behind`] with proposals of `speculator`, which change no token. They are made on the CPU and for
    /// models without an adapter only, where a token has the same logits whatever is proposed.
    pub fn generate_speculating(
        &self,
        request: &Request,
        known: &[Vec<u32>],
        speculator: &mut Speculator,
        mut each: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, ModelError> {
        if self.format.is_on_host() && self.cpu_fallback.is_none() {
            return self.generate_in_pages(request, known, speculator, &mut each);
        }
        let batch = TokenBatch::new(&request.prompts, self.blueprint().vocab)?;
        let longest = batch.width;
        let (steps, full) = self.steps_behind(longest, request.max_tokens)?;
        let mut sequences: Vec<Sequence> =
            request.prompts.iter().map(|_| Sequence::new(request.sampling)).collect();
        let mut cache = Cache::new(&self.blueprint, batch.len(), longest + steps, &self.parts);
        let mut session = self.store.open(steps);
        let mut next = batch;
        let mut recorder = StepRecorder::default();
        let greedy = request.sampling.is_greedy();
        for _ in 0..steps {
            let output =
                self.decode_step(&mut recorder, &next, &mut session, &mut cache, greedy)?;
            let mut ids = chosen(&mut sequences, output)?;
            for (number, (sequence, id)) in sequences.iter_mut().zip(&mut ids).enumerate() {
                let known = known.get(number).map_or(&[][..], Vec::as_slice);
                *id = sequence.take(*id, known, &request.ends, |token| each(number, token));
            }
            if sequences.iter().all(|sequence| sequence.ending.is_some()) {
                break;
            }
            next = TokenBatch { ids, width: 1, pads: next.pads };
        }
        Ok(sequences
            .into_iter()
            .map(|sequence| Generated {
                tokens: sequence.tokens,
                ending: sequence.ending.unwrap_or(full),
            })
            .collect())
    }

    /// How many tokens come behind a prompt of so many tokens, and why no more do.
    pub(super) fn steps_behind(
        &self,
        prompt: usize,
        max_tokens: usize,
    ) -> Result<(usize, FinishReason), ModelError> {
        let room = self.room_behind(prompt)?;
        Ok(match room < max_tokens {
            true => (room, FinishReason::ContextFull),
            false => (max_tokens, FinishReason::MaxTokens),
        })
    }

    /// How many positions there are behind a prompt.
    fn room_behind(&self, prompt: usize) -> Result<usize, ModelError> {
        if !self.has_head() {
            return Err(ModelError::request(format!(
                "a {} without a head can't generate text",
                self.blueprint().family
            )));
        }
        if self.blueprint().rope.is_some() {
            return Ok(usize::MAX);
        }
        // The last token needs no position of its own: nothing comes behind it.
        (self.blueprint().max_positions + 1)
            .checked_sub(prompt)
            .filter(|room| *room > 0)
            .ok_or_else(|| {
                ModelError::request(format!(
                    "the prompt has {prompt} tokens, the model has learned {} positions",
                    self.blueprint().max_positions
                ))
            })
    }
}

/// A sequence as it is generated.
pub(super) struct Sequence {
    sampler: Sampler,
    pub(super) tokens: Vec<u32>,
    pub(super) ending: Option<FinishReason>,
}

impl Sequence {
    pub(super) fn new(sampling: Sampling) -> Self {
        Self { sampler: Sampler::new(sampling), tokens: Vec::new(), ending: None }
    }

    /// Chooses the next token, takes it and returns what the next pass is fed with.
    pub(super) fn step(
        &mut self,
        logits: &[f32],
        known: &[u32],
        ends: &[u32],
        each: impl FnOnce(u32) -> ControlFlow<()>,
    ) -> u32 {
        let token = self.choose(logits);
        self.take(token, known, ends, each)
    }

    /// The next token. It is chosen where it is known too, so that the random numbers go on as they did the first time.
    fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.ending.is_some() { 0 } else { self.sampler.choose(logits) }
    }

    /// Takes the token that was chosen and returns what the next pass is fed with.
    fn take(
        &mut self,
        token: u32,
        known: &[u32],
        ends: &[u32],
        each: impl FnOnce(u32) -> ControlFlow<()>,
    ) -> u32 {
        if self.ending.is_some() {
            // The others go on; what this one is fed with doesn't reach them.
            return 0;
        }
        if let Some(&token) = known.get(self.tokens.len()) {
            self.tokens.push(token);
            return token;
        }
        if ends.contains(&token) {
            self.ending = Some(FinishReason::EndOfText);
        } else {
            self.tokens.push(token);
            if each(token).is_break() {
                self.ending = Some(FinishReason::Stopped);
            }
        }
        token
    }
}

/// The next token of each sequence.
fn chosen(sequences: &mut [Sequence], output: StepOutput) -> Result<Vec<u32>, ModelError> {
    let logits = match output {
        StepOutput::MostLikely(tokens) => return Ok(tokens),
        StepOutput::Logits(logits) => logits.checked("logits")?,
    };
    let choose = |(row, sequence): (usize, &mut Sequence)| sequence.choose(logits.row(row));
    Ok(match logits.numbers.len() >= WORTH_THREADS && sequences.len() > 1 {
        true => sequences.par_iter_mut().enumerate().map(choose).collect(),
        false => sequences.iter_mut().enumerate().map(choose).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::Rows;

    #[test]
    fn sequences_choose_the_same_tokens_on_several_threads_as_one_after_another() {
        let cols = WORTH_THREADS / 4;
        let numbers: Vec<f32> = (0..5 * cols).map(|at| ((at * 7919) % 10_007) as f32).collect();
        let logits = Rows { cols, numbers };
        let sampling = Sampling { temperature: 300.0, seed: 3, ..Sampling::GREEDY };
        let sequences = || -> Vec<Sequence> { (0..5).map(|_| Sequence::new(sampling)).collect() };
        let (mut together, mut alone) = (sequences(), sequences());
        (together[2].ending, alone[2].ending) =
            (Some(FinishReason::Stopped), Some(FinishReason::Stopped));
        for _ in 0..3 {
            let output = StepOutput::Logits(logits.clone());
            let expected: Vec<u32> = alone
                .iter_mut()
                .enumerate()
                .map(|(row, one)| one.choose(logits.row(row)))
                .collect();
            assert_eq!(chosen(&mut together, output).unwrap(), expected);
            assert_eq!(expected[2], 0);
        }
        let infinite = Rows { cols: 1, numbers: vec![f32::INFINITY] };
        assert!(chosen(&mut together, StepOutput::Logits(infinite)).is_err());
        let tokens = vec![4, 5, 6, 7, 8];
        assert_eq!(chosen(&mut together, StepOutput::MostLikely(tokens.clone())).unwrap(), tokens);
    }
}
