//! One pass of the decoder, written so that it can be repeated.
//!
//! The guard may run a pass again: after a fault, on another device, or with fewer sequences. So a
//! pass changes nothing that matters: it reads the tokens of the sequences and returns logits that
//! are on the host already. The [`CacheSlot`] is no state, only an intermediate result: whatever
//! was left in it by a pass that was cut short is thrown away and computed again from the tokens.
//! Tokens are chosen and sent by the caller, once the guard has returned.

use surefoot::recover::{Confirm, Step};
use surefoot::{BoxError, Burn, Fault};
use surefoot_models::generate::session::{Decoding, Passes};
use surefoot_models::{ModelError, Rows};

use super::bucket;
use super::pass_budget::PassBudget;
use super::resident::{Loaded, Place, Resident, device_error};
use super::sequence::Sequence;
use super::shape::Shape;

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

/// Numbers on the host need no confirmation, and a request's own mistake is no device's fault.
impl Confirm<Burn> for PassResult {
    fn confirm(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

/// The keys and values of the sequences that have joined, in their order, if they are known.
#[derive(Debug, Default)]
pub(crate) struct CacheSlot {
    cache: Option<(Place, Decoding)>,
    /// Rows that are to be taken out before the next pass, one after the other.
    leaving: Vec<usize>,
    /// A pass was cut short, so the cache can't be trusted.
    interrupted: bool,
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

/// Runs passes on whatever device the guard says.
pub(crate) struct PassRunner<'a> {
    pub(crate) resident: &'a Resident,
    pub(crate) shape: &'a Shape,
    pub(crate) budget: &'a PassBudget,
}

impl PassRunner<'_> {
    /// One try of `pass` over `sequences`, of which the first `joined` are in the cache unless it
    /// has to be made anew.
    pub(crate) fn attempt(
        &self,
        step: &Step<'_>,
        sequences: &[Sequence],
        joined: usize,
        pass: Pass,
        slot: &mut CacheSlot,
    ) -> Result<PassResult, BoxError> {
        let room = step.ranges(self.shape.sequences).map(|part| part.len()).max().unwrap_or(1);
        if slot.interrupted || step.attempt() > 1 {
            // Before the model is loaded elsewhere: its memory may be what is short.
            slot.clear();
        }
        let loaded = self.resident.on(step)?;
        if slot.cache.as_ref().is_none_or(|(place, _)| *place != loaded.place) {
            slot.clear();
            slot.cache = Some((loaded.place, Decoding::new(&loaded.model, self.shape.limits())));
        }
        slot.interrupted = true;
        let CacheSlot { cache, leaving, .. } = slot;
        let Some((_, decoding)) = cache else { return Err("the cache was not made".into()) };
        for row in leaving.drain(..) {
            decoding.leave(row);
        }
        // If there is less room than before, the last ones have to go.
        let stay = joined.min(room);
        while decoding.len() > stay {
            decoding.leave(decoding.len() - 1);
        }
        let mut over = PassOver { runner: self, loaded: &loaded, decoding };
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
            Err(error @ ModelError::Device { .. }) => return Err(device_error(error)),
            logits => logits,
        };
        // A refusal came before anything was computed.
        slot.interrupted = false;
        Ok(PassResult { room, logits })
    }
}

/// A model and its cache for one pass.
struct PassOver<'a> {
    runner: &'a PassRunner<'a>,
    loaded: &'a Loaded,
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
        let rows = self.loaded.least(last.len(), 1, self.runner.shape).rows;
        self.decoding.step(&mut self.loaded.model.passes_for(1), &last, rows)
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
        let mut passes = self.loaded.model.passes();
        let mut logits = Rows { numbers: Vec::new(), cols: 0 };
        let mut rest: Vec<Vec<u32>> = sequences.iter().map(|one| tokens(one).to_vec()).collect();
        while !rest.is_empty() {
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
            (number + 1) * longest <= self.runner.shape.pass_tokens
        };
        sequences.iter().enumerate().map(fits).take_while(|fits| *fits).count().max(1)
    }

    fn join_once(
        &mut self,
        passes: &mut Passes<'_>,
        sequences: &[Vec<u32>],
    ) -> Result<Rows, ModelError> {
        let shape = self.runner.shape;
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let width = bucket::width(longest).min(shape.context);
        let least = self.loaded.least(sequences.len(), width, shape);
        let tokens = sequences.len().max(least.rows) * longest.max(least.width);
        let _permit = self.runner.budget.acquire(tokens.min(shape.pass_tokens));
        self.decoding.join(passes, sequences, least)
    }
}
