//! One pass of the decoder, written so that it can be repeated.
//!
//! The guard may run a pass again: after a fault, on another device, or with fewer sequences. So a
//! pass changes nothing that matters: it reads the tokens of the sequences and returns logits that
//! are on the host already. The [`CacheSlot`] is no state, only an intermediate result: a pass takes
//! it out and puts it back when it is done, so what a pass that was cut short made of it is dropped
//! and computed again from the tokens.
//! Tokens are chosen and sent by the caller, once the guard has returned.

use std::borrow::Cow;

use surefoot_models::generate::pages::{PagedCache, TokenRun};
use surefoot_models::generate::session::{Decoding, Passes};
use surefoot_models::runner::{Attempt, Location};
use surefoot_models::{Logits, ModelError, Rows, StepOutput};

use super::bucket;
use super::capacity::EngineCapacity;
use super::pass_budget::PassBudget;
use super::schedule::Share;
use super::sequence::Sequence;

/// What is to be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Tokens of sequences whose keys and values are in pages.
    Tokens(Vec<Share>),
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
    /// The logits, or of [`Pass::Step`] the most likely tokens where nobody wants more. One row for each sequence that was computed: for [`Pass::Tokens`] of those in [`PassResult::answered`], one and one
    /// more for each token that was proposed, of those that join for [`Pass::Join`], from the first on for [`Pass::Step`]. Or why the
    /// sequences that were to run can't.
    pub(crate) output: Result<StepOutput, ModelError>,
    /// The sequences that [`Pass::Tokens`] gives logits for.
    pub(crate) answered: Vec<Answered>,
}

/// A sequence that a pass gives logits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Its place.
    pub(crate) at: usize,
    /// The tokens that were proposed and run. There are logits behind the last token and behind each of these.
    pub(crate) proposed: Vec<u32>,
}

impl Answered {
    /// One for which nothing was proposed.
    pub(crate) fn plainly(at: usize) -> Self {
        Self { at, proposed: Vec::new() }
    }

    /// How many rows of logits it has.
    pub(crate) fn rows(&self) -> usize {
        1 + self.proposed.len()
    }
}

/// The keys and values of the sequences, as far as they are known: on the CPU in pages, elsewhere in one
/// cache for those that have joined, in their order.
#[derive(Debug)]
pub(crate) struct CacheSlot {
    cache: Option<(Location, Decoding)>,
    /// Rows that are to be taken out before the next pass, one after the other.
    leaving: Vec<usize>,
    /// Pages, and where they were computed.
    pub(crate) pages: PagedCache,
    pages_at: Option<Location>,
}

impl CacheSlot {
    /// Nothing is known yet.
    pub(crate) fn new(pages: PagedCache) -> Self {
        Self { cache: None, leaving: Vec::new(), pages, pages_at: None }
    }

    /// Nothing is being decoded, for now: the cache of those that had joined is kept for others.
    pub(crate) fn rest(&mut self) {
        if let Some((_, decoding)) = &mut self.cache {
            decoding.clear();
        }
        self.leaving.clear();
        self.pages.release_spare();
    }

    /// Whether there is a cache of sequences that had joined.
    pub(crate) fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Nothing is being decoded: frees memory. Pages that may be of use to later sequences stay.
    pub(crate) fn clear(&mut self) {
        self.cache = None;
        self.leaving.clear();
        self.pages.release_spare();
    }

