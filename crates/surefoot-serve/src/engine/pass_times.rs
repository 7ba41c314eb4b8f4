//! How long passes take, so that prompts are run in parts that those who are decoded can wait for.
//!
//! A pass that runs a part of a prompt keeps those who are decoded waiting for their next token, and one that runs none
//! keeps those whose prompts wait from their first. So the more prompts wait for each sequence that is decoded, the longer a
//! pass may take. With a fixed limit, where the time of a pass grows with its tokens, fewer and fewer sequences would
//! be decoded at once: each part would be in proportion to them, however many wait.

use std::time::Duration;

/// A pass that runs a part of a prompt may take so many times what it takes without.
const LONGER: f64 = 1.6;
/// And so many times more for each prompt that waits for each sequence that is decoded.
const LONGER_FOR_EACH: f64 = 4.0;
/// A pass that takes no longer than this is not cut shorter: nobody reads faster.
const SHORT: Duration = Duration::from_millis(20);
/// While prompts wait a pass takes no longer than [`LONGEST`], or so many times what it takes without a prompt.
const MOST_LONGER: f64 = 3.0;

/// How long a pass may take while nobody waits for a token: those who come meanwhile wait for its end.
const LONGEST: Duration = Duration::from_millis(250);

/// The fewest tokens of prompts in a pass: however slow it is, prompts get on.
const LEAST: usize = 8;
/// The tokens of prompts in the first pass, of which nothing is known.
const FIRST: usize = 64;

/// The weight of the latest pass in the average of its size, and of one that took longer: it was too large.
const LATEST: f64 = 0.2;
const LATEST_SLOWER: f64 = 0.5;
/// What the time of larger passes is multiplied by with each pass over a prompt, so that one that was slow once is tried
/// again.
const FORGET: f64 = 0.995;
/// What remains of the size of an earlier pass over prompts with each that is smaller: no pass is more than twice as large
/// as those of late, whatever was known of larger ones long ago.
const FORGET_SIZE: f64 = 0.98;

/// Average times of passes, by their number of tokens: one for each power of two.
#[derive(Debug, Default)]
pub(crate) struct PassTimes {
    sizes: [Option<Average>; 16],
    /// The size of late passes over prompts.
    lately: f64,
}

#[derive(Clone, Copy, Debug)]
struct Average {
    tokens: f64,
    seconds: f64,
}

impl PassTimes {
    /// Takes note of a pass, and whether it ran tokens of prompts.
    pub(crate) fn passed(&mut self, tokens: usize, runs_prompts: bool, time: Duration) {
        let (tokens, seconds) = (tokens.max(1), time.as_secs_f64());
        let at = (tokens.next_power_of_two().ilog2() as usize).min(self.sizes.len() - 1);
        let now = Average { tokens: tokens as f64, seconds };
        self.sizes[at] = Some(match self.sizes[at] {
            None => now,
            Some(before) => {
                let slower = seconds * before.tokens > before.seconds * now.tokens;
                let latest = if slower && runs_prompts { LATEST_SLOWER } else { LATEST };
                Average {
                    tokens: before.tokens + latest * (now.tokens - before.tokens),
                    seconds: before.seconds + latest * (now.seconds - before.seconds),
                }
            }
        });
        if runs_prompts {
            self.lately = now.tokens.max(self.lately * FORGET_SIZE);
            for larger in self.sizes[at + 1..].iter_mut().flatten() {
                larger.seconds = (larger.seconds * FORGET).max(seconds);
            }
        }
    }

    /// How many tokens of prompts the next pass has, `most` at most, beside those of `decoding` sequences, while so many
    /// prompts wait.
    pub(crate) fn prompt_tokens(&self, decoding: usize, waiting: usize, most: usize) -> usize {
        let Some(seconds) = self.estimate(decoding) else { return FIRST.min(most) };
        let longest = LONGEST.as_secs_f64();
        let limit = match decoding {
            0 => longest,
            _ => {
                let crowd = waiting as f64 / decoding as f64;
                let longer = (LONGER + LONGER_FOR_EACH * crowd) * seconds;
                longer.max(SHORT.as_secs_f64()).min(longest.max(MOST_LONGER * seconds))
            }
        };
        // A part need not be exact. What is not known is tried step by step.
        let sizes = (1..13).flat_map(|power| (4..8).map(move |quarters| quarters << power));
        let reach = 2.0 * self.lately.max(FIRST as f64 / 2.0);
        let fits = |tokens: &usize| {
            *tokens as f64 <= reach.max((decoding + LEAST) as f64)
                && self.estimate(*tokens).is_some_and(|seconds| seconds <= limit)
        };
        let most_of_all = sizes.filter(|tokens| *tokens > decoding).filter(fits).max();
        most_of_all.map_or(0, |tokens| tokens - decoding).max(LEAST).min(most)
    }

