//! How many tokens are worth proposing, by what was measured: how long passes take by the number of their rows, how
//! long a draft takes, and which share of the proposals was accepted.
//!
//! A pass over more rows takes longer and gives more tokens if the proposals are right. With a share `p` of proposals
//! accepted, `k` of them give `1 + p + p² + … + pᵏ` tokens in a pass. The number of proposals is the one with the most tokens
//! a second. If that is none, none are made, but now and then a few, to find out whether they would be accepted by now: a trial.
//!
//! A draft model also has to run the tokens that it has not seen. What that takes is counted as spread over the tokens that
//! may still come. Before a draft was measured, a token of it is assumed to take as long as its size in relation to the model says.
//! What loading it takes is not known before, and is no measure of later passes: it counts as time and as a trial once it was taken.
//!
//! Invariant: no trial begins that would take all trials beyond [`TRIALS`] of the time of all passes, by what is expected of it. So trying what does not pay costs next to nothing,
//! however much a single trial takes; one that takes long comes late.

use std::time::Duration;

use surefoot_ops::ALIKE_COLUMNS;

use super::accepted_share::{AcceptedShare, FIRST_REST};

/// The weight of the latest pass in the average of its size.
const LATEST: f64 = 0.2;
/// Proposals have to make a pass so many times as good as one without: less may be noise.
const WORTH: f64 = 1.03;
/// After so many passes with proposals one runs without, so that it is known what that takes.
const REMEASURE: u32 = 64;
/// For so many tokens no proposals are made after those that were not worth it, at most.
const LONGEST_REST: u32 = 1024;
/// So many are proposed to find out whether it is worth it by now.
const PROBE: usize = 2;
/// The share of the time of passes that trials may take.
const TRIALS: f64 = 0.01;
/// Before it was measured, a token that a draft model catches up with is assumed to take this part of one that it proposes: it
/// goes through the model beside others.
const CATCHING_UP: f64 = 0.25;

/// Measured times of passes and drafts.
#[derive(Debug, Default)]
pub(crate) struct PassPace {
    /// Seconds of a pass, by the number of its rows.
    passes: [Option<f64>; ALIKE_COLUMNS + 1],
    /// What a pass of the draft model reads in relation to one of the model; 0 without a draft model.
    draft_size: f64,
    /// Seconds of a token that the draft model proposes, and of one that it catches up with.
    drafted: Option<f64>,
    caught_up: Option<f64>,
    since_plain: u32,
    /// Seconds of all passes, and of trials.
    total: f64,
    trials: f64,
    /// If the proposals of the next pass are a trial: the seconds of a pass without them.
    trial: Option<f64>,
}

/// How long the passes of a draft model took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DraftTimes {
    /// Tokens that it had not seen, which were run before it could propose any, and the seconds of these passes.
    pub(crate) caught_up: usize,
    pub(crate) catching_up: f64,
    /// Passes that gave a token to each sequence, and their seconds.
    pub(crate) tokens: usize,
    pub(crate) drafting: f64,
    /// The other seconds: of loading the model and of its first pass, which reads files, or of a run that failed.
    pub(crate) other: f64,
}

impl DraftTimes {
    /// All of it took so long.
    pub(crate) fn rest_of(&mut self, time: Duration) {
        self.other = (time.as_secs_f64() - self.catching_up - self.drafting).max(0.0);
    }

    /// All seconds.
    fn total(&self) -> f64 {
        self.catching_up + self.drafting + self.other
    }

    /// A pass over `rows` tokens, at most `longest` of one sequence.
    pub(crate) fn passed(&mut self, rows: usize, longest: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        // The last token that was chosen, and one before it that was proposed and accepted.
        if longest > 2 {
            self.caught_up += rows;
            self.catching_up += seconds;
        } else {
            self.tokens += 1;
            self.drafting += seconds;
        }
    }
}

/// A sequence, as far as its proposals are concerned.
pub(crate) struct Chance<'a> {
    pub(crate) share: &'a mut AcceptedShare,
    /// So many could be proposed.
    pub(crate) available: usize,
    /// Tokens that the draft model would have to catch up with, and tokens that may still come.
    pub(crate) behind: usize,
    pub(crate) left: usize,
}

impl PassPace {
    /// One for a draft model whose passes read so much in relation to those of the model.
    pub(crate) fn with_draft(draft_size: f64) -> Self {
        Self { draft_size, ..Self::default() }
    }