    /// Forgets everything, and frees its memory.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.pages.emptied());
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
        pass: &Pass,
        slot: &mut CacheSlot,
    ) -> Result<PassResult, ModelError> {
        if let Pass::Tokens(shares) = pass {
            return self.run_tokens(attempt, sequences, shares, slot);
        }
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
        let output = match pass {
            Pass::Join(count) => {
                // If there is room for no more, none join.
                let end = (joined + count).min(room).max(joined);
                over.make_known(stays)
                    .and_then(|()| over.join(&sequences[joined..end], Sequence::tokens))
                    .map(StepOutput::Logits)
            }
            _ => over.step_behind(stays),
        };
        let output = match output {
            Err(error) if error.is_device() => return Err(error),
            output => output,
        };
        // A refusal came before anything was computed.
        slot.cache = Some((location, decoding));
        Ok(PassResult { room, output, answered: Vec::new() })
    }

    /// Runs tokens of sequences that have pages: those of `shares`, and what comes before them if it is not known
    /// any more. Sequences for which there is no room then are left out.
    fn run_tokens(
        &self,
        attempt: &Attempt<'_>,
        sequences: &[Sequence],
        shares: &[Share],
        slot: &mut CacheSlot,
    ) -> Result<PassResult, ModelError> {
        let room = attempt.samples_at_once();
        let location = attempt.location();
        // Taken out: what a pass that is cut short leaves behind is dropped with it.
        let empty = slot.pages.emptied();
        let mut pages = std::mem::replace(&mut slot.pages, empty);
        if attempt.number() > 1 || slot.pages_at != Some(location) {
            // After a fault, memory may be short, and nothing that was computed is trusted.
            pages = pages.emptied();
            slot.pages_at = Some(location);
        }
        let mut running: Vec<Running<'_>> = Vec::with_capacity(shares.len());
        let mut missing = 0;
        for share in shares.iter().filter(|share| share.at < room) {
            let sequence = &sequences[share.at];
            let filled = pages.filled(sequence.key).unwrap_or_else(|| {
                pages.begin(sequence.key, sequence.namespace(), sequence.tokens())
            });
            if pages.reserve(sequence.key, share.upto) || running.is_empty() {
                // Where more has to be run again, what was proposed is left out.
                let end = share.upto + share.proposed.len();
                let checks = !share.proposed.is_empty()
                    && filled + 1 == share.upto
                    && missing + end - filled <= self.capacity.pass_tokens
                    && pages.reserve(sequence.key, end);
                let proposed = if checks { share.proposed.clone() } else { Vec::new() };
                let mut tokens = Cow::Borrowed(&sequence.tokens()[..share.upto]);
                if checks {
                    tokens.to_mut().extend(&proposed);
                }
                missing += tokens.len() - filled;
                running.push(Running { share, sequence, tokens, proposed });
            } else {
                pages.end(sequence.key);
            }
        }
        let most = self.capacity.pass_tokens;
        let mut passes = attempt.model().passes_for(missing.div_ceil(most).max(1));
        let mut rows: Vec<(Answered, Vec<f32>)> = Vec::with_capacity(running.len());
        let mut is_first = true;
        while !running.is_empty() {
            if !std::mem::take(&mut is_first) {
                attempt.between_parts();
            }
            let mut left = most;
            let mut runs = Vec::with_capacity(running.len());
            for one in &running {
                let filled = pages.filled(one.sequence.key).unwrap_or(0);
                let upto = one.tokens.len().min(filled + left);
                left -= upto - filled;
                let is_whole = one.share.is_whole && upto == one.tokens.len();
                runs.push(TokenRun {
                    key: one.sequence.key,
                    tokens: &one.tokens[filled..upto],
                    logits: match is_whole {
                        true if one.proposed.is_empty() => Logits::Last,
                        true => Logits::All,
                        false => Logits::None,
                    },
                    adapter: one.sequence.adapter(),
                });
            }
            runs.retain(|run| !run.tokens.is_empty());
            let _permit = self.budget.acquire(most - left);
            let logits = match pages.run(&mut passes, &runs) {
                Err(error) if !error.is_device() => {
                    return Ok(PassResult { room, output: Err(error), answered: Vec::new() });
                }
                logits => logits?,
            };
            let mut of_runs = logits.numbers.chunks_exact(logits.cols.max(1));
            running.retain_mut(|one| {
                let is_done = pages.filled(one.sequence.key) == Some(one.tokens.len());
                if is_done && one.share.is_whole {
                    let proposed = std::mem::take(&mut one.proposed);
                    let answered = Answered { at: one.share.at, proposed };
                    let own = of_runs.by_ref().take(answered.rows()).flatten().copied().collect();
                    rows.push((answered, own));
                }
                !is_done
            });
        }
        slot.pages = pages;
        let cols = rows.first().map_or(0, |(one, own)| own.len() / one.rows());
        let (answered, numbers): (Vec<_>, Vec<Vec<f32>>) = rows.into_iter().unzip();
        let logits = Rows { cols, numbers: numbers.concat() };
        Ok(PassResult { room, output: Ok(StepOutput::Logits(logits)), answered })
    }
}

/// A sequence in a pass over pages.
struct Running<'a> {
    share: &'a Share,
    sequence: &'a Sequence,
    /// All its tokens that are in pages after the pass.
    tokens: Cow<'a, [u32]>,
    /// The last of them, if they were only proposed.
    proposed: Vec<u32>,
}

/// A model and its cache for one pass.
struct PassOver<'a> {
    runner: &'a PassRunner<'a>,
    attempt: &'a Attempt<'a>,
    decoding: &'a mut Decoding,
}

impl PassOver<'_> {
    /// The logits behind the last token of `sequences`, or their most likely tokens where these are all that is wanted. They are all that
    /// the cache holds, unless it has to be made anew.
    fn step_behind(&mut self, sequences: &[Sequence]) -> Result<StepOutput, ModelError> {
        if self.decoding.len() != sequences.len() {
            return self.join(sequences, Sequence::tokens).map(StepOutput::Logits);
        }
        let last: Vec<u32> = sequences.iter().map(Sequence::last).collect();
        let rows = self.runner.capacity.least_pass(self.attempt, last.len(), 1).rows;
        let mut passes = self.attempt.model().passes_for(1);
        passes.set_adapters(sequences.iter().map(Sequence::adapter).collect());
        let greedy = sequences.iter().all(Sequence::takes_most_likely);
        self.decoding.step_choosing(&mut passes, &last, rows, greedy)
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
