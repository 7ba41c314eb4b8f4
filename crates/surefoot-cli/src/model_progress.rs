//! Progress of a model run: first of loading weights, then of its passes. A bar on a terminal, a
//! line every few seconds elsewhere, with bytes and tokens a second and what limits them. Short work
//! shows nothing.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use surefoot::device::memory::Bytes;
use surefoot_models::runner::{AttemptEnd, AttemptStart, RunObserver};
use surefoot_models::stream::meter::{Meter, Reading};

use crate::terminal::say;

const QUIET_START: Duration = Duration::from_millis(800);
const TICK: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(15);
/// Rates are of the time since this ago, so that they neither jump nor lag.
const LOOK_BACK: Duration = Duration::from_secs(3);

/// Shows the progress of a runner's attempts, and says when one is repeated.
pub(crate) struct ProgressObserver {
    quiet: bool,
    hidden: AtomicBool,
    shown: Mutex<Option<Progress>>,
}

impl ProgressObserver {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, hidden: AtomicBool::new(quiet), shown: Mutex::new(None) }
    }

    /// Shows no progress from now on.
    pub(crate) fn hide(&self) {
        self.hidden.store(true, Ordering::Relaxed);
    }

    fn show(&self, progress: Option<Progress>) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }
}

impl RunObserver for ProgressObserver {
    fn attempt_started(&self, start: &AttemptStart<'_>) {
        // The last one may still be shown, if it ended in a panic.
        self.show(None);
        if start.number > 1 && !self.quiet {
            say(&format!(
                "try {}: {} on {}, {} of weights resident",
                start.number,
                start.request.name(),
                start.device,
                Bytes(start.plan.resident_bytes)
            ));
        }
        if !self.hidden.load(Ordering::Relaxed) {
            let extent = RunExtent {
                load_bytes: start.load_bytes,
                blocks: start.blocks as u64,
                passes: start.request.pass_count() as u64,
            };
            self.show(Some(Progress::start(Arc::clone(&start.meter), extent)));
        }
    }

    fn loading_failed(&self) {
        self.show(None);
    }

    fn attempt_ended(&self, _end: &AttemptEnd<'_>) {
        self.show(None);
    }
}

/// What there is to do.
#[derive(Clone, Copy, Debug)]
struct RunExtent {
    /// Bytes that are loaded first.
    load_bytes: u64,
    /// Blocks of a pass.
    blocks: u64,
    /// Passes, at most.
    passes: u64,
}

impl RunExtent {
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
struct Progress {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    fn start(meter: Arc<Meter>, extent: RunExtent) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || show(&meter, &extent, &stop))
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

fn show(meter: &Meter, extent: &RunExtent, stop: &AtomicBool) {
    let begun = Instant::now();
    // A model that was loaded before has counted its earlier runs.
    let start = meter.read();
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
        let (time, now) = (Instant::now(), meter.read().since(&start));
        while seen.len() > 1 && time.duration_since(seen[0].0) > LOOK_BACK {
            seen.pop_front();
        }
        let (from, before) = seen[0];
        let seconds = time.duration_since(from).as_secs_f64().max(1e-3);
        seen.push_back((time, now));
        match &bar {
            Some(bar) => {
                let (length, at, _) = extent.stage(&now);
                bar.set_length(length);
                bar.set_position(at);
                bar.set_message(extent.told(&before, &now, seconds));
            }
            None if line_at.elapsed() >= LINE_EVERY => {
                say(&extent.told(&before, &now, seconds));
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
        let extent = RunExtent { load_bytes: 1 << 20, blocks: 4, passes: 3 };
        let at = |file_bytes, blocks, tokens| Reading {
            file_bytes,
            blocks,
            tokens,
            ..Reading::default()
        };
        let told = |now: &Reading| extent.told(&Reading::default(), now, 2.0);
        assert_eq!(told(&at(1 << 19, 0, 0)), "loading 512 KiB of 1.00 MiB, 0.00 GB/s");
        let words = told(&at(4_000_000_000, 5, 10));
        assert_eq!(words, "pass 2/3, block 1/4, 2.00 GB/s, 5.0 tokens/s, limited by compute");
        assert_eq!(extent.stage(&at(0, 12, 0)).0, extent.stage(&at(1 << 20, 12, 0)).1);
        let words = told(&at(1 << 20, 12, 0));
        assert_eq!(words, "pass 3/3, block 4/4, 0.00 GB/s, limited by compute");
    }
}
