//! Which tokens of which sequences the next pass runs, where keys and values are in pages.
//!
//! Each sequence has some of its tokens in pages, the others are to be run. One that lacks only its last token is
//! being decoded and gets a token with every pass. The tokens of prompts are run in parts beside that, as many as those
//! who are decoded can wait for: half of a part goes to the prompt that came first, the rest to the shortest, so that
//! none waits for ever and a short one does not wait for a long one.
//!
//! A sequence starts when there are pages for all tokens that it has. When none is left, pages of earlier sequences
//! that nobody uses go first; then the youngest sequence gives up its own (it is *preempted*) and is run again
//! from its tokens when there is room. Its client sees a pause.

use surefoot_models::generate::pages::PagedCache;

use super::live::LiveSequences;
use super::sequence::Sequence;

/// The tokens of a sequence that a pass runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The place of the sequence among those that are live.
    pub(crate) at: usize,
    /// How many of its tokens are in pages after the pass.
    pub(crate) upto: usize,
    /// Whether these are all that it has, so that the next token can be chosen.
    pub(crate) is_whole: bool,
    /// Whether it is part of a prompt, and not the token that was chosen last.
    pub(crate) is_prompt: bool,
    /// What is proposed to come behind, and is run too. Only where the last token alone is to be run.
    pub(crate) proposed: Vec<u32>,
}

impl Share {
    /// The last token of a sequence of so many tokens.
    fn of_token(at: usize, upto: usize) -> Self {
        Self { at, upto, is_whole: true, is_prompt: false, proposed: Vec::new() }
    }
}

/// What was decided.
#[derive(Debug, Default)]
pub(crate) struct Scheduled {
    /// What the pass runs.
    pub(crate) shares: Vec<Share>,
    /// Sequences that gave up their pages.
    pub(crate) preempted: usize,
    /// For each sequence that started: how many of its tokens were known.
    pub(crate) started: Vec<usize>,
}

impl LiveSequences {
    /// Chooses what the next pass runs, `most` tokens at most.
    pub(crate) fn schedule(&mut self, cache: &mut PagedCache, most: usize) -> Scheduled {
        self.sequences.sort_by_key(|sequence| sequence.accepted);
        let mut scheduled = Scheduled::default();
        loop {
            self.make_room_for_a_token(cache, &mut scheduled);
            self.share_out(cache, most, &mut scheduled);
            if !scheduled.shares.is_empty() || !self.preempt_youngest(cache, &mut scheduled) {
                return scheduled;
            }
        }
    }

    fn is_decoding(&self, at: usize, cache: &PagedCache) -> bool {
        let sequence = &self.sequences[at];
        cache.filled(sequence.key) == Some(sequence.tokens().len() - 1)
    }

    /// Reserves a page's place for one more token of each that is being decoded, the oldest first.
    fn make_room_for_a_token(&self, cache: &mut PagedCache, scheduled: &mut Scheduled) {
        for at in 0..self.sequences.len() {
            let sequence = &self.sequences[at];
            while self.is_decoding(at, cache)
                && !cache.reserve(sequence.key, sequence.tokens().len())
                && self.preempt_youngest(cache, scheduled)
            {}
        }
    }

    /// Takes the pages of the youngest sequence that has some, if it is not the only one.
    fn preempt_youngest(&self, cache: &mut PagedCache, scheduled: &mut Scheduled) -> bool {
        let mut holders =
            self.sequences.iter().filter(|sequence| cache.filled(sequence.key).is_some());
        let Some((youngest, _)) = holders.next_back().zip(holders.next()) else { return false };
        cache.end(youngest.key);
        scheduled.preempted += 1;
        true
    }

    /// Makes room for all tokens of a sequence that is not among these and runs alone next: the youngest of these give up
    /// their pages. Gives how many did.
    pub(crate) fn make_room_for(&self, sequence: &Sequence, cache: &mut PagedCache) -> usize {
        let mut preempted = 0;
        for holder in self.sequences.iter().rev() {
            let (_, pages) = cache.needs(sequence.namespace(), sequence.tokens());
            if pages <= cache.free_pages() {
                break;
            }
            preempted += usize::from(cache.filled(holder.key).is_some());
            cache.end(holder.key);
        }
        preempted
    }

    /// Shares a pass out.
    fn share_out(&self, cache: &mut PagedCache, most: usize, scheduled: &mut Scheduled) {
        let all = 0..self.sequences.len();
        let (decoding, prompts): (Vec<usize>, Vec<usize>) =
            all.partition(|at| self.is_decoding(*at, cache));
        for &at in &decoding {
            let upto = self.sequences[at].tokens().len();
            scheduled.shares.push(Share::of_token(at, upto));
        }
        let candidates = self.candidates(&prompts, decoding.len(), cache);
        let left = most.saturating_sub(decoding.len()).max(1);
        let tokens = match candidates.is_empty() {
            true => 0,
            false => self.times.prompt_tokens(decoding.len(), candidates.len(), left),
        };
        for (at, count) in parts(&candidates, tokens) {
            let key = self.sequences[at].key;
            let tokens = self.sequences[at].tokens();
            let filled = cache.filled(key).unwrap_or_else(|| {
                let namespace = self.sequences[at].namespace();
                let known = cache.begin(key, namespace, tokens);
                self.sequences[at].begins_with(known);
                scheduled.started.push(known);
                known
            });
            let upto = (filled + count).min(tokens.len());
            if cache.reserve(key, upto) {
                let is_whole = upto == tokens.len();
                let proposed = Vec::new();
                scheduled.shares.push(Share { at, upto, is_whole, is_prompt: true, proposed });
            }
        }
    }

