//! The sequences that the decoder works on, and who of them runs next.
//!
//! On the CPU keys and values are in pages, which sequences have by their keys ([`schedule`](super::schedule));
//! what is said here of joining is for other devices. There the first [`LiveSequences::joined`] sequences have
//! their keys and values in one cache, in the same order. Those behind them wait to join, first come, first served.
//! Parked ones had to leave because memory ran out; they come back before new ones are accepted. No sequence
//! overtakes an earlier one that does not fit, so none waits for ever.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use surefoot_models::generate::session::Limits;
use surefoot_models::generate::speculate::Speculator;

use super::bucket;
use super::decode_pass::CacheSlot;
use super::pass_times::PassTimes;
use super::sequence::Sequence;

/// How long those that are decoded may have to wait for prompts that join.
pub(crate) const LONGEST_JOINING: Duration = Duration::from_millis(100);

/// For how many steps a sequence waits for others to join with it while many are decoded, and how
/// long at most.
const GATHERING_STEPS: u32 = 8;
const LONGEST_GATHERING: Duration = Duration::from_millis(250);

/// What the decoding thread works on.
#[derive(Default)]
pub(crate) struct LiveSequences {
    pub(crate) sequences: Vec<Sequence>,
    /// How many of the first ones have joined.
    pub(crate) joined: usize,
    pub(crate) parked: VecDeque<Sequence>,
    /// Sequences whose prompts are to be rated before they may join.
    pub(crate) unrated: VecDeque<Sequence>,
    /// How many ended with the last step, and how long it took.
    pub(crate) ended_last: usize,
    pub(crate) step_took: Duration,
    /// Tokens of prompts a second, in the fastest of the last passes over some.
    prompt_rate: f64,
    /// How long passes over pages take.
    pub(crate) times: PassTimes,
    /// When it was last told how full the cache is.
    pub(crate) levels_told: Option<Instant>,
    /// What proposes tokens.
    pub(crate) speculator: Speculator,
}

impl LiveSequences {
    /// No sequences, and what proposes tokens.
    pub(crate) fn speculating(speculator: Speculator) -> Self {
        Self { speculator, ..Self::default() }
    }

    /// Drops all sequences, and all but what proposes tokens, which forgets them.
    pub(crate) fn restart(&mut self) {
        let mut speculator = std::mem::take(&mut self.speculator);
        speculator.end_all();
        *self = Self::speculating(speculator);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty() && self.parked.is_empty() && self.unrated.is_empty()
    }

    /// Takes sequences in.
    pub(crate) fn admit(&mut self, sequences: impl IntoIterator<Item = Sequence>) {
        for sequence in sequences {
            sequence.start();
            match sequence.rates_prompt() {
                true => self.unrated.push_back(sequence),
                false => self.sequences.push(sequence),
            }
        }
    }

    /// How many are decoded, or will be when their prompts are rated.
    pub(crate) fn running(&self) -> usize {
        self.sequences.len() + self.unrated.len()
    }

    /// The tokens of the longest sequence that has joined.
    fn longest(&self) -> usize {
        self.sequences[..self.joined].iter().map(|one| one.tokens().len()).max().unwrap_or(0)
    }

    /// Takes a sequence out, of the cache too.
    pub(crate) fn take_out(&mut self, at: usize, slot: &mut CacheSlot) -> Sequence {
        slot.pages.end(self.sequences[at].key);
        self.speculator.end(self.sequences[at].key);
        if at >= self.joined {
            return self.sequences.remove(at);
        }
        slot.leave(at);
        self.joined -= 1;
        self.sequences.swap(at, self.joined);
        self.sequences.remove(self.joined)
    }

    /// Parks what is beyond `room` sequences, the last ones first. Those that had joined are out
    /// of the cache already.
    pub(crate) fn park_beyond(&mut self, room: usize, slot: &mut CacheSlot) {
        let parked = self.sequences.split_off(room.min(self.sequences.len()));
        for sequence in &parked {
            slot.pages.end(sequence.key);
            self.speculator.end(sequence.key);
        }
        self.joined = self.joined.min(self.sequences.len());
        self.park(parked);
    }

    /// Parks the latest sequences until the cache has room for a step of the others.
    pub(crate) fn park_for_a_step(&mut self, limits: &Limits, slot: &mut CacheSlot) {
        while self.joined > 1 && !limits.fit(self.joined, self.longest()) {
            let latest = (0..self.joined).max_by_key(|at| self.sequences[*at].accepted);
            let parked = self.take_out(latest.unwrap_or(0), slot);
            self.park(vec![parked]);
        }
    }

