//! How many tokens are worth proposing, by what was measured: how long passes take by the number of their rows, how
//! long a draft takes, and which share of the proposals was accepted.
//!
//! A pass over more rows takes longer and gives more tokens if the proposals are right. With a share `p` of proposals
//! accepted, `k` of them give `1 + p + p² + … + pᵏ` tokens in a pass. The number of proposals is the one with the most tokens
//! a second. If that is none, none are made, but now and then a few, to find out whether they would be accepted by now.

use std::time::Duration;

use surefoot_ops::ALIKE_COLUMNS;

/// The weight of the latest pass in the average of its size.
const LATEST: f64 = 0.2;
/// Proposals have to make a pass so many times as good as one without: less may be noise.
const WORTH: f64 = 1.03;
/// After so many passes with proposals one runs without, so that it is known what that takes.
const REMEASURE: u32 = 64;
/// What earlier proposals weigh with each new one.
const FORGET: f64 = 0.85;
/// For so many tokens no proposals are made after those that were not worth it, at first and at most.
const FIRST_REST: u32 = 16;
const LONGEST_REST: u32 = 1024;
/// So many are proposed to find out whether it is worth it by now.
const PROBE: usize = 2;

/// Measured times of passes and drafts.
#[derive(Debug, Default)]
pub(crate) struct PassPace {
    /// Seconds of a pass, by the number of its rows.
    passes: [Option<f64>; ALIKE_COLUMNS + 1],
    /// Seconds of a token of the draft model.
    draft: f64,
    since_plain: u32,
}

/// The share of a sequence's proposals that was accepted, lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptedShare {
    accepted: f64,
    tried: f64,
    /// Tokens that are still to come before it is tried again, and how many the next time.
    resting: u32,
    rest: u32,
}

impl Default for AcceptedShare {
    fn default() -> Self {
        Self { accepted: 1.0, tried: 2.0, resting: 0, rest: FIRST_REST }
    }
}

impl AcceptedShare {
    /// One of a new sequence, where others went so.
    pub(crate) fn like(other: &Self) -> Self {
        Self { accepted: 2.0 * other.share(), tried: 2.0, resting: 0, rest: FIRST_REST }
    }

    pub(crate) fn share(&self) -> f64 {
        (self.accepted / self.tried.max(1e-9)).clamp(0.01, 0.99)
    }

    /// Of so many proposals so many were accepted. Those behind the first one that was not were not tried.
    pub(crate) fn verified(&mut self, proposed: usize, accepted: usize) {
        if proposed == 0 {
            return;
        }
        let tried = accepted + usize::from(accepted < proposed);
        self.accepted = self.accepted * FORGET + accepted as f64;
        self.tried = self.tried * FORGET + tried as f64;
    }
}

/// A sequence, as far as its proposals are concerned.
pub(crate) struct Chance<'a> {
    pub(crate) share: &'a mut AcceptedShare,
    /// So many could be proposed.
    pub(crate) available: usize,
}

impl PassPace {
    /// A pass over so many rows took so long.
    pub(crate) fn passed(&mut self, rows: usize, time: Duration) {
        if let Some(average) = self.passes.get_mut(rows) {
            let seconds = time.as_secs_f64();
            *average = Some(average.map_or(seconds, |before| before + LATEST * (seconds - before)));
        }
    }

    /// A draft of so many tokens took so long.
    pub(crate) fn drafted(&mut self, tokens: usize, time: Duration) {
        let seconds = time.as_secs_f64() / tokens.max(1) as f64;
        self.draft =
            if self.draft == 0.0 { seconds } else { self.draft + LATEST * (seconds - self.draft) };
    }

    /// The seconds of a pass; of one that was never measured, those of the largest smaller one: it is tried.
    fn seconds(&self, rows: usize) -> Option<f64> {
        self.passes.get(..=rows)?.iter().rev().copied().flatten().next()
    }