    /// The prompts that may be run, the oldest first, each with how many of its tokens are left: those that have
    /// started, and those that may start. None overtakes an earlier one for which there is no room.
    fn candidates(
        &self,
        prompts: &[usize],
        decoding: usize,
        cache: &PagedCache,
    ) -> Vec<(usize, usize)> {
        let has_started = |at: usize| cache.filled(self.sequences[at].key);
        let promised: usize = prompts
            .iter()
            .filter(|at| has_started(**at).is_some())
            .map(|at| {
                let sequence = &self.sequences[*at];
                cache.missing(sequence.key, sequence.tokens().len())
            })
            .sum();
        // One page more for each that is decoded: it will ask for it soon.
        let mut free = cache.free_pages().saturating_sub(promised + decoding);
        let mut runs = decoding;
        let mut is_full = false;
        let mut candidates = Vec::new();
        for &at in prompts {
            let sequence = &self.sequences[at];
            let tokens = sequence.tokens();
            let known = match has_started(at) {
                Some(filled) => filled,
                None if is_full => continue,
                None => {
                    let (known, pages) = cache.needs(sequence.namespace(), tokens);
                    if pages + 1 > free && runs > 0 {
                        is_full = true;
                        continue;
                    }
                    free = free.saturating_sub(pages + 1);
                    known
                }
            };
            runs += 1;
            candidates.push((at, tokens.len() - known));
        }
        candidates
    }
}

/// Shares `tokens` out among prompts with so many tokens left, the oldest of which is the first: half to it, and the
/// rest to the shortest ones.
fn parts(prompts: &[(usize, usize)], tokens: usize) -> Vec<(usize, usize)> {
    let Some((&(oldest, left), others)) = prompts.split_first() else { return Vec::new() };
    let first = left.min(if others.is_empty() { tokens } else { tokens.div_ceil(2) });
    let mut rest = tokens - first;
    let mut others = others.to_vec();
    others.sort_by_key(|(_, left)| *left);
    let mut parts = vec![(oldest, first)];
    for (at, left) in others {
        let count = left.min(rest);
        rest -= count;
        parts.push((at, count));
    }
    parts[0].1 = left.min(first + rest);
    parts.retain(|(_, count)| *count > 0);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::live::tests::waiting;
    use surefoot_models::generate::pages::{PageLayout, PageLimits};

    fn cache(pages: usize) -> PagedCache {
        let layout = PageLayout { layers: 1, kv_heads: 1, head_dim: 1 };
        PagedCache::new(layout, PageLimits { pages, idle: pages })
    }

    #[test]
    fn half_of_a_part_goes_to_the_oldest_and_the_rest_to_the_shortest() {
        assert_eq!(parts(&[(0, 100)], 64), [(0, 64)]);
        assert_eq!(parts(&[(0, 100), (1, 50), (2, 10)], 64), [(0, 32), (2, 10), (1, 22)]);
        assert_eq!(parts(&[(0, 100), (1, 5)], 64), [(0, 59), (1, 5)]);
        assert_eq!(parts(&[(0, 3), (1, 500)], 64), [(0, 3), (1, 61)]);
        assert_eq!(parts(&[(0, 3), (1, 500)], 1), [(0, 1)]);
        assert!(parts(&[], 64).is_empty());
    }

    #[test]
    fn sequences_start_as_long_as_there_are_pages_and_none_overtakes() {
        // Two pages each, and one to spare for each.
        let (mut live, _heard) = waiting(&[20, 20, 90, 3]);
        let mut cache = cache(10);
        let scheduled = live.schedule(&mut cache, 8192);
        let started: Vec<usize> = scheduled.shares.iter().map(|share| share.at).collect();
        assert_eq!(started, [0, 1], "the third has no room, and the fourth waits for it");
        assert!(scheduled.shares.iter().all(|share| share.is_whole && share.upto == 20));
        assert_eq!((scheduled.preempted, scheduled.started), (0, vec![0, 0]));
        // One alone always starts.
        let (mut live, _heard) = waiting(&[160]);
        assert_eq!(live.schedule(&mut cache, 8192).shares.len(), 1);
    }

    #[test]
    fn a_pass_has_no_more_tokens_than_it_may() {
        let (mut live, _heard) = waiting(&[100, 100]);
        let scheduled = live.schedule(&mut cache(64), 10);
        let upto: Vec<usize> = scheduled.shares.iter().map(|share| share.upto).collect();
        assert_eq!(upto, [5, 5]);
        assert!(scheduled.shares.iter().all(|share| !share.is_whole));
    }

    #[test]
    fn when_no_page_is_left_the_youngest_gives_up_its_own() {
        let (mut live, _heard) = waiting(&[16, 16, 16]);
        let mut cache = cache(4);
        // As if their prompts had run: each has a page, and lacks one for its next token.
        for (sequence, tokens) in live.sequences.iter_mut().zip([1, 2, 3]) {
            let prompt = vec![tokens; 16];
            cache.begin(sequence.key, 0, &prompt);
            assert!(cache.reserve(sequence.key, 16));
        }
        assert_eq!(cache.counts().live, 3);
        let scheduled = live.schedule(&mut cache, 8192);
        // Nothing was run in them: all three are prompts, which have their pages.
        assert_eq!((scheduled.shares.len(), scheduled.preempted), (3, 0));
        for sequence in &live.sequences[1..] {
            assert!(cache.filled(sequence.key).is_some());
        }
        let mut scheduled = Scheduled::default();
        assert!(live.preempt_youngest(&mut cache, &mut scheduled));
        assert_eq!(cache.filled(live.sequences[2].key), None, "it came last");
        assert!(live.preempt_youngest(&mut cache, &mut scheduled));
        assert!(!live.preempt_youngest(&mut cache, &mut scheduled), "the oldest keeps its pages");
        assert_eq!((scheduled.preempted, cache.counts().live), (2, 1));
    }
}