    fn park(&mut self, sequences: Vec<Sequence>) {
        self.parked.extend(sequences);
        self.parked.make_contiguous().sort_by_key(|sequence| sequence.accepted);
    }

    /// Puts those that join next behind those that have joined, and gives how many they are; none
    /// if nobody should join now.
    pub(crate) fn next_to_join(&mut self, limits: &Limits) -> usize {
        if !self.should_join() {
            return 0;
        }
        self.sequences[self.joined..].sort_by_key(|sequence| sequence.accepted);
        let (joined, longest) = (self.joined, self.longest());
        let fit = |count: usize, tokens: usize| {
            joined + count <= 1 || limits.fit(joined + count, longest.max(tokens))
        };
        let first = self.sequences[joined].tokens().len();
        if !fit(1, first) {
            return 0;
        }
        // Those of the first one's length, as many as fit in one pass.
        let width = bucket::width(first);
        let waiting = self.sequences.split_off(joined);
        let (mut alike, mut others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|one| bucket::width(one.tokens().len()) == width);
        let most = self.how_many_join(alike.len(), width, limits.pass_tokens);
        let mut longest_new = 0;
        let fitting = alike.iter().enumerate().take(most).take_while(|(number, one)| {
            longest_new = longest_new.max(one.tokens().len());
            fit(number + 1, longest_new)
        });
        let count = fitting.count();
        others.extend(alike.split_off(count));
        others.sort_by_key(|sequence| sequence.accepted);
        self.sequences.append(&mut alike);
        self.sequences.append(&mut others);
        count
    }

    /// Whether those that wait join now. A pass over one prompt, and a cache that is made anew for
    /// it, cost almost as much as for a few, so while many are decoded a few that wait are
    /// gathered, for a moment.
    fn should_join(&self) -> bool {
        let waiting = &self.sequences[self.joined..];
        let Some(first) = waiting.iter().map(|sequence| sequence.accepted).min() else {
            return false;
        };
        let longest = (GATHERING_STEPS * self.step_took).min(LONGEST_GATHERING);
        waiting.len() * 4 >= self.joined || first.elapsed() >= longest
    }

    /// How many of `count` sequences of `width` tokens join in one pass: all that fit into `most`
    /// tokens, since those that join together end together; and if others are being decoded, no
    /// more than they can wait for.
    fn how_many_join(&self, count: usize, width: usize, most: usize) -> usize {
        let soon = self.prompt_rate * LONGEST_JOINING.as_secs_f64();
        let most = if self.joined > 0 && soon >= 1.0 { most.min(soon as usize) } else { most };
        (most / width).clamp(1, count.max(1))
    }

    /// Takes note of a pass over prompts.
    pub(crate) fn ran_prompts(&mut self, tokens: usize, time: Duration) {
        // A pass that waits for a kernel to be made says nothing of the next.
        let rate = tokens as f64 / time.as_secs_f64().max(1e-9);
        self.prompt_rate = rate.max(self.prompt_rate * 0.9);
    }

    /// Takes out who was abandoned or is out of time.
    pub(crate) fn take_gone(&mut self, now: Instant, slot: &mut CacheSlot) -> Vec<Sequence> {
        let goes = |sequence: &Sequence| sequence.is_abandoned() || sequence.is_expired(now);
        let mut gone = Vec::new();
        let mut at = 0;
        while at < self.sequences.len() {
            if goes(&self.sequences[at]) {
                gone.push(self.take_out(at, slot));
            } else {
                at += 1;
            }
        }
        for waiting in [&mut self.parked, &mut self.unrated] {
            if waiting.iter().any(goes) {
                let (leave, stay): (VecDeque<_>, _) = waiting.drain(..).partition(goes);
                *waiting = stay;
                gone.extend(leave);
            }
        }
        gone
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::generation::{Generation, GenerationStream};
    use crate::engine::logit_rules::LogitRules;
    use surefoot_models::generate::pages::{PageLayout, PageLimits, PagedCache};
    use surefoot_models::generate::sample::Sampling;
    use surefoot_models::generate::speculate::{Candidate, SpeculationMode};

    pub(in crate::engine) fn waiting(lengths: &[usize]) -> (LiveSequences, Vec<GenerationStream>) {
        let mut live = LiveSequences::default();
        let mut streams = Vec::new();
        for &length in lengths {
            let generation = Generation {
                prompt: vec![1; length],
                adapter: None,
                max_tokens: 100,
                sampling: Sampling::GREEDY,
                rules: LogitRules::default(),
                constraint: None,
                logprobs: None,
                rates_prompt: false,
            };
            let (sequence, stream) = Sequence::new(generation, None, Arc::default());
            live.sequences.push(sequence);
            streams.push(stream);
            // So that no two are accepted at the same time.
            std::thread::sleep(Duration::from_millis(1));
        }
        (live, streams)
    }

    fn lengths<'a>(sequences: impl IntoIterator<Item = &'a Sequence>) -> Vec<usize> {
        sequences.into_iter().map(|sequence| sequence.tokens().len()).collect()
    }

