//! A smaller model that proposes tokens: its own greedy continuation.
//!
//! It has the vocabulary of the model that it drafts for, which is checked when it is opened. Its keys and values are in
//! pages of its own. Each call is one guarded run of its own (`draft`); it changes nothing but what is proposed, so when the
//! ladder ends there are no proposals, and after some such failures in a row there never are any more.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::Candidate;
use super::pace::DraftTimes;
use crate::error::ModelError;
use crate::generate::pages::{self, PageLimits, PagedCache, TokenRun};
use crate::generate::sample::{Sampler, Sampling};
use crate::generate::text::Texts;
use crate::generate::tokens::WANT;
use crate::run::output::Logits;
use crate::runner::{Attempt, Location, RunRequest, Runner, Silent};
use crate::stream::needs::Work;

/// Tokens of prompts that go through the draft in one pass.
const PASS_TOKENS: usize = 512;
/// After so many failures in a row it is not tried any more.
const MOST_FAILURES: u32 = 3;

/// A draft model, and what it knows of the sequences.
pub struct DraftModel {
    runner: Runner,
    request: RunRequest,
    work: Work,
    /// The vocabulary of the model that is drafted for.
    vocab: usize,
    /// The bytes that a pass over one token reads, and those of the model that is drafted for.
    pass_bytes: (u64, u64),
    cache: PagedCache,
    location: Option<Location>,
    failures: u32,
}

impl std::fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl DraftModel {
    /// Opens the model in `folder` as a draft for `model`, for `sequences` of up to `context` tokens at once. No weights
    /// are read before the first proposal. Refuses a model that reads or writes other tokens than `model`.
    pub fn open(
        model: &Runner,
        folder: &Path,
        sequences: usize,
        context: usize,
    ) -> Result<Self, ModelError> {
        let runner = model.open_another(folder)?.observer(Arc::new(Silent));
        let blueprint = runner.blueprint();
        if !runner.opened().has_head() || !blueprint.causal {
            return Err(ModelError::request(format!(
                "{} can't be a draft model: it is an encoder, which proposes no tokens; give a smaller model of the same family",
                folder.display()
            )));
        }
        let own = Texts::open(&runner.opened().folder, blueprint.vocab)?;
        let other = Texts::open(&model.opened().folder, model.blueprint().vocab)?;
        if let Some(difference) = own.difference(&other) {
            return Err(ModelError::DraftVocabulary {
                draft: folder.to_owned(),
                model: model.opened().folder.clone(),
                difference,
            });
        }
        let context = context.min(blueprint.max_positions.max(1));
        let work = Work {
            batch: sequences,
            prompt: PASS_TOKENS.min(sequences * context).div_ceil(sequences.max(1)),
            new_tokens: context,
            want: WANT,
        };
        let limits = PageLimits {
            pages: sequences.saturating_mul(pages::pages_of(context) + 1),
            idle: pages::pages_of(context),
        };
        let cache = PagedCache::new(pages::layout(blueprint), limits);
        let request = RunRequest::new("draft", work).without_cost_record();
        let vocab = model.blueprint().vocab;
        let pass_bytes = (runner.opened().pass_bytes(), model.opened().pass_bytes());
        Ok(Self { runner, request, work, vocab, pass_bytes, cache, location: None, failures: 0 })
    }

    /// The folder of its files, or its GGUF file.
    pub(crate) fn folder(&self) -> &Path {
        &self.runner.opened().folder
    }

    /// The bytes of weights that a pass over one token reads, and those that one of the model that it drafts for reads.
    pub(crate) fn pass_bytes(&self) -> (u64, u64) {
        self.pass_bytes
    }

    /// How many of a sequence's tokens it would have to catch up with before it can propose any. The last two are not counted: one
    /// is always new to it, and often one that it proposed itself.
    pub(crate) fn behind(&self, candidate: &Candidate<'_>) -> usize {
        let tokens = candidate.tokens;
        let known = self.cache.filled(candidate.key);
        let known = known.unwrap_or_else(|| self.cache.needs(0, tokens).0);
        tokens.len().saturating_sub(known + 2)
    }

    /// The bytes of memory that it takes beside the model that it drafts for.
    pub fn bytes(&self) -> Result<u64, ModelError> {
        let plan = self.runner.plan(&self.work)?.checked()?;
        Ok(plan.peak_bytes.saturating_sub(plan.needs.baseline_bytes))
    }

