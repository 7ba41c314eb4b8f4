//! Speculative decoding: tokens are proposed cheaply, and the model checks several of them in one pass.
//!
//! A pass over a few tokens takes little longer than over one, since it reads the weights once either way. Proposals come
//! from the text itself ([`lookup`]) or from a smaller model ([`DraftModel`]). The rows of logits behind them are given to
//! the same code that chooses tokens without proposals, one after the other, as long as it chooses what was proposed. So each
//! token is chosen by the logits behind the tokens before it, greedily or at random, whatever was proposed: proposals
//! change when tokens come, never which.
//!
//! What makes this exact is that a row of a pass over up to [`MOST_ROWS`] tokens has the same bits as in a pass of its own: the
//! products of the CPU see to that, and so does attention to pages. A [`Speculator`] never asks for more rows. On other devices,
//! and with adapters, that does not hold; callers do not speculate there.
//!
//! A decoder asks [`Speculator::propose`] before each pass that runs no prompts, and says what came of it by
//! [`Speculator::passed`] and [`Speculator::verified`].

mod accepted_share;
mod draft;
pub mod lookup;
mod pace;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use surefoot::device::memory::Bytes;

use crate::error::ModelError;
use crate::runner::Runner;
use accepted_share::AcceptedShare;
pub use draft::DraftModel;
use pace::{Chance, PassPace};

/// The most rows of a pass that checks proposals.
pub const MOST_ROWS: usize = surefoot_ops::ALIKE_COLUMNS;

/// Whether tokens are proposed, and where from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpeculationMode {
    /// No tokens are proposed.
    #[default]
    Off,
    /// Tokens that came behind the same tokens before, whenever there are some.
    Lookup,
    /// Tokens of the draft model, always.
    Draft,
    /// Tokens that came before, or those of the draft model if there is one that is smaller than the model, whichever gives
    /// more tokens a second by what was measured; as many as pay.
    Auto,
}

/// What became of proposals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationCounts {
    /// Proposed tokens that the model chose too.
    pub accepted: u64,
    /// Those that it did not choose, or that came behind such a one.
    pub rejected: u64,
}

impl SpeculationCounts {
    /// Of so many proposals so many were accepted.
    pub fn add(&mut self, proposed: usize, accepted: usize) {
        self.accepted += accepted as u64;
        self.rejected += proposed.saturating_sub(accepted) as u64;
    }

    /// The share that was accepted; none if nothing was proposed.
    pub fn share(&self) -> Option<f64> {
        let all = self.accepted + self.rejected;
        (all > 0).then(|| self.accepted as f64 / all as f64)
    }
}

/// A sequence that the next pass decodes.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// By which it is known.
    pub key: u64,
    /// All its tokens, prompt and answer.
    pub tokens: &'a [u32],
    /// The most tokens that may be proposed behind them.
    pub most: usize,
}

/// Where the proposals of a pass come from: of each pass all from the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    #[default]
    Lookup,
    Draft,
}

/// What is known of both sources.
#[derive(Clone, Copy, Debug, Default)]
struct BySource<T> {
    lookup: T,
    draft: T,
}

impl<T> BySource<T> {
    fn of(&mut self, source: Source) -> &mut T {
        match source {
            Source::Lookup => &mut self.lookup,
            Source::Draft => &mut self.draft,
        }
    }
}

/// After so many passes with proposals of the draft model those of the text are tried, if there are some.
const LOOK_AGAIN: u32 = 32;
/// The weight of the latest pass in an average.
const LATEST: f64 = 0.2;

/// Proposes tokens, and learns from what becomes of them.
#[derive(Debug, Default)]
pub struct Speculator {
    mode: SpeculationMode,
    draft: Option<DraftModel>,
    paces: BySource<PassPace>,
    /// The accepted share of each sequence, and of all.
    shares: HashMap<u64, BySource<AcceptedShare>>,
    all: BySource<AcceptedShare>,
    counts: SpeculationCounts,
    unused: Option<UnusedDraft>,
    /// The latest proposals.
    latest: LatestPass,
    /// Seconds of a pass of the model, by the number of its rows.
    seconds: [Option<f64>; MOST_ROWS + 1],
    /// Tokens a second with proposals of the draft model, by the number of sequences.
    draft_rates: [Option<f64>; MOST_ROWS + 1],
    since_lookup: u32,
}

/// What the latest pass is known to have taken and given, so far.
#[derive(Clone, Copy, Debug, Default)]
struct LatestPass {
    source: Source,
    sequences: usize,
    proposed: usize,
    accepted: usize,
    seconds: f64,
}

