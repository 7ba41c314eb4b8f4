//! Finds how many lanes give the highest throughput, from rates that are measured during real work.
//!
//! Protocol: the owner of the lanes measures the rate with [`LaneTuner::active`] lanes over a
//! window, passes it to [`LaneTuner::measured`], and uses the returned number for the next window.
//! No work is run for the measurement alone.
//!
//! First phase: the candidates 1, 2, 3, 4, 6, 8, … are measured upwards until the rate has fallen
//! well below the best twice. Those near the best are measured again until each has five windows,
//! far enough apart that one disturbance can't affect all of them, and those whose medians are
//! within `CLOSE` until each has fifteen. The best median wins; of equals, the fewest lanes.
//!
//! Then that number is held. From time to time a neighbour is tried, in alternation with the held
//! number, so that each window of the neighbour has one of the held number before and after it. The
//! median of the ratios decides: after five windows if it is clear, after fifteen in any case; up if
//! that is better by `EQUAL`, down if it is no worse. A trial whose first two windows are both
//! hopeless ends there. While nothing changes, trials become rarer, so their cost fades.
//!
//! Why this is not the same code as the tuner of pass sizes in `surefoot-serve`: lanes are tuned by
//! windows of time under one load that is the same for all candidates, so candidates are compared
//! pairwise and noise is the problem; pass sizes are tuned by single passes whose size depends on
//! the requests that happen to wait, so there are no windows to compare.

use std::time::Duration;

/// A rate is better only if it is by this much.
const EQUAL: f64 = 0.02;
/// A few windows decide if the difference is beyond this.
const CLEAR: f64 = 0.05;
/// Medians this near to the best are worth a closer look.
const CLOSE: f64 = 0.12;
/// Candidates whose best window is below this share of the best median are not looked at again,
/// and two in a row end the way up. One window may be off by a good deal.
const HOPELESS: f64 = 0.75;
/// How many windows decide what is clear, and what is not.
const WINDOWS: usize = 5;
const MOST_WINDOWS: usize = 15;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A search for the number of lanes with the highest throughput.
#[derive(Debug)]
pub struct LaneTuner {
    /// The numbers of lanes to choose from, upwards.
    ladder: Vec<usize>,
    /// Where on the ladder it is, while no trial runs.
    at: usize,
    phase: Phase,
    pause: Duration,
    /// Whether the next trial goes upwards.
    upwards: bool,
}

#[derive(Debug)]
enum Phase {
    /// Rates of each candidate so far; the round and the candidate that is measured now.
    Look { rates: Vec<Vec<f64>>, round: usize, now: usize, top: usize },
    /// Holding since then.
    Hold { since: Duration },
    /// Comparing with a neighbour: what was measured of both, in turn, the held one first.
    Try { other: usize, held: Vec<f64>, tried: Vec<f64> },
}

impl LaneTuner {
    /// A search among 1 to `lanes` lanes.
    pub fn new(lanes: usize) -> Self {
        let ladder = ladder(lanes.max(1));
        let rates = vec![Vec::new(); ladder.len()];
        let top = ladder.len() - 1;
        Self {
            ladder,
            at: 0,
            phase: Phase::Look { rates, round: 0, now: 0, top },
            pause: FIRST_PAUSE,
            upwards: true,
        }
    }

    /// The number of lanes that the next window is measured with.
    pub fn active(&self) -> usize {
        self.ladder[match &self.phase {
            Phase::Look { now, .. } => *now,
            Phase::Hold { .. } => self.at,
            Phase::Try { other, held, tried } if held.len() > tried.len() => *other,
            Phase::Try { .. } => self.at,
        }]
    }

    /// Whether it has looked around and chosen.
    pub fn has_settled(&self) -> bool {
        !matches!(self.phase, Phase::Look { .. })
    }

