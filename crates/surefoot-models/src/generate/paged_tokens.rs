//! Generating tokens for a batch of prompts on the CPU, with keys and values in pages: one pass over the prompts, then
//! passes over the last token of each sequence and what is proposed to come behind it.
//!
//! Tokens that were known before, because an earlier attempt got as far, are run again like proposals: as many in a pass as
//! have the same bits there as alone.

use std::ops::ControlFlow;
use std::time::Instant;

use super::pages::{self, PageLimits, PagedCache, TokenRun};
use super::speculate::{Candidate, MOST_ROWS, Speculator};
use super::tokens::{Generated, Request, Sequence};
use crate::error::ModelError;
use crate::run::batch::TokenBatch;
use crate::run::model::Model;
use crate::run::output::Logits;

/// A sequence that is not at its end.
struct Open<'a> {
    key: u64,
    /// Prompt and answer.
    text: Vec<u32>,
    prompt: usize,
    known: &'a [u32],
}

impl Open<'_> {
    /// The known tokens that come next.
    fn known_next(&self) -> &[u32] {
        self.known.get(self.text.len() - self.prompt..).unwrap_or(&[])
    }
}

impl Model {
    /// See [`Model::generate_speculating`].
    pub(super) fn generate_in_pages(
        &self,
        request: &Request,
        known: &[Vec<u32>],
        speculator: &mut Speculator,
        each: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, ModelError> {
        let longest = TokenBatch::new(&request.prompts, self.blueprint().vocab)?.width;
        let (steps, full) = self.steps_behind(longest, request.max_tokens)?;
        let mut sequences: Vec<Sequence> =
            request.prompts.iter().map(|_| Sequence::new(request.sampling)).collect();
        let pages = pages::pages_of(longest.saturating_add(steps)).saturating_add(1);
        let limits = PageLimits { pages: pages.saturating_mul(sequences.len()), idle: 0 };
        let mut cache = PagedCache::new(pages::layout(&self.blueprint), limits);
        let mut passes = self.passes_for(steps);
        let mut open: Vec<Open<'_>> = Vec::with_capacity(sequences.len());
        for (number, prompt) in request.prompts.iter().enumerate().filter(|_| steps > 0) {
            let key = number as u64;
            cache.begin(key, 0, prompt);
            let known = known.get(number).map_or(&[][..], Vec::as_slice);
            open.push(Open { key, text: prompt.clone(), prompt: prompt.len(), known });
        }
        let may_propose = self.tuning.is_none();
        while !open.is_empty() {
            let proposals = match may_propose && open.iter().all(|one| is_decoded(one, &cache)) {
                true => proposals(&open, steps, speculator),
                false => vec![Vec::new(); open.len()],
            };
            let mut rows = 0;
            let mut given: Vec<Vec<u32>> = Vec::with_capacity(open.len());
            for (one, proposal) in open.iter().zip(&proposals) {
                let mut tokens = one.text[cache.filled(one.key).unwrap_or(0)..].to_vec();
                tokens.extend(proposal);
                rows += tokens.len();
                given.push(tokens);
            }
            let runs: Vec<TokenRun<'_>> = open
                .iter()
                .zip(given.iter().zip(&proposals))
                .map(|(one, (tokens, proposal))| TokenRun {
                    key: one.key,
                    tokens,
                    logits: if proposal.is_empty() { Logits::Last } else { Logits::All },
                    adapter: None,
                })
                .collect();
            let is_decoding = given.iter().zip(&proposals).all(|(t, p)| t.len() == 1 + p.len());
            let begun = Instant::now();
            let logits = cache.run(&mut passes, &runs)?.checked("logits")?;
            if is_decoding {
                speculator.passed(rows, begun.elapsed());
            }
            let mut row = 0;
            for (one, proposal) in open.iter_mut().zip(&proposals) {
                let sequence = &mut sequences[one.key as usize];
                let was_known = !one.known_next().is_empty();
                let mut accepted = 0;
                for at in 0..=proposal.len() {
                    let before = sequence.tokens.len();
                    let numbers = logits.row(row + at);
                    let token = sequence.step(numbers, one.known, &request.ends, |token| {
                        each(one.key as usize, token)
                    });
                    if sequence.tokens.len() > before {
                        one.text.push(token);
                    }
                    let is_right = proposal.get(at) == Some(&token);
                    accepted += usize::from(is_right);
                    if sequence.tokens.len() >= steps {
                        sequence.ending.get_or_insert(full);
                    }
                    if sequence.ending.is_some() || !is_right {
                        break;
                    }
                }
                row += 1 + proposal.len();
                if !was_known {
                    speculator.verified(one.key, proposal.len(), accepted);
                }
                cache.truncate(one.key, one.text.len() - 1);
            }
            open.retain(|one| {
                let goes_on = sequences[one.key as usize].ending.is_none();
                if !goes_on {
                    cache.end(one.key);
                    speculator.end(one.key);
                }
                goes_on
            });
        }
        Ok(sequences
            .into_iter()
            .map(|sequence| Generated {
                tokens: sequence.tokens,
                ending: sequence.ending.unwrap_or(full),
            })
            .collect())
    }
}

/// Whether a sequence lacks only its last token in the cache.
fn is_decoded(one: &Open<'_>, cache: &PagedCache) -> bool {
    cache.filled(one.key) == Some(one.text.len() - 1)
}

/// What is run behind the last token of each: what is known, or else what is proposed.
fn proposals(open: &[Open<'_>], steps: usize, speculator: &mut Speculator) -> Vec<Vec<u32>> {
    let mut proposals = vec![Vec::new(); open.len()];
    // A token behind which none may come needs no row.
    let most = |one: &Open<'_>| steps - (one.text.len() - one.prompt) - 1;
    if open.iter().all(|one| one.known_next().is_empty()) {
        if !speculator.is_on() {
            return proposals;
        }
        let candidates: Vec<Candidate<'_>> = open
            .iter()
            .map(|one| Candidate { key: one.key, tokens: &one.text, most: most(one) })
            .collect();
        return speculator.propose(&candidates);
    }
    let mut left = MOST_ROWS.saturating_sub(open.len());
    for (one, proposal) in open.iter().zip(&mut proposals) {
        let count = one.known_next().len().min(left).min(most(one));
        proposal.extend(&one.known_next()[..count]);
        left -= count;
    }
    proposals
}