/// A draft model that is left out, since it can't make anything faster: a pass of it reads as much as one of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedDraft {
    /// The draft model.
    pub draft: PathBuf,
    /// The bytes of weights that a pass of it over one token reads.
    pub draft_bytes: u64,
    /// Those that one of the model reads.
    pub model_bytes: u64,
}

impl fmt::Display for UnusedDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} proposes no tokens: a pass of it reads {}, and one of the model {}, so it cannot speed anything up. Tokens \
             are looked up in the text instead; --speculate draft uses the draft model all the same",
            self.draft.display(),
            Bytes(self.draft_bytes),
            Bytes(self.model_bytes)
        )
    }
}

impl Speculator {
    /// One that proposes as `mode` says. Without a draft model, [`SpeculationMode::Draft`] proposes nothing.
    /// [`SpeculationMode::Auto`] leaves one out that is not smaller than the model, by what a pass reads.
    pub fn new(mode: SpeculationMode, draft: Option<DraftModel>) -> Self {
        let (mut draft, mut unused, mut paces) = (draft, None, BySource::default());
        if let Some(model) = &draft {
            let (draft_bytes, model_bytes) = model.pass_bytes();
            if mode == SpeculationMode::Auto && draft_bytes >= model_bytes {
                let folder = model.folder().to_owned();
                unused = Some(UnusedDraft { draft: folder, draft_bytes, model_bytes });
                draft = None;
            } else {
                let size = draft_bytes as f64 / model_bytes.max(1) as f64;
                paces = BySource { draft: PassPace::with_draft(size), ..BySource::default() };
            }
        }
        Self { mode, draft, paces, unused, ..Self::default() }
    }

    /// The draft model that was left out, if there is one.
    pub fn unused_draft(&self) -> Option<&UnusedDraft> {
        self.unused.as_ref()
    }

    /// Whether it may propose anything.
    pub fn is_on(&self) -> bool {
        self.mode != SpeculationMode::Off
    }

    /// What became of all proposals so far.
    pub fn counts(&self) -> SpeculationCounts {
        self.counts
    }