    /// A pass over so many rows took so long.
    pub(crate) fn passed(&mut self, rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        self.total += seconds;
        if let Some(plain) = self.trial.take() {
            self.trials += (seconds - plain).max(0.0);
        }
        if let Some(average) = self.passes.get_mut(rows) {
            averaged(average, seconds);
        }
    }

    /// The passes of a draft took so long.
    pub(crate) fn drafted(&mut self, times: &DraftTimes) {
        self.total += times.total();
        if self.trial.is_some() {
            self.trials += times.total();
        }
        if times.caught_up > 0 {
            averaged(&mut self.caught_up, times.catching_up / times.caught_up as f64);
        }
        if times.tokens > 0 {
            averaged(&mut self.drafted, times.drafting / times.tokens as f64);
        }
    }

    /// The seconds of a pass; of one that was never measured, those of the largest smaller one: it is tried.
    fn seconds(&self, rows: usize) -> Option<f64> {
        self.passes.get(..=rows)?.iter().rev().copied().flatten().next()
    }

    /// The seconds of a token that the draft model proposes, and of one that it catches up with, where a pass of the model
    /// without proposals takes `plain`.
    fn draft_seconds(&self, plain: f64) -> (f64, f64) {
        let drafted = self.drafted.unwrap_or(self.draft_size * plain);
        (drafted, self.caught_up.unwrap_or(CATCHING_UP * drafted))
    }

