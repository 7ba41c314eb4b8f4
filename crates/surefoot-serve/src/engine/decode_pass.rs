//! One pass of the decoder, written so that it can be repeated.
//!
//! The guard may run a pass again: after a fault, on another device, or with fewer sequences. So a
//! pass changes nothing that matters: it reads the tokens of the sequences and returns logits that
//! are on the host already. The [`CacheSlot`] is no state, only an intermediate result: a pass takes
//! it out and puts it back when it is done, so what a pass that was cut short made of it is dropped
//! and computed again from the tokens.
//! Tokens are chosen and sent by the caller, once the guard has returned.

use surefoot_models::generate::session::{Decoding, Passes};
use surefoot_models::runner::{Attempt, Location};
use surefoot_models::{ModelError, Rows};

use super::bucket;
use super::capacity::EngineCapacity;
use super::pass_budget::PassBudget;
use super::sequence::Sequence;

/// What is to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// The logits behind all tokens of so many sequences, which join those in the cache.
    Join(usize),
    /// The logits behind the last token of each sequence in the cache.
    Step,
}

/// What a pass gives.
#[derive(Debug)]
pub(crate) struct PassResult {
    /// How many sequences may run at once: fewer than before if the guard split the work.
    pub(crate) room: usize,
    /// One row for each sequence that was computed: of those that join for [`Pass::Join`], from
    /// the first on for [`Pass::Step`]. Or why the sequences that were to join can't.
    pub(crate) logits: Result<Rows, ModelError>,
}

/// The keys and values of the sequences that have joined, in their order, if they are known.
#[derive(Debug, Default)]
pub(crate) struct CacheSlot {
    cache: Option<(Location, Decoding)>,
    /// Rows that are to be taken out before the next pass, one after the other.
    leaving: Vec<usize>,
}

impl CacheSlot {
    /// Forgets everything, and frees its memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes a row out with the next pass; the last row gets its number.
    pub(crate) fn leave(&mut self, row: usize) {
        if self.cache.is_some() {
            self.leaving.push(row);
        }
    }
}

/// Runs passes on whatever device the runner says.
pub(crate) struct PassRunner<'a> {
    pub(crate) capacity: &'a EngineCapacity,
    pub(crate) budget: &'a PassBudget,
}

impl PassRunner<'_> {
    /// One try of `pass` over `sequences`, of which the first `joined` are in the cache unless it
    /// has to be made anew.
    pub(crate) fn attempt(
        &self,
        attempt: &Attempt<'_>,
        sequences: &[Sequence],
        joined: usize,
        pass: Pass,
        slot: &mut CacheSlot,
    ) -> Result<PassResult, ModelError> {
        let room = attempt.samples_at_once();
        let location = attempt.location();
        // Taken out: what a pass that is cut short leaves behind is dropped with it.
        let cached = slot.cache.take();
        let leaving = std::mem::take(&mut slot.leaving);
        let mut decoding = match cached {
            Some((cached, mut decoding)) if cached == location && attempt.number() == 1 => {
                for row in leaving {
                    decoding.leave(row);
                }
                decoding
            }
            _ => Decoding::new(attempt.model(), self.capacity.limits()),
        };
        // If there is less room than before, the last ones have to go.
        let stay = joined.min(room);
        while decoding.len() > stay {
            decoding.leave(decoding.len() - 1);
        }
        let mut over = PassOver { runner: self, attempt, decoding: &mut decoding };
        let stays = &sequences[..stay];
        let logits = match pass {
            Pass::Step => over.logits_behind(stays),
            Pass::Join(count) => {
                // If there is room for no more, none join.
                let end = (joined + count).min(room).max(joined);
                over.make_known(stays)
                    .and_then(|()| over.join(&sequences[joined..end], Sequence::tokens))
            }
        };
        let logits = match logits {
            Err(error) if error.is_device() => return Err(error),
            logits => logits,
        };
        // A refusal came before anything was computed.
        slot.cache = Some((location, decoding));
        Ok(PassResult { room, logits })
    }
}

/// A model and its cache for one pass.
struct PassOver<'a> {
    runner: &'a PassRunner<'a>,
    attempt: &'a Attempt<'a>,
    decoding: &'a mut Decoding,
}

impl PassOver<'_> {
    /// The logits behind the last token of `sequences`, which are all that the cache holds, unless
    /// it has to be made anew.
    fn logits_behind(&mut self, sequences: &[Sequence]) -> Result<Rows, ModelError> {
        if self.decoding.len() != sequences.len() {
            return self.join(sequences, Sequence::tokens);
        }
        let last: Vec<u32> = sequences.iter().map(Sequence::last).collect();
        let rows = self.runner.capacity.least_pass(self.attempt, last.len(), 1).rows;
        self.decoding.step(&mut self.attempt.model().passes_for(1), &last, rows)
    }

    /// Makes the cache anew if it does not hold `sequences`.
    fn make_known(&mut self, sequences: &[Sequence]) -> Result<(), ModelError> {
        if self.decoding.len() == sequences.len() {
            return Ok(());
        }
        self.join(sequences, Sequence::tokens_before_last).map(|_| ())
    }

    /// Lets `sequences` join with what `tokens` gives of each, in as few passes as the limits
    /// allow.
    fn join(
        &mut self,
        sequences: &[Sequence],
        tokens: fn(&Sequence) -> &[u32],
    ) -> Result<Rows, ModelError> {
        let mut passes = self.attempt.model().passes();
        let mut logits = Rows { numbers: Vec::new(), cols: 0 };
        let mut rest: Vec<Vec<u32>> = sequences.iter().map(|one| tokens(one).to_vec()).collect();
        while !rest.is_empty() {
            if logits.cols > 0 {
                self.attempt.between_parts();
            }
            let later = rest.split_off(self.as_many_as_fit(&rest));
            let rows = self.join_once(&mut passes, &rest)?;
            logits.cols = rows.cols;
            logits.numbers.extend(rows.numbers);
            rest = later;
        }
        Ok(logits)
    }

    /// How many of the first sequences are padded to no more tokens than one pass has.
    fn as_many_as_fit(&self, sequences: &[Vec<u32>]) -> usize {
        let mut longest = 0;
        let fits = |(number, tokens): (usize, &Vec<u32>)| {
            longest = tokens.len().max(longest);
            (number + 1) * longest <= self.runner.capacity.pass_tokens
        };
        sequences.iter().enumerate().map(fits).take_while(|fits| *fits).count().max(1)
    }

    fn join_once(
        &mut self,
        passes: &mut Passes<'_>,
        sequences: &[Vec<u32>],
    ) -> Result<Rows, ModelError> {
        let capacity = self.runner.capacity;
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let width = bucket::width(longest).min(capacity.context);
        let least = capacity.least_pass(self.attempt, sequences.len(), width);
        let tokens = sequences.len().max(least.rows) * longest.max(least.width);
        let _permit = self.runner.budget.acquire(tokens.min(capacity.pass_tokens));
        self.decoding.join(passes, sequences, least)
    }
}