    /// What to propose for each of the sequences that one pass decodes; mostly nothing where there is no room
    /// beside them.
    pub fn propose(&mut self, candidates: &[Candidate<'_>]) -> Vec<Vec<u32>> {
        let mut proposals = vec![Vec::new(); candidates.len()];
        let room = MOST_ROWS.saturating_sub(candidates.len());
        if !self.is_on() || room == 0 || candidates.is_empty() {
            return proposals;
        }
        self.learn();
        self.latest = LatestPass { sequences: candidates.len(), ..LatestPass::default() };
        let may_draft = match self.mode {
            SpeculationMode::Lookup => false,
            SpeculationMode::Draft => true,
            _ => self.draft.is_some(),
        };
        if self.mode != SpeculationMode::Draft {
            for (candidate, proposal) in candidates.iter().zip(&mut proposals) {
                *proposal = lookup::propose(candidate.tokens, candidate.most.min(room));
            }
            let available: Vec<usize> = proposals.iter().map(Vec::len).collect();
            if !may_draft || self.prefers_lookup(candidates, &available) {
                let counts = match self.mode {
                    SpeculationMode::Auto => self.paying(Source::Lookup, candidates, &available),
                    _ => evenly(&available, room),
                };
                for (proposal, count) in proposals.iter_mut().zip(counts) {
                    proposal.truncate(count);
                }
                if !may_draft || proposals.iter().any(|proposal| !proposal.is_empty()) {
                    self.since_lookup = 0;
                    return proposals;
                }
            }
            proposals.iter_mut().for_each(Vec::clear);
        }
        self.latest.source = Source::Draft;
        let available: Vec<usize> = candidates.iter().map(|one| one.most.min(room)).collect();
        let counts = match self.mode {
            SpeculationMode::Auto => self.paying(Source::Draft, candidates, &available),
            _ => evenly(&available, room),
        };
        let longest = counts.iter().copied().max().unwrap_or(0);
        let Some(draft) = self.draft.as_mut().filter(|_| longest > 0) else { return proposals };
        let (drafted, times) = draft.propose(candidates, &counts);
        self.paces.draft.drafted(&times);
        self.latest.seconds += times.catching_up + times.drafting;
        self.since_lookup += 1;
        drafted
    }

    /// Whether what the text proposes is to be tried before the draft model is asked: if more tokens a second are expected of
    /// it than the draft model gave, and now and then, since what repeats itself changes.
    fn prefers_lookup(&mut self, candidates: &[Candidate<'_>], available: &[usize]) -> bool {
        let proposed: usize = available.iter().sum();
        let rows = (candidates.len() + proposed).min(MOST_ROWS);
        if proposed == 0 {
            return false;
        }
        let seconds = self.seconds[..=rows].iter().rev().copied().flatten().next();
        let drafting = self.draft_rates.get(candidates.len()).copied().flatten();
        let (Some(seconds), Some(drafting)) = (seconds, drafting) else { return true };
        if self.since_lookup >= LOOK_AGAIN {
            return true;
        }
        let tokens = |(candidate, available): (&Candidate<'_>, &usize)| {
            let shares = self.shares.get(&candidate.key).unwrap_or(&self.all);
            let share = shares.lookup.share();
            (0..=*available.min(&(rows - candidates.len())))
                .map(|at| share.powi(at as i32))
                .sum::<f64>()
        };
        let tokens: f64 = candidates.iter().zip(available).map(tokens).sum();
        tokens / seconds >= drafting
    }

    /// Takes what became of the latest pass into what is known of the draft model.
    fn learn(&mut self) {
        let latest = std::mem::take(&mut self.latest);
        if latest.source == Source::Draft
            && latest.proposed > 0
            && latest.seconds > 0.0
            && let Some(rate) = self.draft_rates.get_mut(latest.sequences)
        {
            let tokens = (latest.sequences + latest.accepted) as f64;
            averaged(rate, tokens / latest.seconds);
        }
    }

    /// As many for each as pay.
    fn paying(
        &mut self,
        source: Source,
        candidates: &[Candidate<'_>],
        available: &[usize],
    ) -> Vec<usize> {
        let all = *self.all.of(source);
        let mut own: Vec<AcceptedShare> = candidates
            .iter()
            .map(|one| {
                self.shares
                    .get_mut(&one.key)
                    .map_or(AcceptedShare::like(&all), |shares| *shares.of(source))
            })
            .collect();
        let behind = |candidate: &Candidate<'_>| match source {
            Source::Lookup => 0,
            Source::Draft => self.draft.as_ref().map_or(0, |draft| draft.behind(candidate)),
        };
        let mut chances: Vec<Chance<'_>> = own
            .iter_mut()
            .zip(candidates.iter().zip(available))
            .map(|(share, (candidate, available))| Chance {
                share,
                available: *available,
                behind: behind(candidate),
                left: candidate.most + 1,
            })
            .collect();
        let counts = self.paces.of(source).share_out(&mut chances, MOST_ROWS);
        let others = BySource {
            lookup: AcceptedShare::like(&self.all.lookup),
            draft: AcceptedShare::like(&self.all.draft),
        };
        for (candidate, share) in candidates.iter().zip(own) {
            *self.shares.entry(candidate.key).or_insert(others).of(source) = share;
        }
        counts
    }

    /// A pass that ran no prompts, over so many rows, took so long.
    pub fn passed(&mut self, rows: usize, time: Duration) {
        self.paces.lookup.passed(rows, time);
        self.paces.draft.passed(rows, time);
        self.latest.seconds += time.as_secs_f64();
        if let Some(seconds) = self.seconds.get_mut(rows) {
            averaged(seconds, time.as_secs_f64());
        }
    }

    /// Of so many tokens that were proposed for a sequence so many were accepted.
    pub fn verified(&mut self, key: u64, proposed: usize, accepted: usize) {
        self.counts.add(proposed, accepted);
        let source = self.latest.source;
        self.latest.proposed += proposed;
        self.latest.accepted += accepted;
        self.all.of(source).verified(proposed, accepted);
        if let Some(shares) = self.shares.get_mut(&key) {
            shares.of(source).verified(proposed, accepted);
        }
    }

    /// A sequence came to its end. Without that, what is known of it stays, and the draft model has pages for a few sequences only.
    pub fn end(&mut self, key: u64) {
        self.shares.remove(&key);
        if let Some(draft) = &mut self.draft {
            draft.end(key);
        }
    }

    /// All sequences came to their end. What was measured stays.
    pub fn end_all(&mut self) {
        self.shares.clear();
        if let Some(draft) = &mut self.draft {
            draft.end_all();
        }
    }

    /// How many sequences something is known of.
    pub fn sequences(&self) -> usize {
        self.shares.len().max(self.draft.as_ref().map_or(0, DraftModel::sequences))
    }
}

/// What proposes tokens as `mode` says for `sequences` of up to `length` tokens of `model`, by the model in `draft` if it is
/// named, and the bytes of memory that are needed for it beside the model.
pub fn open(
    model: &Runner,
    mode: SpeculationMode,
    draft: Option<&Path>,
    sequences: usize,
    length: usize,
) -> Result<(Speculator, u64), ModelError> {
    // The logits of the rows that are checked, and a copy of them.
    let logits = 2 * 4 * (MOST_ROWS * model.blueprint().vocab) as u64;
    let Some(folder) = draft else { return Ok((Speculator::new(mode, None), logits)) };
    // More sequences leave no room for proposals in a pass.
    let draft = DraftModel::open(model, folder, sequences.clamp(1, MOST_ROWS), length)?;
    let bytes = draft.bytes()?;
    let speculator = Speculator::new(mode, Some(draft));
    let bytes = if speculator.draft.is_some() { bytes } else { 0 };
    Ok((speculator, logits + bytes))
}

/// Shares `room` out, one after the other.
fn evenly(available: &[usize], room: usize) -> Vec<usize> {
    let mut counts = vec![0; available.len()];
    let mut left = room;
    while left > 0 {
        let before = left;
        for (count, available) in counts.iter_mut().zip(available) {
            if *count < *available && left > 0 {
                *count += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    counts
}

/// Takes a measurement into an average of the latest ones.
fn averaged(average: &mut Option<f64>, seconds: f64) {
    *average = Some(average.map_or(seconds, |before| before + LATEST * (seconds - before)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use surefoot::Footing;
    use surefoot::device::{DeviceName, Selector};

    use super::*;

    /// How many tokens of a text of `length` were accepted, with a draft model that proposes other ones.
    fn accepted(text: impl Fn(usize) -> u32, length: usize) -> u64 {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
        let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
        let runner = Runner::open(Arc::new(footing), &folder).unwrap();
        let draft = DraftModel::open(&runner, &folder, 1, 128).unwrap();
        let mut speculator =
            Speculator { mode: SpeculationMode::Auto, draft: Some(draft), ..Speculator::default() };
        let mut tokens: Vec<u32> = (0..30).map(&text).collect();
        while tokens.len() < length {
            let most = length - tokens.len();
            let proposed =
                speculator.propose(&[Candidate { key: 1, tokens: &tokens, most }]).remove(0);
            // A pass takes long beside one of the draft model, whatever else runs on this machine.
            let time = Duration::from_secs(10) + Duration::from_millis(proposed.len() as u64);
            speculator.passed(1 + proposed.len(), time);
            let mut right = 0;
            while right < proposed.len() && proposed[right] == text(tokens.len() + right) {
                right += 1;
            }
            speculator.verified(1, proposed.len(), right);
            for _ in 0..=right {
                tokens.push(text(tokens.len()));
            }
        }
        speculator.counts().accepted
    }

    #[test]
    fn a_text_that_repeats_itself_is_looked_up_beside_a_draft_model_that_is_wrong() {
        // Tokens that the draft model does not choose: no more than a few of them by chance.
        let repeated = accepted(|at| ((at % 10) * 7 + 3) as u32, 120);
        assert!(repeated > 60, "{repeated} of 90");
        let other = accepted(|at| ((at * at * 13 + at) % 97) as u32, 120);
        assert!(other < 30, "{other} of 90");
    }

    #[test]
    fn a_pass_never_has_more_rows_than_give_the_same_bits() {
        let tokens = [1, 2, 1, 2, 1, 2];
        for sequences in 1..12 {
            let candidates: Vec<Candidate<'_>> = (0..sequences)
                .map(|key| Candidate { key: key as u64, tokens: &tokens, most: 20 })
                .collect();
            let mut speculator = Speculator::new(SpeculationMode::Lookup, None);
            let proposals = speculator.propose(&candidates);
            let rows = sequences + proposals.iter().map(Vec::len).sum::<usize>();
            assert_eq!(rows, sequences.max(MOST_ROWS), "{sequences}");
        }
    }

    #[test]
    fn off_and_a_draft_that_is_not_there_propose_nothing() {
        let tokens = [1, 2, 1, 2, 1, 2];
        let candidates = [Candidate { key: 1, tokens: &tokens, most: 20 }];
        for mode in [SpeculationMode::Off, SpeculationMode::Draft] {
            assert_eq!(Speculator::new(mode, None).propose(&candidates), [Vec::<u32>::new()]);
        }
    }

    #[test]
    fn room_is_shared_out_evenly() {
        assert_eq!(evenly(&[5, 1, 9], 7), [3, 1, 3]);
        assert_eq!(evenly(&[1, 0], 7), [1, 0]);
        assert_eq!(evenly(&[], 7), [0; 0]);
    }

    #[test]
    fn proposals_are_counted() {
        let mut counts = SpeculationCounts::default();
        assert_eq!(counts.share(), None);
        counts.add(4, 1);
        counts.add(4, 4);
        assert_eq!((counts.accepted, counts.rejected, counts.share()), (5, 3, Some(0.625)));
    }
}
