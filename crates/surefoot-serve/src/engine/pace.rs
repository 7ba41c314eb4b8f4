//! How much goes through the model in one pass, found by measuring.
//!
//! More in one pass is not always more in a second: on a processor a large pass falls out of the
//! caches, on a GPU a small one leaves most of it idle. Passes are told apart by the power of two
//! below their tokens. The size that was fastest so far is the limit. Every size is tried at first,
//! as far as there is work for it, and one of them again now and then, so that the limit follows
//! the machine.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Powers of two that are told apart.
const CLASSES: usize = 25;
/// Smaller passes are not worth trying: one text has more.
const SMALLEST: usize = 4;
/// So many passes of a class before it is judged.
const ENOUGH: u32 = 2;
/// After so many passes one size is tried again.
const CURIOSITY: u32 = 64;
/// The weight of the latest pass.
const LATEST: f64 = 0.25;
/// Another size has to be so much faster: noise should not move the limit.
const CLEARLY: f64 = 1.02;

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Tokens a second.
    rate: f64,
    passes: u32,
}

#[derive(Debug, Default)]
struct Known {
    classes: [Class; CLASSES],
    best: Option<usize>,
    passes: u32,
    next_trial: usize,
}

/// The limit of one kind of pass.
#[derive(Debug)]
pub(crate) struct Pace {
    most: usize,
    known: Mutex<Known>,
}

impl Pace {
    /// At most `most` tokens a pass, whatever is measured.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// How many tokens the next pass should have at most.
    pub(crate) fn limit(&self) -> usize {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let last = class(self.most);
        let unknown =
            (SMALLEST.min(last)..=last).rev().find(|&at| known.classes[at].passes < ENOUGH);
        let allowed = match (unknown, known.best) {
            (Some(unknown), _) => unknown,
            (None, Some(_)) if known.passes >= CURIOSITY => {
                known.passes = 0;
                known.next_trial = (known.next_trial + 1) % (last + 1);
                known.next_trial.max(SMALLEST.min(last))
            }
            (None, Some(best)) => best,
            (None, None) => last,
        };
        ((2 << allowed) - 1).min(self.most)
    }

    /// Tells of a pass.
    pub(crate) fn passed(&self, tokens: usize, time: Duration) {
        let at = class(tokens);
        let rate = tokens as f64 / time.as_secs_f64().max(1e-9);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.passes = known.passes.saturating_add(1);
        let seen = &mut known.classes[at];
        // The first pass of a class pays for its kernels and its memory: the second replaces it.
        let fresh = seen.passes < ENOUGH;
        seen.rate = if fresh { rate } else { seen.rate + LATEST * (rate - seen.rate) };
        seen.passes = seen.passes.saturating_add(1);
        let classes = &known.classes;
        let fastest = (0..CLASSES)
            .filter(|&at| classes[at].passes >= ENOUGH)
            .max_by(|&a, &b| classes[a].rate.total_cmp(&classes[b].rate));
        let stays =
            |best: usize, fastest: usize| classes[fastest].rate <= classes[best].rate * CLEARLY;
        known.best = match (known.best, fastest) {
            (Some(best), Some(fastest)) if stays(best, fastest) => Some(best),
            (_, fastest) => fastest,
        };
    }
}

fn class(tokens: usize) -> usize {
    (tokens.max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit after many full passes on a machine that takes `seconds` for so many tokens.
    fn settled(most: usize, seconds: impl Fn(usize) -> f64) -> (usize, f64) {
        let pace = Pace::new(most);
        let (mut tokens, mut time) = (0, 0.0);
        for pass in 0..1000 {
            let size = pace.limit();
            assert!(size >= 1 && size <= most);
            let took = seconds(size);
            pace.passed(size, Duration::from_secs_f64(took));
            if pass >= 200 {
                tokens += size;
                time += took;
            }
        }
        (pace.limit(), tokens as f64 / time)
    }

    #[test]
    fn where_more_is_better_the_limit_is_the_most() {
        let (limit, _) = settled(8192, |tokens| 1e-2 + tokens as f64 * 1e-6);
        assert_eq!(limit, 8192);
    }

    #[test]
    fn where_large_passes_are_slow_the_limit_comes_down_and_little_is_lost() {
        // From 512 tokens on every token costs half as much again.
        let seconds =
            |tokens: usize| tokens as f64 * if tokens < 512 { 1e-5 } else { 1.5e-5 } + 1e-4;
        let (limit, rate) = settled(8192, seconds);
        assert!((255..512).contains(&limit), "{limit}");
        let best = 511.0 / seconds(511);
        assert!(rate > 0.95 * best, "{rate} of {best}");
    }

    #[test]
    fn small_passes_for_want_of_work_do_not_bring_the_limit_down() {
        let pace = Pace::new(4096);
        let seconds = |tokens: usize| 1e-3 + tokens as f64 * 1e-6;
        for pass in 0..500 {
            let size = if pass % 10 == 0 { pace.limit() } else { 16 };
            pace.passed(size, Duration::from_secs_f64(seconds(size)));
        }
        assert!(pace.limit() >= 2047, "{}", pace.limit());
    }
}