    /// How many tokens each sequence gets proposed in a pass that runs all of them, `most` rows at most.
    pub(crate) fn share_out(&mut self, chances: &mut [Chance<'_>], most: usize) -> Vec<usize> {
        let sequences = chances.len();
        let plain = self.passes.get(sequences).copied().flatten();
        let Some(plain) = plain.filter(|_| self.since_plain < REMEASURE) else {
            self.since_plain = 0;
            return vec![0; sequences];
        };
        let mut counts = self.paying(chances, plain, most);
        self.rest_or_probe(chances, &mut counts, plain, most);
        self.since_plain =
            if counts.iter().any(|count| *count > 0) { self.since_plain + 1 } else { 0 };
        counts
    }

    /// The numbers of proposals with the most tokens a second; none if that is hardly more than without.
    fn paying(&self, chances: &[Chance<'_>], plain: f64, most: usize) -> Vec<usize> {
        let sequences = chances.len();
        let mut counts = vec![0; sequences];
        let (drafted, caught_up) = self.draft_seconds(plain);
        let mut best = (counts.clone(), WORTH * sequences as f64 / plain);
        let mut tokens = vec![1.0; sequences];
        for rows in sequences + 1..=most {
            // The next proposal goes to whom it gives the most.
            let gain = |at: usize| {
                let Chance { share, available, .. } = &chances[at];
                let is_open = counts[at] < *available && share.resting == 0;
                is_open.then(|| share.share().powi(counts[at] as i32 + 1))
            };
            let next = (0..sequences).filter_map(|at| Some((at, gain(at)?)));
            let Some((at, gain)) = next.max_by(|one, other| one.1.total_cmp(&other.1)) else {
                break;
            };
            counts[at] += 1;
            tokens[at] += gain;
            let Some(pass) = self.seconds(rows) else { break };
            let drafts = counts.iter().max().map_or(0.0, |count| *count as f64 * drafted);
            let of_sequence = |at: usize| match counts[at] {
                0 => 0.0,
                _ => tokens[at] * chances[at].behind as f64 / chances[at].left.max(1) as f64,
            };
            let catching_up = caught_up * (0..sequences).map(of_sequence).sum::<f64>();
            let rate = tokens.iter().sum::<f64>() / (pass + drafts + catching_up);
            if rate > best.1 {
                best = (counts.clone(), rate);
            }
        }
        best.0
    }

    /// Sequences that get none rest for a while; then they get a few once, if what trials may take allows it.
    fn rest_or_probe(
        &mut self,
        chances: &mut [Chance<'_>],
        counts: &mut [usize],
        plain: f64,
        most: usize,
    ) {
        let (drafted, caught_up) = self.draft_seconds(plain);
        let pays = counts.iter().any(|count| *count > 0);
        let mut expected = 0.0;
        self.trial = None;
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
                let proposed = PROBE.min(chance.available).min(left);
                if proposed == 0 {
                    // Others took the rows of this pass: its turn comes with a later one.
                    continue;
                }
                let drafts = proposed as f64 * drafted + chance.behind as f64 * caught_up;
                let more =
                    self.seconds(most - left + proposed).map_or(0.0, |seconds| seconds - plain);
                if self.trials + expected + drafts + more.max(0.0) > TRIALS * self.total {
                    continue;
                }
                expected += drafts + more.max(0.0);
                share.resting = 0;
                share.rest = (2 * share.rest).min(LONGEST_REST);
                *count = proposed;
                left -= proposed;
                // Beside others that pay, what it takes can't be told apart.
                self.trial = (!pays).then_some(plain);
            } else {
                share.resting = share.rest;
            }
        }
        if pays {
            self.trials += expected;
        }
    }
}

/// Takes a measurement into an average of the latest ones.
fn averaged(average: &mut Option<f64>, seconds: f64) {
    *average = Some(average.map_or(seconds, |before| before + LATEST * (seconds - before)));
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
            let chance = Chance { share: &mut share, available: 7, behind: 0, left: 100 };
            let count = pace.share_out(&mut [chance], ALIKE_COLUMNS)[0];
            pace.passed(1 + count, Duration::from_secs_f64(seconds(1 + count)));
            if count > 0 {
                pace.drafted(&drafted(count, draft));
            }
            let right = (0..count).take_while(|_| random() < accepted).count();
            share.verified(count, right);
            tokens += 1 + right;
            proposals += count;
        }
        (f64::from(tokens as u32) / 4000.0, f64::from(proposals as u32) / 4000.0)
    }

    /// What a draft of so many tokens takes, that had nothing to catch up with.
    fn drafted(tokens: usize, seconds: f64) -> DraftTimes {
        DraftTimes { tokens, drafting: seconds * tokens as f64, ..DraftTimes::default() }
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

    /// The share of the time of 2000 passes that was lost to a draft model whose passes take `size` of one of the model and whose
    /// proposals are accepted with a probability, and how often it was asked. A token that it has to catch up with takes it an eighth
    /// of one that it proposes.
    fn lost(size: f64, accepted: f64) -> (f64, usize) {
        let mut random = fastrand_like(5);
        let mut pace = PassPace::with_draft(size);
        let mut share = AcceptedShare::default();
        let plain = |rows: usize| 0.01 + 0.0002 * rows as f64;
        let (mut behind, mut seconds, mut tokens, mut asked) = (300, 0.0, 0, 0);
        for _ in 0..2000 {
            let chance = Chance { share: &mut share, available: 7, behind, left: 4000 - tokens };
            let count = pace.share_out(&mut [chance], ALIKE_COLUMNS)[0];
            if count > 0 {
                let mut times = drafted(count, size * plain(1));
                (times.caught_up, times.catching_up) =
                    (behind, behind as f64 * size * plain(1) / 8.0);
                seconds += times.catching_up + times.drafting;
                pace.drafted(&times);
                asked += 1;
            }
            pace.passed(1 + count, Duration::from_secs_f64(plain(1 + count)));
            seconds += plain(1 + count);
            let right = (0..count).take_while(|_| random() < accepted).count();
            share.verified(count, right);
            tokens += 1 + right;
            behind = if count > 0 { 0 } else { behind + 1 };
        }
        (seconds / (tokens as f64 * plain(1)) - 1.0, asked)
    }

    #[test]
    fn a_draft_that_does_not_pay_costs_next_to_nothing() {
        for (size, accepted) in [(0.95, 1.0), (0.95, 0.3), (0.5, 0.1), (0.3, 0.0)] {
            let (lost, asked) = lost(size, accepted);
            assert!(lost < 0.02, "{size} {accepted}: {lost} was lost, asked {asked} times");
        }
        let (lost, asked) = lost(0.1, 0.9);
        assert!(lost < -0.5 && asked > 1000, "one that pays is used: {lost}, {asked}");
    }

    #[test]
    fn a_draft_that_would_never_catch_up_in_time_is_not_begun() {
        let mut pace = PassPace::with_draft(0.1);
        pace.passed(1, Duration::from_millis(10));
        let mut counts = |behind, left| {
            let mut share = AcceptedShare::default();
            share.verified(40, 40);
            pace.share_out(
                &mut [Chance { share: &mut share, available: 7, behind, left }],
                ALIKE_COLUMNS,
            )[0]
        };
        assert!(counts(0, 20) > 3);
        assert!(counts(2000, 4000) > 3);
        assert_eq!(counts(2000, 20), 0, "2000 tokens for the sake of 20");
    }

    #[test]
    fn a_trial_waits_until_it_takes_a_hundredth_of_the_time() {
        let mut pace = PassPace::with_draft(1.0);
        let mut share = AcceptedShare::default();
        let mut asked = Vec::new();
        // A trial takes two tokens of the draft, 40 ms, and catches up with 1000 for a second.
        for turn in 0..61_200 {
            let chance = Chance { share: &mut share, available: 7, behind: 1000, left: 4000 };
            let count = pace.share_out(&mut [chance], ALIKE_COLUMNS)[0];
            if count > 0 {
                asked.push(turn);
                pace.drafted(&DraftTimes {
                    caught_up: 1000,
                    catching_up: 1.0,
                    tokens: 1,
                    drafting: 0.02,
                    other: 0.0,
                });
            }
            pace.passed(1 + count, Duration::from_millis(20));
            share.verified(count, 0);
        }
        // Before it was measured, a quarter of a pass for each of the 1000 tokens was expected: five seconds, 1 % of the time after
        // 25,000 passes. Each trial then takes 1 % of 5,100.
        assert!(asked[0] > 21_200, "{asked:?}");
        assert!((5..=12).contains(&asked.len()), "{asked:?}");
    }

    /// In which of 20,000 passes of 10 ms a draft as large as the model is tried, whose first run takes so long beyond its tokens.
    fn tried(loading: f64) -> Vec<usize> {
        let mut pace = PassPace::with_draft(1.0);
        let mut share = AcceptedShare::default();
        let mut asked = Vec::new();
        for turn in 0..20_000 {
            let chance = Chance { share: &mut share, available: 7, behind: 0, left: 4000 };
            let count = pace.share_out(&mut [chance], ALIKE_COLUMNS)[0];
            if count > 0 {
                let other = if asked.is_empty() { loading } else { 0.0 };
                asked.push(turn);
                pace.drafted(&DraftTimes { other, ..drafted(count, 0.01) });
            }
            pace.passed(1 + count, Duration::from_millis(10));
            share.verified(count, 0);
        }
        asked
    }

    #[test]
    fn what_loading_a_draft_takes_counts_as_a_trial() {
        let (at_once, slowly) = (tried(0.0), tried(1.0));
        assert_eq!(at_once[0], slowly[0], "it is not known before");
        // A second is 1 % of 10,000 passes.
        assert!(at_once[1] < 5000, "{at_once:?}");
        assert!(slowly[1] > 10_000, "{slowly:?}");
    }

    #[test]
    fn sequences_that_leave_one_row_for_proposals_are_tried_one_after_the_other() {
        let mut pace = PassPace::default();
        let mut shares = [AcceptedShare::default(); 7];
        for share in &mut shares {
            (0..20).for_each(|_| share.verified(1, 0));
        }
        let mut tried = [0; 7];
        for _ in 0..400 {
            let chance = |share| Chance { share, available: 7, behind: 0, left: 1000 };
            let mut chances: Vec<Chance<'_>> = shares.iter_mut().map(chance).collect();
            let counts = pace.share_out(&mut chances, ALIKE_COLUMNS);
            let rows = 7 + counts.iter().sum::<usize>();
            assert!(rows <= ALIKE_COLUMNS, "{counts:?}");
            pace.passed(rows, Duration::from_millis(if rows > 7 { 11 } else { 10 }));
            for ((share, tried), count) in shares.iter_mut().zip(&mut tried).zip(counts) {
                share.verified(count, 0);
                *tried += usize::from(count > 0);
            }
        }
        assert!(tried.iter().all(|tried| *tried > 0), "{tried:?}");
    }

    #[test]
    fn proposals_that_become_right_are_found_out() {
        let mut pace = PassPace::default();
        let mut share = AcceptedShare::default();
        let mut made = [0; 2];
        for turn in 0..8000 {
            let late = turn >= 4000;
            let chance = Chance { share: &mut share, available: 7, behind: 0, left: 100 };
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
            Chance { share: &mut bad, available: 7, behind: 0, left: 100 },
            Chance { share: &mut good, available: 4, behind: 0, left: 100 },
        ];
        let counts = pace.share_out(chances, ALIKE_COLUMNS);
        assert_eq!(counts[1], 4);
        assert!(counts[0] <= 2, "{counts:?}");
    }
}
