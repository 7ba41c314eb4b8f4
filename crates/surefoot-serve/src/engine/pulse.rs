//! What the engine tells the journal: now and then how much was done, not every request.
//!
//! Guarded work tells of every pass; at thousands of passes a second that would be all that a
//! journal holds. So an engine's footing gets a journal that passes on what matters (faults,
//! rungs, how they ended) and leaves out passes that just worked; these are summed up in a note
//! a few times a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use surefoot::Footing;
use surefoot::journal::{Event, EventKind, Journal};

use super::resident::Resident;
use crate::metrics::{Counts, Metrics};

/// The least time between two notes.
const EVERY: Duration = Duration::from_millis(250);

/// A journal for an engine's footing: tells `metrics` of everything, and `journal` of all but
/// the passes that just worked.
pub fn quiet(journal: Journal, metrics: Arc<Metrics>) -> Journal {
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

/// Tells how much was done since it last told, and how full the device is.
pub(crate) struct Pulse {
    journal: Journal,
    metrics: Arc<Metrics>,
    resident: Arc<Resident>,
    footing: Arc<Footing>,
    told: Mutex<(Instant, Counts)>,
    telling: AtomicBool,
}

impl Pulse {
    pub(crate) fn new(
        journal: Journal,
        metrics: Arc<Metrics>,
        resident: Arc<Resident>,
        footing: Arc<Footing>,
    ) -> Self {
        let told = Mutex::new((Instant::now(), Counts::default()));
        Self { journal, metrics, resident, footing, told, telling: AtomicBool::new(false) }
    }

    /// Tells, if it is time to.
    pub(crate) fn beat(&self) {
        if self.journal.is_on() && !self.telling.swap(true, Ordering::Acquire) {
            self.tell(EVERY);
            self.telling.store(false, Ordering::Release);
        }
    }

    /// Tells what is left to tell.
    pub(crate) fn last(&self) {
        self.tell(Duration::ZERO);
    }

    fn tell(&self, every: Duration) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.0.elapsed() < every {
            return;
        }
        let now = self.metrics.counts();
        let since = now.since(&told.1);
        if since == Counts::default() {
            return;
        }
        // Time without a pass is no work; passes at the same time are no more than the time.
        let time = Duration::from_micros(since.busy_micros).min(told.0.elapsed());
        *told = (Instant::now(), now);
        let device = self.resident.device();
        let memory = self.footing.memory().into_iter().find(|(name, ..)| Some(*name) == device);
        self.journal.with(|| {
            let event = Event::new(EventKind::Note, "serve");
            let event = match memory {
                Some((name, in_use, _)) => event.device(name.to_string()).context("in_use", in_use),
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
        });
    }
}
