//! How long passes take, so that a prompt is run in parts that those who are decoded hardly notice.

use std::time::Duration;

/// A pass that runs a part of a prompt may take so many times what it takes without.
const LONGER: f64 = 1.6;

/// How long a pass may take while nobody waits for a token: those who come meanwhile wait for its end.
const LONGEST_ALONE: Duration = Duration::from_millis(250);

/// The fewest tokens of prompts in a pass: however slow it is, prompts get on.
const LEAST: usize = 8;
/// The tokens of prompts in the first pass, of which nothing is known.
const FIRST: usize = 64;

/// The weight of the latest pass in the average of its size.
const LATEST: f64 = 0.2;
/// What the time of larger passes is multiplied by with each pass, so that one that was slow once is tried again.
const FORGET: f64 = 0.995;

/// Average times of passes, by their number of tokens: one for each power of two.
#[derive(Debug, Default)]
pub(crate) struct PassTimes {
    sizes: [Option<Average>; 16],
}

#[derive(Clone, Copy, Debug)]
struct Average {
    tokens: f64,
    seconds: f64,
}

impl PassTimes {
    /// Takes note of a pass.
    pub(crate) fn passed(&mut self, tokens: usize, time: Duration) {
        let (tokens, seconds) = (tokens.max(1), time.as_secs_f64());
        let at = (tokens.next_power_of_two().ilog2() as usize).min(self.sizes.len() - 1);
        let now = Average { tokens: tokens as f64, seconds };
        self.sizes[at] = Some(match self.sizes[at] {
            None => now,
            Some(before) => Average {
                tokens: before.tokens + LATEST * (now.tokens - before.tokens),
                seconds: before.seconds + LATEST * (now.seconds - before.seconds),
            },
        });
        for larger in self.sizes[at + 1..].iter_mut().flatten() {
            larger.seconds *= FORGET;
        }
    }

    /// How many tokens of prompts the next pass has beside those of `decoding` sequences, `most` at most.
    pub(crate) fn prompt_tokens(&self, decoding: usize, most: usize) -> usize {
        let limit = match decoding {
            0 => LONGEST_ALONE.as_secs_f64(),
            _ => match self.estimate(decoding) {
                Some(seconds) => LONGER * seconds,
                None => return FIRST.min(most),
            },
        };
        let Some(largest) = self.largest() else { return FIRST.min(most) };
        // Powers of two and what lies between them: a part need not be exact. What is not known is tried step by step.
        let sizes = (3..15).flat_map(|power| [1 << power, 3 << (power - 1)]);
        let fits = |tokens: &usize| {
            *tokens as f64 <= 2.0 * largest
                && self.estimate(*tokens).is_some_and(|seconds| seconds <= limit)
        };
        let most_of_all = sizes.filter(|tokens| *tokens > decoding).filter(fits).max();
        most_of_all.map_or(0, |tokens| tokens - decoding).max(LEAST).min(most)
    }

    /// The time of a pass of so many tokens: between those that are known, or on the line through the largest and one of half its size or less.
    fn estimate(&self, tokens: usize) -> Option<f64> {
        let tokens = tokens as f64;
        let known: Vec<Average> = self.sizes.iter().flatten().copied().collect();
        let above = known.iter().position(|known| known.tokens >= tokens);
        match (&known[..], above) {
            ([], _) => None,
            ([first, ..], Some(0)) => Some(first.seconds),
            (_, Some(above)) => Some(on_line(known[above - 1], known[above], tokens)),
            ([.., last], None) => {
                // Two that are close to each other would make much of a small difference.
                let far = known.iter().rfind(|known| known.tokens <= last.tokens / 2.0);
                Some(match far {
                    Some(before) => on_line(*before, *last, tokens).max(last.seconds),
                    None => last.seconds * tokens / last.tokens,
                })
            }
        }
    }

    /// The largest pass whose time is known.
    fn largest(&self) -> Option<f64> {
        self.sizes.iter().flatten().last().map(|known| known.tokens)
    }
}

fn on_line(from: Average, to: Average, tokens: f64) -> f64 {
    let slope = (to.seconds - from.seconds) / (to.tokens - from.tokens).max(1.0);
    from.seconds + slope * (tokens - from.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is settled on for passes that take `seconds`, beside `decoding` sequences.
    fn settled(decoding: usize, seconds: impl Fn(usize) -> f64) -> usize {
        let mut times = PassTimes::default();
        let mut part = 0;
        for pass in 0..300 {
            part = if pass % 3 == 0 { 0 } else { times.prompt_tokens(decoding, 4096) };
            let tokens = decoding + part;
            times.passed(tokens, Duration::from_secs_f64(seconds(tokens.max(1))));
        }
        part
    }

    #[test]
    fn parts_are_as_long_as_those_who_are_decoded_can_wait_for() {
        // Weights are read for 20 ms, and each token takes 0.1 ms more: 60 % more are 124 tokens.
        let seconds = |tokens: usize| 0.02 + 1e-4 * tokens as f64;
        let part = settled(4, seconds);
        assert!((60..=190).contains(&part), "{part}");
        // Where each token costs as much as all that are decoded, prompts still get on.
        assert_eq!(settled(4, |tokens| tokens as f64), LEAST);
    }

    #[test]
    fn prompts_alone_are_run_in_large_parts() {
        let part = settled(0, |tokens| 0.02 + 1e-4 * tokens as f64);
        assert!((1024..=2300).contains(&part), "{part}");
        assert_eq!(PassTimes::default().prompt_tokens(0, 4096), FIRST);
        assert_eq!(PassTimes::default().prompt_tokens(3, 10), 10);
    }

    #[test]
    fn a_pass_that_was_slow_once_is_tried_again() {
        let mut times = PassTimes::default();
        let seconds = |tokens: usize| Duration::from_secs_f64(0.02 + 1e-5 * tokens as f64);
        for _ in 0..50 {
            let tokens = 1 + times.prompt_tokens(1, 512);
            times.passed(tokens, seconds(tokens));
            times.passed(1, seconds(1));
        }
        assert!(times.prompt_tokens(1, 512) >= 511);
        times.passed(513, Duration::from_secs(2));
        assert!(times.prompt_tokens(1, 512) < 511);
        for _ in 0..700 {
            let tokens = 1 + times.prompt_tokens(1, 512);
            times.passed(tokens, seconds(tokens));
            times.passed(1, seconds(1));
        }
        assert!(times.prompt_tokens(1, 512) >= 511);
    }
}
