//! How many tokens go through the model in one pass over texts, found by measuring.
//!
//! A larger pass is not always faster per token: on a CPU it falls out of the caches, on a GPU a
//! small one leaves most of the device idle. Sizes are grouped by powers of two. Of the sizes for
//! which there is enough work, the largest is used that no other is clearly faster than. Sizes are
//! tried from the largest down until they become slow, and the neighbours of the one in use are
//! tried again now and then, so that the choice follows the machine.
//!
//! Why this is not the tuner of lanes (`surefoot_lanes::LaneTuner`): a pass can only be as large as
//! the texts that wait, so sizes can't be compared in windows of equal load; each size keeps a
//! running rate instead.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Powers of two that are told apart.
const CLASSES: usize = 25;
/// So many passes of a class before it is judged.
const ENOUGH: u32 = 2;
/// After so many passes one size is tried again.
const CURIOSITY: u32 = 64;
/// Where a size reaches only this of the next larger one's rate, still smaller ones are not tried.
const DECLINE: f64 = 0.9;
/// A smaller pass has to be so much faster: less is noise.
const CLEARLY: f64 = 1.2;
/// The weight of the latest pass.
const LATEST: f64 = 0.25;

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Tokens a second.
    rate: f64,
    passes: u32,
}

#[derive(Debug, Default)]
struct Known {
    classes: [Class; CLASSES],
    /// Passes since one was tried again, and whether that was a larger one.
    passes: u32,
    look_up: bool,
}

/// Chooses the size of passes over texts.
#[derive(Debug)]
pub(crate) struct PassSizeTuner {
    most: usize,
    known: Mutex<Known>,
}

impl PassSizeTuner {
    /// At most `most` tokens a pass, whatever is measured.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// How many of `count` sequences, padded to `width` tokens each, the next pass should have.
    pub(crate) fn how_many(&self, count: usize, width: usize) -> usize {
        let width = width.max(1);
        let most = (self.most / width).clamp(1, count.max(1));
        // Only sizes that such sequences can have: one that can't be tried would stay unknown.
        let (low, high) = (class(width), class(most * width));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = match known.unexplored(low, high) {
            Some(unknown) => unknown,
            None => {
                let best = known.largest_of_the_fast(low, high);
                if known.passes < CURIOSITY {
                    best
                } else {
                    known.passes = 0;
                    known.look_up = !known.look_up;
                    if known.look_up { best + 1 } else { best.saturating_sub(1) }.clamp(low, high)
                }
            }
        };
        (((2 << chosen) - 1) / width).clamp(1, most)
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
    }
}

impl Known {
    /// The next class to try from `high` down, until they become slow.
    fn unexplored(&self, low: usize, high: usize) -> Option<usize> {
        let is_known = |at: &usize| self.classes[*at].passes >= ENOUGH;
        let rate = |at: usize| self.classes[at].rate;
        let ends = |at: usize| at < high && rate(at) < DECLINE * rate(at + 1);
        let last = (low..=high).rev().take_while(is_known).find(|&at| ends(at));
        match last {
            Some(_) => None,
            None => (low..=high).rev().find(|at| !is_known(at)),
        }
    }

    /// The largest class from `low` to `high` that none of them is clearly faster than.
    fn largest_of_the_fast(&self, low: usize, high: usize) -> usize {
        let rate = |at: usize| self.classes[at].rate;
        let fastest = (low..=high).map(rate).fold(0.0, f64::max);
        (low..=high).rev().find(|&at| rate(at) * CLEARLY >= fastest).unwrap_or(high)
    }
}

fn class(tokens: usize) -> usize {
    (tokens.max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes over `count` sequences of `width` tokens settle at on a machine that takes
    /// `seconds` for so many tokens: their tokens, and how many of them a second.
    fn settled(
        tuner: &PassSizeTuner,
        [count, width]: [usize; 2],
        seconds: impl Fn(usize) -> f64,
    ) -> (usize, f64) {
        let (mut tokens, mut time) = (0, 0.0);
        let mut sizes = Vec::new();
        for pass in 0..1000 {
            let many = tuner.how_many(count, width);
            assert!(many >= 1 && many <= count);
            let size = many * width;
            let took = seconds(size);
            tuner.passed(size, Duration::from_secs_f64(took));
            if pass >= 200 {
                tokens += size;
                time += took;
                sizes.push(size);
            }
        }
        sizes.sort_unstable();
        (sizes[sizes.len() / 2], tokens as f64 / time)
    }

    const SHAPES: [[usize; 2]; 7] =
        [[512, 16], [64, 16], [64, 32], [64, 48], [64, 128], [64, 512], [3, 4096]];

    #[test]
    fn where_more_is_better_all_go_that_fit() {
        for [count, width] in SHAPES {
            let (size, _) = settled(&PassSizeTuner::new(8192), [count, width], |tokens| {
                1e-2 + tokens as f64 * 1e-6
            });
            assert_eq!(size, (8192 / width).min(count) * width, "{count} of {width}");
        }
    }

    #[test]
    fn where_large_passes_are_slow_they_become_smaller_and_little_is_lost() {
        // From 1,024 tokens on every token costs half as much again.
        let seconds =
            |tokens: usize| tokens as f64 * if tokens < 1024 { 1e-5 } else { 1.5e-5 } + 1e-4;
        for [count, width] in SHAPES {
            let (size, rate) = settled(&PassSizeTuner::new(8192), [count, width], seconds);
            let all = (8192 / width).min(count);
            let best = (1..=all).map(|many| many * width);
            let best = best.map(|size| size as f64 / seconds(size)).fold(0.0, f64::max);
            assert!(rate > 0.93 * best, "{count} of {width}: {rate} of {best}");
            assert!(width > 512 || size < 1024, "{count} of {width}: {size}");
        }
    }

    #[test]
    fn long_sequences_after_short_ones_go_together_too() {
        let tuner = PassSizeTuner::new(8192);
        let seconds = |tokens: usize| 1e-2 + tokens as f64 * 1e-6;
        settled(&tuner, [512, 16], seconds);
        assert_eq!(settled(&tuner, [64, 512], seconds).0, 8192);
    }

    #[test]
    fn small_passes_for_want_of_work_do_not_make_the_others_small() {
        let tuner = PassSizeTuner::new(4096);
        let seconds = |tokens: usize| 1e-3 + tokens as f64 * 1e-6;
        for pass in 0..500 {
            let size = tuner.how_many(if pass % 10 == 0 { 256 } else { 1 }, 16) * 16;
            tuner.passed(size, Duration::from_secs_f64(seconds(size)));
        }
        assert!(settled(&tuner, [256, 16], seconds).0 >= 2047);
    }
}
