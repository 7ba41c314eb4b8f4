//! One pass of the decoder, written so that it can be repeated.
//!
//! The guard may run a pass again: after a fault, on another device, or with fewer sequences. So a
//! pass changes nothing that matters: it reads the tokens of the sequences and returns logits that
//! are on the host already. The [`CacheSlot`] is no state, only an intermediate result: a pass takes
//! it out and puts it back when it is done, so what a pass that was cut short made of it is dropped
//! and computed again from the tokens.
//! Tokens are chosen and sent by the caller, once the guard has returned.

use surefoot_models::generate::prefill::Prefill;
use surefoot_models::generate::session::{Decoding, Passes};
use surefoot_models::runner::{Attempt, Location};
use surefoot_models::{ModelError, Rows};

use super::bucket;
use super::capacity::EngineCapacity;
use super::pass_budget::PassBudget;
use super::prefixes::Prefixes;
use super::sequence::Sequence;

/// A prompt of so many tokens fills a pass alone.
const LONG_PROMPT: usize = 128;

/// What is to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// The logits behind all tokens of so many sequences, which join those in the cache.
    Join(usize),
    /// So many tokens of the first sequence that has not joined. When its last one is run, it joins
    /// and its logits are given; before that none are.
    Part(usize),
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
    /// Tokens that did not have to be run because a prompt began alike.
    pub(crate) known: usize,
}

/// The keys and values of the sequences that have joined, in their order, if they are known.
#[derive(Debug, Default)]
pub(crate) struct CacheSlot {
    cache: Option<(Location, Decoding)>,
    /// Rows that are to be taken out before the next pass, one after the other.
    leaving: Vec<usize>,
    /// A prompt of which some tokens are run, where, and with which adapter.
    begun: Option<(Location, Option<usize>, Prefill)>,
    /// Prompts that were run, and where.
    prefixes: Prefixes,
    prefixes_at: Option<Location>,
}

impl CacheSlot {
    /// Forgets the sequences, and frees their memory. The beginnings of prompts stay.
    pub(crate) fn clear(&mut self) {
        self.cache = None;
        self.leaving.clear();
        self.begun = None;
    }

    /// Forgets everything, and frees its memory.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether some tokens of a sequence are run already, with nobody else's.
    pub(crate) fn has_begun(&self, sequence: &Sequence) -> bool {
        self.begun.as_ref().is_some_and(|(_, adapter, begun)| {
            *adapter == sequence.adapter() && begun.tokens() == sequence.tokens()
        })
    }

    /// Whether a sequence joins alone and in parts: if it is long, or begins like an earlier one.
    pub(crate) fn joins_in_parts(&self, sequence: &Sequence) -> bool {
        sequence.tokens().len() >= LONG_PROMPT
            || self.has_begun(sequence)
            || self.prefixes.longest(sequence.adapter(), sequence.tokens()).is_some()
    }

    /// The prompt of which some tokens are run, or one that begins with what is known. Gives how many
    /// tokens were known.
    fn begin(
        &mut self,
        attempt: &Attempt<'_>,
        sequence: &Sequence,
    ) -> Result<(Prefill, usize), ModelError> {
        let (location, tokens) = (attempt.location(), sequence.tokens());
        let has_begun = self.has_begun(sequence);
        if let Some((at, _, begun)) = self.begun.take()
            && at == location
            && has_begun
        {
            return Ok((begun, 0));
        }
        let Some((at, length)) = self.prefixes.longest(sequence.adapter(), tokens) else {
            return Ok((Prefill::new(attempt.model(), tokens, None)?, 0));
        };
        let known = self.prefixes.take_up(at).map(|known| (known, length));
        let count = known.map_or(0, |(_, length)| length);
        Ok((Prefill::new(attempt.model(), tokens, known)?, count))
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
        if attempt.number() > 1 || slot.prefixes_at != Some(location) {
            // After a fault, memory may be short, and nothing that was computed is trusted.
            slot.begun = None;
            slot.prefixes.clear();
            slot.prefixes_at = Some(location);
        }
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
        let mut known = 0;
        // A fault may have led to a device where parts are not used.
        let pass = match pass {
            Pass::Part(_) if attempt.is_asynchronous() => Pass::Join(1),
            pass => pass,
        };
        let logits = match pass {
            Pass::Part(_) if joined >= room => Ok(Rows { numbers: Vec::new(), cols: 0 }),
            Pass::Part(count) => over.make_known(stays).and_then(|()| {
                let (logits, reused) = over.run_part(slot, &sequences[joined], count)?;
                known = reused;
                Ok(logits)
            }),
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
        Ok(PassResult { room, logits, known })
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
        let mut passes = self.attempt.model().passes_for(1);
        passes.set_adapters(sequences.iter().map(Sequence::adapter).collect());
        self.decoding.step(&mut passes, &last, rows)
    }

    /// Makes the cache anew if it does not hold `sequences`.
    fn make_known(&mut self, sequences: &[Sequence]) -> Result<(), ModelError> {
        if self.decoding.len() == sequences.len() {
            return Ok(());
        }
        self.join(sequences, Sequence::tokens_before_last).map(|_| ())
    }

    /// Runs some tokens of a prompt; when all are run it joins, and its logits are given. Gives how many
    /// tokens were known from an earlier prompt, too.
    fn run_part(
        &mut self,
        slot: &mut CacheSlot,
        sequence: &Sequence,
        count: usize,
    ) -> Result<(Rows, usize), ModelError> {
        let capacity = self.runner.capacity;
        let (adapter, tokens) = (sequence.adapter(), sequence.tokens());
        let (mut prefill, known) = slot.begin(self.attempt, sequence)?;
        let count = count.clamp(1, capacity.pass_tokens);
        let _permit = self.runner.budget.acquire(count.min(tokens.len() - prefill.done()));
        let mut passes = self.attempt.model().passes_for(1);
        passes.set_adapters(vec![adapter]);
        let Some(logits) = prefill.advance(&mut passes, count)? else {
            slot.begun = Some((self.attempt.location(), adapter, prefill));
            return Ok((Rows { numbers: Vec::new(), cols: 0 }, known));
        };
        let most = capacity.prefix_tokens();
        if slot.prefixes.wants(adapter, tokens, most) {
            slot.prefixes.keep(adapter, prefill.known(), most);
        }
        self.decoding.join_prefill(&passes, prefill)?;
        Ok((logits, known))
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
        let mut adapters = sequences.iter().map(Sequence::adapter);
        let mut rest: Vec<Vec<u32>> = sequences.iter().map(|one| tokens(one).to_vec()).collect();
        while !rest.is_empty() {
            if logits.cols > 0 {
                self.attempt.between_parts();
            }
            let later = rest.split_off(self.as_many_as_fit(&rest));
            passes.set_adapters(adapters.by_ref().take(rest.len()).collect());
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