    /// The time of a pass of so many tokens: between those that are known, on the line through the largest and one of half its
    /// size or less, or in proportion to the smallest. It is no longer than that of a larger one.
    fn estimate(&self, tokens: usize) -> Option<f64> {
        let tokens = tokens as f64;
        let known: Vec<Average> = self.sizes.iter().flatten().copied().collect();
        let above = known.iter().position(|known| known.tokens >= tokens);
        match (&known[..], above) {
            ([], _) => None,
            ([first, ..], Some(0)) => {
                Some(shortest(&known[1..]).min(first.seconds) * tokens / first.tokens)
            }
            (_, Some(above)) => {
                let between = on_line(known[above - 1], known[above], tokens);
                Some(between.min(shortest(&known[above..])))
            }
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
}

fn shortest(known: &[Average]) -> f64 {
    known.iter().map(|known| known.seconds).fold(f64::INFINITY, f64::min)
}

fn on_line(from: Average, to: Average, tokens: f64) -> f64 {
    let slope = (to.seconds - from.seconds) / (to.tokens - from.tokens).max(1.0);
    from.seconds + slope * (tokens - from.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients see who ask again as soon as they are answered.
    #[derive(Debug, Default)]
    struct Seen {
        tokens: usize,
        seconds: f64,
        /// Each wait of a client for the first token, and for a later one.
        first: Vec<f64>,
        between: Vec<f64>,
    }

    impl Seen {
        fn rate(&self) -> f64 {
            self.tokens as f64 / self.seconds
        }
    }

    fn quantile(mut times: Vec<f64>, share: f64) -> f64 {
        times.sort_by(f64::total_cmp);
        times[((times.len() - 1) as f64 * share) as usize]
    }

    /// A client: the tokens of its prompt and of its answer that are left, and when it last got something.
    struct Client {
        prompt: usize,
        answer: usize,
        since: f64,
    }

    /// `clients` ask for `answer` tokens behind `prompt` tokens, on a machine that takes `seconds` for a pass of so many
    /// tokens. What is seen in the later half of `passes`.
    fn served(
        [clients, prompt, answer]: [usize; 3],
        passes: usize,
        seconds: impl Fn(usize) -> f64,
    ) -> Seen {
        let mut times = PassTimes::default();
        let (mut clock, mut seen) = (0.0, Seen::default());
        let mut all: Vec<Client> =
            (0..clients).map(|_| Client { prompt, answer, since: 0.0 }).collect();
        for pass in 0..passes {
            let decoding = all.iter().filter(|client| client.prompt == 0).count();
            let part = match clients - decoding {
                0 => 0,
                waiting => times.prompt_tokens(decoding, waiting, 4096),
            };
            // The one that waits longest first.
            all.sort_by(|one, other| one.since.total_cmp(&other.since));
            let mut left = part;
            let mut gets: Vec<bool> = all.iter().map(|client| client.prompt == 0).collect();
            for (client, gets) in all.iter_mut().zip(&mut gets).filter(|(_, gets)| !**gets) {
                let count = client.prompt.min(left);
                (client.prompt, left) = (client.prompt - count, left - count);
                *gets = client.prompt == 0;
            }
            let tokens = decoding + part - left;
            let took = seconds(tokens);
            times.passed(tokens, part > 0, Duration::from_secs_f64(took));
            clock += took;
            let counts = pass >= passes / 2;
            seen.seconds += if counts { took } else { 0.0 };
            for (client, _) in all.iter_mut().zip(gets).filter(|(_, gets)| *gets) {
                if counts {
                    seen.tokens += 1;
                    let waits =
                        if client.answer == answer { &mut seen.first } else { &mut seen.between };
                    waits.push(clock - client.since);
                }
                client.answer -= 1;
                client.since = clock;
                if client.answer == 0 {
                    (client.prompt, client.answer) = (prompt, answer);
                }
            }
        }
        seen
    }

    #[test]
    fn issue_17_many_clients_are_decoded_at_once_where_each_token_takes_its_time() {
        // Weights are read for 5 ms, and each token takes 1.2 ms more.
        let seconds = |tokens: usize| 5e-3 + 1.2e-3 * tokens as f64;
        let seen = served([64, 64, 32], 3000, seconds);
        // 32 tokens take 96 in passes.
        let most = 32.0 / (96.0 * 1.2e-3);
        assert!(seen.rate() > 0.9 * most, "{} of {most} tokens/s", seen.rate());
        let (first, between) = (quantile(seen.first, 0.5), quantile(seen.between, 0.5));
        assert!(first < 16.0 * between, "{first} s until the first token, then {between} s");
        let seen = served([8, 64, 32], 3000, seconds);
        assert!(seen.rate() > 0.75 * most, "{} of {most} tokens/s", seen.rate());
    }

    #[test]
    fn those_who_are_decoded_wait_evenly_while_long_prompts_are_run() {
        let seconds = |tokens: usize| 5e-3 + 1.2e-3 * tokens as f64;
        let mut times = PassTimes::default();
        // Long enough alone that what was known of large passes would be forgotten.
        for _ in 0..1000 {
            times.passed(4, false, Duration::from_secs_f64(seconds(4)));
        }
        let mut waits = Vec::new();
        for waiting in [1, 2, 3, 3, 2, 1] {
            let mut left = 1000_usize;
            while left > 0 {
                let part = times.prompt_tokens(4, waiting, 4096).min(left);
                left -= part;
                // Attention to what was run before takes half as long again in the end.
                let took = seconds(4 + part) * (1.0 + 0.5 * (1000 - left) as f64 / 1000.0);
                times.passed(4 + part, true, Duration::from_secs_f64(took));
                waits.push(took);
            }
        }
        let (middle, late) = (quantile(waits.clone(), 0.5), quantile(waits, 0.99));
        assert!(late < 2.0 * middle, "{middle} s and {late} s");
        assert!(middle < 0.06, "{middle} s");
    }

    /// What is settled on for passes that take `seconds`, beside `decoding` sequences.
    fn settled(decoding: usize, seconds: impl Fn(usize) -> f64) -> usize {
        let mut times = PassTimes::default();
        let mut part = 0;
        for pass in 0..300 {
            part = if pass % 3 == 0 { 0 } else { times.prompt_tokens(decoding, 1, 4096) };
            let tokens = decoding + part;
            times.passed(tokens, part > 0, Duration::from_secs_f64(seconds(tokens.max(1))));
        }
        part
    }

    #[test]
    fn parts_are_as_long_as_those_who_are_decoded_can_wait_for() {
        // Weights are read for 20 ms, and each token takes 0.1 ms more. One prompt waits for four sequences: 1.6 times
        // more than the time without it are 326 tokens.
        let seconds = |tokens: usize| 0.02 + 1e-4 * tokens as f64;
        let part = settled(4, seconds);
        assert!((200..=400).contains(&part), "{part}");
        // Where each token takes a second, prompts still get on.
        assert_eq!(settled(4, |tokens| tokens as f64), LEAST);
    }

    #[test]
    fn prompts_alone_are_run_in_large_parts() {
        let part = settled(0, |tokens| 0.02 + 1e-4 * tokens as f64);
        assert!((1024..=2300).contains(&part), "{part}");
        assert_eq!(PassTimes::default().prompt_tokens(0, 1, 4096), FIRST);
        assert_eq!(PassTimes::default().prompt_tokens(3, 1, 10), 10);
    }

    #[test]
    fn a_pass_that_was_slow_once_is_tried_again() {
        let mut times = PassTimes::default();
        let seconds = |tokens: usize| Duration::from_secs_f64(0.02 + 1e-5 * tokens as f64);
        let run = |times: &mut PassTimes, passes: usize| {
            for _ in 0..passes {
                let tokens = 1 + times.prompt_tokens(1, 1, 768);
                times.passed(tokens, true, seconds(tokens));
                times.passed(1, false, seconds(1));
            }
        };
        run(&mut times, 50);
        assert!(times.prompt_tokens(1, 1, 768) >= 767);
        times.passed(769, true, Duration::from_secs(2));
        assert!(times.prompt_tokens(1, 1, 768) < 767);
        run(&mut times, 700);
        assert!(times.prompt_tokens(1, 1, 768) >= 767);
    }
}
