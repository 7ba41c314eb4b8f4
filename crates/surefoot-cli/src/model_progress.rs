//! How far a model is: first with loading what stays, then with its passes. A bar on a terminal,
//! a line now and then elsewhere, with bytes and tokens a second and what limits. Short work shows
//! nothing.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use surefoot::device::memory::Bytes;
use surefoot_models::stream::meter::{Meter, Reading};

use crate::terminal::say;

const QUIET_START: Duration = Duration::from_millis(800);
const TICK: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(15);
/// Rates are of the time since this ago, so that they neither jump nor lag.
const LOOK_BACK: Duration = Duration::from_secs(3);

/// What there is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journey {
    /// Bytes that are loaded first.
    pub(crate) load_bytes: u64,
    /// Blocks of a pass.
    pub(crate) blocks: u64,
    /// Passes, at most.
    pub(crate) passes: u64,
}

impl Journey {
    /// How far it is in all, and where it is now, in the unit of the phase; and in words.
    fn stage(&self, now: &Reading) -> (u64, u64, String) {
        if now.blocks == 0 && now.file_bytes < self.load_bytes {
            let words = format!("loading {} of {}", Bytes(now.file_bytes), Bytes(self.load_bytes));
            return (self.load_bytes, now.file_bytes, words);
        }
        let blocks = self.blocks * self.passes;
        let at = now.blocks.min(blocks);
        let words = match self.passes {
            0 | 1 => format!("block {at}/{blocks}"),
            passes => format!(
                "pass {}/{passes}, block {}/{}",
                (at / self.blocks.max(1) + 1).min(passes),
                at - (at / self.blocks.max(1)).min(passes - 1) * self.blocks,
                self.blocks
            ),
        };
        (blocks, at, words)
    }

    /// What is said of the time between two readings.
    fn told(&self, before: &Reading, now: &Reading, seconds: f64) -> String {
        let (_, _, words) = self.stage(now);
        let rate = (now.file_bytes - before.file_bytes) as f64 / seconds / 1e9;
        if now.blocks == 0 && now.tokens == 0 {
            return format!("{words}, {rate:.2} GB/s");
        }
        // Tokens are done at the end of a pass.
        let speed = match now.tokens - before.tokens {
            0 => String::new(),
            tokens => format!(" {:.1} tokens/s,", tokens as f64 / seconds),
        };
        let limit = now.limit_since(before, seconds);
        format!("{words}, {rate:.2} GB/s,{speed} limited by {limit}")
    }
}

/// Shows how far it is until it is dropped.
pub(crate) struct Progress {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub(crate) fn start(meter: Arc<Meter>, journey: Journey) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || show(&meter, &journey, &stop))
        };
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only draws: if it failed, the work didn't.
            let _ = thread.join();
        }
    }
}

fn show(meter: &Meter, journey: &Journey, stop: &AtomicBool) {
    let begun = Instant::now();
    std::thread::park_timeout(QUIET_START);
    if stop.load(Ordering::Relaxed) {
        return;
    }
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        match ProgressStyle::with_template("{bar:24} {wide_msg}") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    });
    let mut seen = VecDeque::from([(begun, Reading::default())]);
    let mut line_at = begun;
    while !stop.load(Ordering::Relaxed) {
        let (time, now) = (Instant::now(), meter.read());
        while seen.len() > 1 && time.duration_since(seen[0].0) > LOOK_BACK {
            seen.pop_front();
        }
        let (from, before) = seen[0];
        let seconds = time.duration_since(from).as_secs_f64().max(1e-3);
        seen.push_back((time, now));
        match &bar {
            Some(bar) => {
                let (length, at, _) = journey.stage(&now);
                bar.set_length(length);
                bar.set_position(at);
                bar.set_message(journey.told(&before, &now, seconds));
            }
            None if line_at.elapsed() >= LINE_EVERY => {
                say(&journey.told(&before, &now, seconds));
                line_at = time;
            }
            None => {}
        }
        std::thread::park_timeout(TICK);
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_is_told_first_then_blocks_and_passes() {
        let journey = Journey { load_bytes: 1 << 20, blocks: 4, passes: 3 };
        let at = |file_bytes, blocks, tokens| Reading {
            file_bytes,
            blocks,
            tokens,
            ..Reading::default()
        };
        let told = |now: &Reading| journey.told(&Reading::default(), now, 2.0);
        assert_eq!(told(&at(1 << 19, 0, 0)), "loading 512 KiB of 1.00 MiB, 0.00 GB/s");
        let words = told(&at(4_000_000_000, 5, 10));
        assert_eq!(words, "pass 2/3, block 1/4, 2.00 GB/s, 5.0 tokens/s, limited by compute");
        assert_eq!(journey.stage(&at(0, 12, 0)).0, journey.stage(&at(1 << 20, 12, 0)).1);
        let words = told(&at(1 << 20, 12, 0));
        assert_eq!(words, "pass 3/3, block 4/4, 0.00 GB/s, limited by compute");
    }
}