    /// Takes the rate that was measured with [`LaneTuner::active`] lanes, at `now` on a clock of the
    /// caller's; none, if the callers were too few to use them all. Gives the number of lanes for
    /// the next window.
    pub fn measured(&mut self, rate: Option<f64>, now: Duration) -> usize {
        match std::mem::replace(&mut self.phase, Phase::Hold { since: now }) {
            Phase::Look { rates, round, now: measured, top } => {
                self.look(rates, round, measured, top, rate);
            }
            Phase::Hold { since } => self.hold(since, rate, now),
            Phase::Try { other, held, tried } => self.weigh(other, held, tried, rate),
        }
        self.active()
    }

    /// The next candidate, or the choice.
    fn look(
        &mut self,
        mut rates: Vec<Vec<f64>>,
        mut round: usize,
        measured: usize,
        mut top: usize,
        rate: Option<f64>,
    ) {
        match rate {
            Some(rate) => rates[measured].push(rate),
            // Too few callers for so many lanes: those below are all that can be told apart.
            None => top = measured.saturating_sub(1).min(top),
        }
        let best = rates.iter().map(|rates| median(rates)).fold(0.0, f64::max);
        let hopeless = |candidate: usize| {
            let of_it = &rates[candidate];
            !of_it.is_empty() && of_it.iter().all(|rate| *rate < HOPELESS * best)
        };
        let mut now = measured + 1;
        if round == 0 && measured > 0 && hopeless(measured) && hopeless(measured - 1) {
            top = measured;
        }
        let close = |candidate: usize| median(&rates[candidate]) >= (1.0 - CLOSE) * best;
        let contenders = (0..=top).filter(|candidate| close(*candidate)).count();
        loop {
            if now > top {
                (now, round) = (0, round + 1);
            }
            if round == MOST_WINDOWS || (round >= WINDOWS && contenders <= 1) {
                self.choose(&rates);
                return;
            }
            let looked_at = match round {
                0 => true,
                1..WINDOWS => !hopeless(now),
                _ => close(now),
            };
            if looked_at {
                break;
            }
            now += 1;
        }
        self.phase = Phase::Look { rates, round, now, top };
    }

    fn choose(&mut self, rates: &[Vec<f64>]) {
        let medians: Vec<f64> = rates.iter().map(|rates| median(rates)).collect();
        let best = medians.iter().copied().fold(0.0, f64::max);
        self.at = medians.iter().position(|rate| *rate >= best).unwrap_or(0);
    }

    fn hold(&mut self, since: Duration, rate: Option<f64>, now: Duration) {
        let other = match self.upwards {
            true => (self.at + 1 < self.ladder.len()).then_some(self.at + 1),
            false => self.at.checked_sub(1),
        };
        self.phase = match (rate, other) {
            (Some(rate), Some(other)) if now.saturating_sub(since) >= self.pause => {
                Phase::Try { other, held: vec![rate], tried: Vec::new() }
            }
            (_, None) => {
                self.upwards = !self.upwards;
                Phase::Hold { since }
            }
            _ => Phase::Hold { since },
        };
    }

    /// One more window of a trial; the last one decides.
    fn weigh(&mut self, other: usize, mut held: Vec<f64>, mut tried: Vec<f64>, rate: Option<f64>) {
        let Some(rate) = rate else {
            // Too few callers for so many lanes: nothing to learn now, and nothing lost by it.
            return;
        };
        match held.len() > tried.len() {
            true => tried.push(rate),
            false => held.push(rate),
        }
        let around = held.windows(2).map(|two| f64::midpoint(two[0], two[1]));
        let ratios: Vec<f64> =
            tried.iter().zip(around).map(|(tried, held)| tried / held.max(1e-9)).collect();
        let hopeless = ratios.len() >= 2 && ratios.iter().all(|ratio| *ratio < HOPELESS);
        let ratio = median(&ratios);
        let decided = match ratios.len() {
            ..WINDOWS => hopeless,
            WINDOWS..MOST_WINDOWS => (ratio - 1.0).abs() > CLEAR,
            _ => true,
        };
        if !decided || held.len() == tried.len() {
            self.phase = Phase::Try { other, held, tried };
            return;
        }
        let moves = match other > self.at {
            true => ratio > 1.0 + EQUAL,
            false => ratio >= 1.0,
        };
        if moves {
            self.at = other;
        }
        self.rest(moves);
    }