    /// How many tokens each sequence gets proposed in a pass that runs all of them, `most` rows at most.
    pub(crate) fn share_out(&mut self, chances: &mut [Chance<'_>], most: usize) -> Vec<usize> {
        let sequences = chances.len();
        let mut counts = vec![0; sequences];
        let plain = self.passes.get(sequences).copied().flatten();
        let Some(plain) = plain.filter(|_| self.since_plain < REMEASURE) else {
            self.since_plain = 0;
            return counts;
        };
        let mut best = (counts.clone(), WORTH * sequences as f64 / plain);
        let mut tokens = sequences as f64;
        for rows in sequences + 1..=most {
            // The next proposal goes to whom it gives the most.
            let gain = |at: usize| {
                let Chance { share, available } = &chances[at];
                let is_open = counts[at] < *available && share.resting == 0;
                is_open.then(|| share.share().powi(counts[at] as i32 + 1))
            };
            let next = (0..sequences).filter_map(|at| Some((at, gain(at)?)));
            let Some((at, gain)) = next.max_by(|one, other| one.1.total_cmp(&other.1)) else {
                break;
            };
            counts[at] += 1;
            tokens += gain;
            let drafts = counts.iter().max().map_or(0.0, |count| *count as f64 * self.draft);
            let Some(seconds) = self.seconds(rows) else { break };
            let rate = tokens / (seconds + drafts);
            if rate > best.1 {
                best = (counts.clone(), rate);
            }
        }
        let mut counts = best.0;
        self.rest_or_probe(chances, &mut counts, most);
        self.since_plain =
            if counts.iter().any(|count| *count > 0) { self.since_plain + 1 } else { 0 };
        counts
    }

    /// Sequences that get none rest for a while; then they get a few once.
    fn rest_or_probe(&self, chances: &mut [Chance<'_>], counts: &mut [usize], most: usize) {
        let mut left = most.saturating_sub(chances.len() + counts.iter().sum::<usize>());
        for (chance, count) in chances.iter_mut().zip(counts) {
            let share = &mut *chance.share;
            if *count > 0 {
                share.rest = FIRST_REST;
            }
            if *count > 0 || chance.available == 0 {
                continue;
            }
            if share.resting > 1 {
                share.resting -= 1;
            } else if share.resting == 1 {
                share.resting = 0;
                share.rest = (2 * share.rest).min(LONGEST_REST);
                *count = PROBE.min(chance.available).min(left);
                left -= *count;
            } else {
                share.resting = share.rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many tokens a pass gives and how many proposals it has, on average over many, where a pass over so many
    /// rows takes so long and each proposal is accepted with a probability.
    fn settled(seconds: impl Fn(usize) -> f64, draft: f64, accepted: f64) -> (f64, f64) {
        let mut random = fastrand_like(9);
        let mut pace = PassPace::default();
        let mut share = AcceptedShare::default();
        let (mut tokens, mut proposals) = (0, 0);
        for _ in 0..4000 {
            let chance = Chance { share: &mut share, available: 7 };
            let count = pace.share_out(&mut [chance], ALIKE_COLUMNS)[0];
            pace.passed(1 + count, Duration::from_secs_f64(seconds(1 + count)));
            if count > 0 {
                pace.drafted(count, Duration::from_secs_f64(draft * count as f64));
            }
            let right = (0..count).take_while(|_| random() < accepted).count();
            share.verified(count, right);
            tokens += 1 + right;
            proposals += count;
        }
        (f64::from(tokens as u32) / 4000.0, f64::from(proposals as u32) / 4000.0)
    }

    /// Numbers in [0, 1).
    fn fastrand_like(mut state: u64) -> impl FnMut() -> f64 {
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    #[test]
    fn where_rows_cost_nothing_and_proposals_are_right_many_are_made() {
        let (tokens, proposals) = settled(|_| 0.01, 0.0, 0.95);
        assert!(proposals > 5.0 && tokens > 4.0, "{tokens} {proposals}");
    }

    #[test]
    fn where_each_row_costs_as_much_as_the_first_hardly_any_are_made() {
        let (tokens, proposals) = settled(|rows| 0.01 * rows as f64, 0.0, 0.5);
        assert!(proposals < 0.2, "{tokens} {proposals}");
    }

    #[test]
    fn where_proposals_are_wrong_hardly_any_are_made() {
        let (_, proposals) = settled(|rows| 0.01 + 0.001 * rows as f64, 0.0, 0.0);
        assert!(proposals < 0.05, "{proposals}");
    }

    #[test]
    fn a_draft_that_costs_too_much_is_hardly_asked() {
        let (_, proposals) = settled(|_| 0.01, 0.009, 0.6);
        assert!(proposals < 0.3, "{proposals}");
        let (_, proposals) = settled(|_| 0.01, 0.0005, 0.8);
        assert!(proposals > 2.0, "{proposals}");
    }

    #[test]
    fn proposals_that_become_right_are_found_out() {
        let mut pace = PassPace::default();
        let mut share = AcceptedShare::default();
        let mut made = [0; 2];
        for turn in 0..8000 {
            let late = turn >= 4000;
            let chance = Chance { share: &mut share, available: 7 };
            let count = pace.share_out(&mut [chance], ALIKE_COLUMNS)[0];
            pace.passed(1 + count, Duration::from_secs_f64(0.01 + 0.001 * count as f64));
            share.verified(count, if late { count } else { 0 });
            made[usize::from(late)] += count;
        }
        assert!(made[0] < 300 && made[1] > 10_000, "{made:?}");
    }

    #[test]
    fn proposals_go_to_the_sequence_whose_are_accepted_and_rows_are_never_too_many() {
        let mut pace = PassPace::default();
        pace.passed(2, Duration::from_millis(10));
        let (mut good, mut bad) = (AcceptedShare::default(), AcceptedShare::default());
        for _ in 0..20 {
            good.verified(4, 4);
            bad.verified(4, 0);
        }
        let chances = &mut [
            Chance { share: &mut bad, available: 7 },
            Chance { share: &mut good, available: 4 },
        ];
        let counts = pace.share_out(chances, ALIKE_COLUMNS);
        assert_eq!(counts[1], 4);
        assert!(counts[0] <= 2, "{counts:?}");
    }
}