    fn slot() -> CacheSlot {
        let layout = PageLayout { layers: 1, kv_heads: 1, head_dim: 1 };
        CacheSlot::new(PagedCache::new(layout, PageLimits { pages: 64, idle: 64 }))
    }

    fn limits(cache_tokens: usize) -> Limits {
        Limits { rows: 8, positions: 100, cache_tokens, pass_tokens: 8192 }
    }

    #[test]
    fn prompts_join_together_unless_those_that_are_decoded_would_wait_long() {
        let mut live = LiveSequences::default();
        assert_eq!(live.how_many_join(64, 16, 8192), 64);
        assert_eq!(live.how_many_join(64, 512, 8192), 16);
        assert_eq!(live.how_many_join(3, 10_000, 8192), 1);
        live.ran_prompts(1000, Duration::from_secs(1));
        assert_eq!(live.how_many_join(64, 16, 8192), 64, "nobody is decoded who could wait");
        assert!(live.prompt_rate > 999.0);
        live.ran_prompts(1000, Duration::from_secs(100));
        assert!(live.prompt_rate > 899.0, "one slow pass is not believed at once");
    }

    #[test]
    fn as_many_join_as_the_cache_holds_and_none_overtakes_the_first() {
        // Two of 16 tokens and their slack.
        let (mut live, _heard) = waiting(&[16, 16, 16]);
        assert_eq!(live.next_to_join(&limits(64)), 2);
        live.joined = 2;
        assert_eq!(live.next_to_join(&limits(64)), 0, "it is full");
        // A long one first: the short one behind it would fit, but waits.
        let (mut live, _heard) = waiting(&[16, 90, 3]);
        live.joined = 1;
        assert_eq!(live.next_to_join(&limits(200)), 0);
        assert_eq!(lengths(&live.sequences), [16, 90, 3]);
        // One alone always joins.
        let (mut live, _heard) = waiting(&[100]);
        assert_eq!(live.next_to_join(&limits(10)), 1);
    }

    #[test]
    fn when_the_cache_is_full_the_latest_are_parked_and_come_back_in_their_order() {
        let (mut live, _heard) = waiting(&[30, 20, 10]);
        live.joined = 3;
        let mut slot = slot();
        live.park_for_a_step(&limits(3 * 46), &mut slot);
        assert_eq!(live.joined, 3, "it just fits");
        live.park_for_a_step(&limits(3 * 46 - 1), &mut slot);
        assert_eq!(lengths(&live.sequences), [30, 20]);
        live.park_for_a_step(&limits(1), &mut slot);
        assert_eq!((live.joined, lengths(&live.parked)), (1, vec![20, 10]));
    }

    #[test]
    fn less_room_parks_the_last_ones() {
        let (mut live, _heard) = waiting(&[1, 2, 3, 4]);
        live.joined = 3;
        live.park_beyond(2, &mut slot());
        assert_eq!((live.joined, lengths(&live.sequences)), (2, vec![1, 2]));
        assert_eq!(lengths(&live.parked), [3, 4]);
    }

    /// Lets tokens be proposed for each sequence.
    fn propose(live: &mut LiveSequences) {
        let candidate = |one: &Sequence| (one.key, one.tokens().to_vec());
        let known: Vec<(u64, Vec<u32>)> = live.sequences.iter().map(candidate).collect();
        let candidates: Vec<Candidate<'_>> =
            known.iter().map(|(key, tokens)| Candidate { key: *key, tokens, most: 4 }).collect();
        live.speculator.propose(&candidates);
    }

    #[test]
    fn what_proposes_tokens_forgets_parked_sequences_and_all_after_a_panic() {
        let (mut live, _heard) = waiting(&[10, 20, 30]);
        live.speculator = Speculator::new(SpeculationMode::Auto, None);
        propose(&mut live);
        assert_eq!(live.speculator.sequences(), 3);
        live.park_beyond(2, &mut slot());
        assert_eq!(live.speculator.sequences(), 2);
        live.restart();
        assert!(live.is_empty() && live.speculator.is_on());
        assert_eq!(live.speculator.sequences(), 0);
    }
}
