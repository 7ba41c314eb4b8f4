//! What the engine writes to the journal: a summary a few times a second, not every request.
//!
//! A guarded run writes an event for every pass; at thousands of passes a second a journal would hold
//! nothing else. So an engine's footing gets a journal that passes on what matters (faults,
//! rungs, how they ended) and leaves out passes that just worked; these are summed up in a note
//! a few times a second.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use surefoot::FaultKind;
use surefoot::device::DeviceName;
use surefoot::fault::{PanicRecord, catch};
use surefoot::journal::{Event, EventKind, Journal};
use surefoot_models::runner::Runner;

use crate::metrics::{Counts, Metrics};

/// The least time between two notes.
const EVERY: Duration = Duration::from_millis(250);
/// The least time between two measurements of memory: the system takes milliseconds to add up that of the CPU, and whoever
/// is decoded waits for it.
const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// A journal for an engine's footing: tells `metrics` of everything, and `journal` of all but
/// the passes that just worked.
pub fn without_single_passes(journal: Journal, metrics: Arc<Metrics>) -> Journal {
    Journal::builder()
        .listener(move |event| {
            metrics.heard(event);
            let plain =
                event.kind == EventKind::Step && event.fault.is_none() && event.recovery.is_none();
            if !plain {
                journal.with(|| event.clone());
            }
        })
        .build()
}

/// Tells how much was done since it last reported, and how full the device is.
pub(crate) struct ActivityLog {
    journal: Journal,
    metrics: Arc<Metrics>,
    runner: Arc<Runner>,
    reported: Mutex<Reported>,
}

/// What was told last, and the memory that was in use when it was measured last.
struct Reported {
    at: Instant,
    counts: Counts,
    memory: Option<(Instant, DeviceName, u64)>,
}

impl ActivityLog {
    pub(crate) fn new(journal: Journal, metrics: Arc<Metrics>, runner: Arc<Runner>) -> Self {
        let reported = Reported { at: Instant::now(), counts: Counts::default(), memory: None };
        let reported = Mutex::new(reported);
        Self { journal, metrics, runner, reported }
    }

    /// Tells, if it is time to and no other thread is doing so.
    pub(crate) fn report_if_due(&self) {
        if !self.journal.is_on() {
            return;
        }
        match self.reported.try_lock() {
            Ok(mut reported) => self.report(&mut reported, EVERY),
            Err(TryLockError::Poisoned(reported)) => self.report(&mut reported.into_inner(), EVERY),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Tells what is left to tell.
    pub(crate) fn report_rest(&self) {
        self.report(
            &mut self.reported.lock().unwrap_or_else(PoisonError::into_inner),
            Duration::ZERO,
        );
    }

    /// Records a panic outside of guarded work: a defect of the program.
    pub(crate) fn panicked(&self, operation: &'static str, panic: &PanicRecord) {
        let message = format!("panicked at {}: {}", panic.place, panic.message);
        let record = || {
            Event::new(EventKind::Fault, operation)
                .fault(FaultKind::NotDeviceRelated, message)
                .context("thread", panic.thread.clone())
        };
        // What listens to the journal may be what panicked.
        let _ = catch(|| self.runner.footing().journal().with(record));
    }

    fn report(&self, reported: &mut Reported, every: Duration) {
        if reported.at.elapsed() < every {
            return;
        }
        let now = self.metrics.counts();
        let since = now.since(&reported.counts);
        if since == Counts::default() {
            return;
        }
        // Time without a pass is no work; passes at the same time are no more than the time.
        let time = Duration::from_micros(since.busy_micros).min(reported.at.elapsed());
        (reported.at, reported.counts) = (Instant::now(), now);
        let device = self.runner.device();
        let is_recent = |measured: &(Instant, DeviceName, u64)| {
            measured.0.elapsed() < MEASURE_EVERY && Some(measured.1) == device
        };
        if !reported.memory.as_ref().is_some_and(is_recent) {
            let all = self.runner.footing().memory();
            let found = all.into_iter().find(|(name, ..)| Some(*name) == device);
            reported.memory = found.map(|(name, in_use, _)| (Instant::now(), name, in_use));
        }
        let memory = reported.memory;
        self.journal.with(|| {
            let event = Event::new(EventKind::Note, "serve");
            let event = match memory {
                Some((_, name, in_use)) => event.device(name.to_string()).context("in_use", in_use),
                None => event,
            };
            let levels = self.metrics.levels();
            let event = match levels.pages {
                Some(pages) => event
                    .context("pages", pages.live)
                    .context("idle_pages", pages.idle)
                    .context("most_pages", pages.most)
                    .context("waiting", levels.waiting),
                None => event,
            };
            event
                .duration(time)
                .context("accepted", since.accepted)
                .context("finished", since.finished)
                .context("failed", since.failed)
                .context("cancelled", since.cancelled)
                .context("refused", since.refused)
                .context("batches", since.batches)
                .context("rows", since.rows)
                .context("tokens", since.tokens)
                .context("started", since.started)
                .context("prefix_hits", since.prefix_hits)
                .context("preemptions", since.preemptions)
                .context("accepted_proposals", since.accepted_proposals)
                .context("rejected_proposals", since.rejected_proposals)
        });
    }
}