    /// Proposes so many tokens behind each of the sequences, none where it can't, and tells how long that took.
    pub(crate) fn propose(
        &mut self,
        candidates: &[Candidate<'_>],
        counts: &[usize],
    ) -> (Vec<Vec<u32>>, DraftTimes) {
        let mut times = DraftTimes::default();
        let mut proposals = vec![Vec::new(); candidates.len()];
        let (positions, vocab) =
            (self.runner.blueprint().max_positions, self.runner.blueprint().vocab);
        let mut wanted: Vec<Drafting<'_>> = Vec::with_capacity(candidates.len());
        for (at, (candidate, count)) in candidates.iter().zip(counts).enumerate() {
            let room = positions.saturating_sub(candidate.tokens.len());
            let known = candidate.tokens.iter().all(|token| (*token as usize) < vocab);
            if *count > 0 && room > 0 && known && !candidate.tokens.is_empty() {
                wanted.push(Drafting { at, candidate, count: (*count).min(room) });
            }
        }
        if wanted.is_empty() || self.failures >= MOST_FAILURES {
            return (proposals, times);
        }
        // Taken out: what a run that was cut short made of it is dropped.
        let emptied = self.cache.emptied();
        let cache = std::cell::RefCell::new(std::mem::replace(&mut self.cache, emptied));
        let location = std::cell::Cell::new(self.location);
        let begun = Instant::now();
        let outcome = self.runner.run(&self.request, |attempt| {
            let cache = &mut *cache.borrow_mut();
            // Its weights may just have been loaded: the first pass then reads files.
            let is_new = attempt.number() > 1 || location.get() != Some(attempt.location());
            if is_new {
                *cache = cache.emptied();
                location.set(Some(attempt.location()));
            }
            drafted(attempt, cache, &wanted, is_new)
        });
        match outcome {
            Ok(outcome) => {
                self.failures = 0;
                (self.cache, self.location) = (cache.into_inner(), location.get());
                let (drafts, taken) = outcome.value;
                times = taken;
                for (drafting, mut tokens) in wanted.iter().zip(drafts) {
                    let usable = tokens.iter().position(|token| *token as usize >= self.vocab);
                    tokens.truncate(usable.unwrap_or(tokens.len()));
                    proposals[drafting.at] = tokens;
                }
            }
            // What failed is in the journal; decoding goes on without proposals.
            Err(_) => self.failures += 1,
        }
        times.rest_of(begun.elapsed());
        (proposals, times)
    }

    /// A sequence came to its end.
    pub fn end(&mut self, key: u64) {
        self.cache.end(key);
    }

    /// All sequences came to their end.
    pub(super) fn end_all(&mut self) {
        self.cache = self.cache.emptied();
    }

    /// How many sequences it has pages of.
    pub(super) fn sequences(&self) -> usize {
        self.cache.sequences()
    }
}

/// A sequence for which tokens are drafted.
struct Drafting<'a> {
    at: usize,
    candidate: &'a Candidate<'a>,
    count: usize,
}

/// The greedy continuation of each sequence, by passes over all of them, and how long they took; of those
/// of a model that is new here the first one is left out.
fn drafted(
    attempt: &Attempt<'_>,
    cache: &mut PagedCache,
    wanted: &[Drafting<'_>],
    is_new: bool,
) -> Result<(Vec<Vec<u32>>, DraftTimes), ModelError> {
    let mut times = DraftTimes::default();
    let mut sampler = Sampler::new(Sampling::GREEDY);
    let mut texts: Vec<Vec<u32>> =
        wanted.iter().map(|drafting| drafting.candidate.tokens.to_vec()).collect();
    for (drafting, tokens) in wanted.iter().zip(&texts) {
        let key = drafting.candidate.key;
        cache.resume(key, 0, tokens);
        if !cache.reserve(key, tokens.len() + drafting.count) {
            // The others go first; this one is begun again when it has its turn.
            cache.end(key);
        }
    }
    let mut passes = attempt.model().passes();
    let mut counts = !is_new;
    loop {
        let mut left = PASS_TOKENS;
        let mut runs: Vec<TokenRun<'_>> = Vec::with_capacity(wanted.len());
        let mut whole = Vec::with_capacity(wanted.len());
        for (at, (drafting, tokens)) in wanted.iter().zip(&texts).enumerate() {
            let key = drafting.candidate.key;
            let Some(filled) = cache.filled(key) else { continue };
            let is_done = tokens.len() >= drafting.candidate.tokens.len() + drafting.count;
            let rest = &tokens[filled.min(tokens.len())..];
            let count = rest.len().min(left);
            if is_done || count == 0 {
                continue;
            }
            left -= count;
            let logits = if count == rest.len() { Logits::Last } else { Logits::None };
            if count == rest.len() {
                whole.push(at);
            }
            runs.push(TokenRun { key, tokens: &rest[..count], logits, adapter: None });
        }
        if runs.is_empty() {
            break;
        }
        let rows = runs.iter().map(|run| run.tokens.len());
        let (longest, rows) = (rows.clone().max().unwrap_or(0), rows.sum());
        let begun = Instant::now();
        let logits = cache.run(&mut passes, &runs)?;
        if counts {
            times.passed(rows, longest, begun.elapsed());
        }
        counts = true;
        for (row, at) in whole.into_iter().enumerate() {
            texts[at].push(sampler.choose(logits.row(row)));
        }
    }
    let own = texts.into_iter().zip(wanted);
    let drafts =
        own.map(|(mut tokens, drafting)| tokens.split_off(drafting.candidate.tokens.len()));
    Ok((drafts.collect(), times))
}

#[cfg(test)]
mod tests {
    use surefoot::Footing;
    use surefoot::device::{DeviceName, Selector};

    use super::*;

    #[test]
    fn loading_and_the_first_pass_are_told_and_are_no_measure_of_later_passes() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
        let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
        let runner = Runner::open(Arc::new(footing), &folder).unwrap();
        let mut draft = DraftModel::open(&runner, &folder, 1, 128).unwrap();
        let tokens: Vec<u32> = (0..60).collect();
        let candidate = Candidate { key: 1, tokens: &tokens, most: 2 };
        let (proposals, times) = draft.propose(&[candidate], &[2]);
        assert_eq!(proposals[0].len(), 2);
        assert_eq!((times.caught_up, times.tokens), (0, 1), "the pass over 60 tokens is left out");
        assert!(times.other > times.drafting, "{times:?}");
        draft.end_all();
        let (_, times) = draft.propose(&[candidate], &[2]);
        assert_eq!((times.caught_up, times.tokens), (60, 1), "the weights are loaded");
    }
}