    /// Ends a trial: the phase is [`Phase::Hold`] already.
    fn rest(&mut self, moved: bool) {
        match moved {
            true => self.pause = FIRST_PAUSE,
            false => {
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                self.upwards = !self.upwards;
            }
        }
    }
}

/// 1, 2, 3, 4, 6, 8, 12, … and `lanes`.
fn ladder(lanes: usize) -> Vec<usize> {
    let doubling = std::iter::successors(Some(1usize), |n| n.checked_mul(2));
    let mut ladder: Vec<usize> =
        doubling.take_while(|n| *n < lanes).flat_map(|n| [n, n + n / 2]).collect();
    ladder.retain(|n| *n < lanes);
    ladder.push(lanes);
    ladder.dedup();
    ladder
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a search against a made-up device: `rate` with so many lanes, each measured wrong by
    /// up to `noise`. Gives the search and the share of the best rate that was had on the way.
    fn run(tuner: &mut LaneTuner, rate: impl Fn(usize) -> f64, noise: f64, seconds: u64) -> f64 {
        const WINDOW: Duration = Duration::from_millis(20);
        let best = tuner.ladder.iter().map(|n| rate(*n)).fold(0.0, f64::max);
        let mut random = fastrand::Rng::with_seed(noise.to_bits());
        let (mut done, mut windows) = (0.0, 0);
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(seconds) {
            let true_rate = rate(tuner.active());
            let off = 1.0 + noise * (2.0 * random.f64() - 1.0);
            now += WINDOW;
            tuner.measured(Some(true_rate * off), now);
            (done, windows) = (done + true_rate, windows + 1);
        }
        done / f64::from(windows) / best
    }

    /// Rises to `peak` lanes, then falls by `fall` with each doubling.
    fn hill(peak: f64, fall: f64) -> impl Fn(usize) -> f64 {
        move |lanes| {
            let lanes = lanes as f64;
            match lanes <= peak {
                true => lanes,
                false => peak * fall.powf((lanes / peak).log2()),
            }
        }
    }

    #[test]
    fn the_ladder_has_small_steps_below_and_ends_at_the_number_of_lanes() {
        assert_eq!(ladder(1), [1]);
        assert_eq!(ladder(2), [1, 2]);
        assert_eq!(ladder(8), [1, 2, 3, 4, 6, 8]);
        assert_eq!(ladder(20), [1, 2, 3, 4, 6, 8, 12, 16, 20]);
    }

    #[test]
    fn where_one_lane_is_best_it_takes_one() {
        // Burn's own rates on a software GPU: 92 forwards a second on one thread, 34 on eight.
        let mut tuner = LaneTuner::new(32);
        let had = run(&mut tuner, |lanes| 92.0 / (lanes as f64).powf(0.48), 0.03, 20);
        assert_eq!(tuner.active(), 1);
        assert!(had > 0.97, "{had}");
    }

    #[test]
    fn of_equals_it_takes_the_fewest() {
        let mut tuner = LaneTuner::new(64);
        run(&mut tuner, |lanes| lanes.min(4) as f64, 0.0, 5);
        assert_eq!(tuner.active(), 4);
    }

    #[test]
    fn callers_that_are_too_few_end_the_way_up_and_are_followed_when_more_come() {
        let mut tuner = LaneTuner::new(64);
        let mut now = Duration::ZERO;
        let mut serve = |tuner: &mut LaneTuner, callers: usize, windows: usize| {
            for _ in 0..windows {
                let lanes = tuner.active();
                now += Duration::from_millis(20);
                tuner.measured((lanes <= callers).then_some(lanes as f64), now);
            }
        };
        serve(&mut tuner, 2, 500);
        assert!(tuner.has_settled());
        assert_eq!(tuner.ladder[tuner.at], 2);
        serve(&mut tuner, 16, 3500);
        assert_eq!(tuner.ladder[tuner.at], 16);
    }

    #[test]
    fn it_follows_a_device_that_changes() {
        let mut tuner = LaneTuner::new(32);
        run(&mut tuner, hill(16.0, 0.5), 0.02, 5);
        assert!(tuner.active() >= 12, "{}", tuner.active());
        run(&mut tuner, hill(2.0, 0.5), 0.02, 200);
        assert!(tuner.active() <= 3, "{}", tuner.active());
    }

    #[test]
    fn noise_does_not_hide_a_lane_that_pays_a_little() {
        // A software GPU on two cores: two lanes give a twelfth more than one, windows vary by more.
        let rate = |lanes: usize| [0.92, 1.0, 0.55, 0.6][lanes.min(4) - 1];
        let right = (0..100).filter(|nth| {
            let mut tuner = LaneTuner::new(32);
            run(&mut tuner, rate, 0.15 + 0.001 * f64::from(*nth), 1);
            tuner.ladder[tuner.at] == 2
        });
        let right = right.count();
        // Six windows are right 82 times.
        assert!(right >= 86, "{right} of 100");
    }

    #[test]
    fn a_trial_that_is_hopeless_is_ended_early() {
        let mut tuner = LaneTuner::new(8);
        let rate = |lanes: usize| if lanes <= 2 { lanes as f64 } else { 0.5 };
        run(&mut tuner, rate, 0.0, 2);
        assert_eq!(tuner.active(), 2);
        let mut windows = Vec::new();
        for window in 0..1000 {
            windows.push(tuner.active());
            tuner.measured(Some(rate(tuner.active())), Duration::from_millis(3000 + 20 * window));
        }
        let trial = windows.iter().position(|lanes| *lanes == 3).expect("it tries more");
        let crowded = windows[trial..trial + 20].iter().filter(|lanes| **lanes == 3).count();
        assert_eq!(crowded, 2);
    }

    proptest! {
        #[test]
        fn on_any_hill_it_ends_near_the_best_and_costs_little(
            peak in 1.0f64..64.0,
            fall in 0.4f64..0.95,
            noise in 0.0f64..0.06,
        ) {
            let rate = hill(peak, fall);
            let mut tuner = LaneTuner::new(64);
            let had = run(&mut tuner, &rate, noise, 30);
            let best = tuner.ladder.iter().map(|n| rate(*n)).fold(0.0, f64::max);
            prop_assert!(rate(tuner.ladder[tuner.at]) >= 0.9 * best);
            prop_assert!(had >= 0.9, "{}", had);
        }

        #[test]
        fn on_a_machine_with_other_work_it_ends_near_the_best_too(
            peak in 1.0f64..64.0,
            fall in 0.4f64..0.95,
            noise in 0.06f64..0.25,
        ) {
            let rate = hill(peak, fall);
            let mut tuner = LaneTuner::new(64);
            let had = run(&mut tuner, &rate, noise, 60);
            prop_assert!(had >= 0.8, "{}", had);
        }

        #[test]
        fn windows_without_enough_callers_never_lead_out_of_bounds(
            lanes in 1usize..100,
            windows in proptest::collection::vec(proptest::option::of(0.0f64..1e6), 1..300),
        ) {
            let mut tuner = LaneTuner::new(lanes);
            for (nth, rate) in windows.into_iter().enumerate() {
                let active = tuner.measured(rate, Duration::from_secs(nth as u64));
                prop_assert!((1..=lanes).contains(&active));
                prop_assert_eq!(active, tuner.active());
            }
        }
    }
}
