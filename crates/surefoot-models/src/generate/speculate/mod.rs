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
    /// Tokens of the draft model if there is one that is smaller than the model, else those that came before; as many as
    /// pay by what was measured.
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

/// Proposes tokens, and learns from what becomes of them.
#[derive(Debug, Default)]
pub struct Speculator {
    mode: SpeculationMode,
    draft: Option<DraftModel>,
    pace: PassPace,
    /// The accepted share of each sequence, and of all.
    shares: HashMap<u64, AcceptedShare>,
    all: AcceptedShare,
    counts: SpeculationCounts,
    unused: Option<UnusedDraft>,
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
        let (mut draft, mut unused, mut pace) = (draft, None, PassPace::default());
        if let Some(model) = &draft {
            let (draft_bytes, model_bytes) = model.pass_bytes();
            if mode == SpeculationMode::Auto && draft_bytes >= model_bytes {
                let folder = model.folder().to_owned();
                unused = Some(UnusedDraft { draft: folder, draft_bytes, model_bytes });
                draft = None;
            } else {
                pace = PassPace::with_draft(draft_bytes as f64 / model_bytes.max(1) as f64);
            }
        }
        Self { mode, draft, pace, unused, ..Self::default() }
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
        let drafts = match self.mode {
            SpeculationMode::Lookup => false,
            SpeculationMode::Draft => true,
            _ => self.draft.is_some(),
        };
        if !drafts {
            for (candidate, proposal) in candidates.iter().zip(&mut proposals) {
                *proposal = lookup::propose(candidate.tokens, candidate.most.min(room));
            }
        }
        let available = |at: usize| match drafts {
            true => candidates[at].most.min(room),
            false => proposals[at].len(),
        };
        let available: Vec<usize> = (0..candidates.len()).map(available).collect();
        let counts = match self.mode {
            SpeculationMode::Auto => self.paying(candidates, &available),
            _ => evenly(&available, room),
        };
        if !drafts {
            for (proposal, count) in proposals.iter_mut().zip(counts) {
                proposal.truncate(count);
            }
            return proposals;
        }
        let longest = counts.iter().copied().max().unwrap_or(0);
        let Some(draft) = self.draft.as_mut().filter(|_| longest > 0) else { return proposals };
        let (drafted, times) = draft.propose(candidates, &counts);
        self.pace.drafted(&times);
        drafted
    }

    /// As many for each as pay.
    fn paying(&mut self, candidates: &[Candidate<'_>], available: &[usize]) -> Vec<usize> {
        let all = self.all;
        let mut own: Vec<AcceptedShare> = candidates
            .iter()
            .map(|one| self.shares.get(&one.key).copied().unwrap_or(AcceptedShare::like(&all)))
            .collect();
        let mut chances: Vec<Chance<'_>> = own
            .iter_mut()
            .zip(candidates.iter().zip(available))
            .map(|(share, (candidate, available))| Chance {
                share,
                available: *available,
                behind: self.draft.as_ref().map_or(0, |draft| draft.behind(candidate)),
                left: candidate.most + 1,
            })
            .collect();
        let counts = self.pace.share_out(&mut chances, MOST_ROWS);
        for (candidate, share) in candidates.iter().zip(own) {
            self.shares.insert(candidate.key, share);
        }
        counts
    }

    /// A pass that ran no prompts, over so many rows, took so long.
    pub fn passed(&mut self, rows: usize, time: Duration) {
        self.pace.passed(rows, time);
    }

    /// Of so many tokens that were proposed for a sequence so many were accepted.
    pub fn verified(&mut self, key: u64, proposed: usize, accepted: usize) {
        self.counts.add(proposed, accepted);
        self.all.verified(proposed, accepted);
        if let Some(share) = self.shares.get_mut(&key) {
            share.verified(proposed, accepted);
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

#[cfg(test)]
mod tests {
    use super::*;

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
