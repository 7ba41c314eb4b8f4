//! A bounded buffer of the latest events of a run, with any number of readers.
//!
//! The thread that records an event takes a short lock and pushes; it never waits for a reader. Each
//! reader has its own position and takes the events since then. A reader that is so slow that its
//! next event was dropped gets the number of events that it missed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surefoot_core::journal::Event;
use tokio::sync::watch;

/// Events that are kept for pages that are opened or reloaded later.
const CAPACITY: usize = 200_000;

/// Shared by the journal's listener and the server.
#[derive(Debug)]
pub(super) struct History {
    kept: Mutex<Buffer>,
    capacity: usize,
    /// Changes when the run has ended.
    ended: watch::Sender<bool>,
    readers: Mutex<usize>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Buffer {
    events: VecDeque<Arc<Event>>,
    /// The number of the first one.
    first: u64,
}

/// The events since a reader's position.
#[derive(Debug)]
pub(super) struct NewEvents {
    /// The number of the first event.
    pub(super) number: u64,
    pub(super) events: Vec<Arc<Event>>,
    /// The number of events before it that the reader missed.
    pub(super) lost: u64,
}

impl Default for History {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl History {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            kept: Mutex::default(),
            capacity,
            ended: watch::Sender::new(false),
            readers: Mutex::new(0),
            left: Condvar::new(),
        }
    }

    /// Adds an event; drops the oldest if the buffer is full.
    pub(super) fn push(&self, event: &Event) {
        let event = Arc::new(event.clone());
        let mut kept = self.lock();
        let oldest = match kept.events.len() == self.capacity {
            true => kept.events.pop_front(),
            false => None,
        };
        kept.first += u64::from(oldest.is_some());
        kept.events.push_back(event);
        drop(kept);
        drop(oldest);
    }

    /// At most `most` events from `position` on.
    pub(super) fn since(&self, position: u64, most: usize) -> NewEvents {
        let kept = self.lock();
        let number = position.max(kept.first);
        let skip = usize::try_from(number - kept.first).unwrap_or(usize::MAX);
        let events = kept.events.iter().skip(skip).take(most).cloned().collect();
        NewEvents { number, events, lost: number - position }
    }

    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns when the run has ended, or after `time`.
    pub(super) async fn ended_within(&self, time: Duration) {
        let mut ended = self.ended.subscribe();
        let _ = tokio::time::timeout(time, ended.wait_for(|ended| *ended)).await;
    }

    /// Counts a reader until the guard is dropped.
    pub(super) fn join(self: &Arc<Self>) -> Reader {
        *self.readers.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Reader(Arc::clone(self))
    }

    /// Waits until all readers have left, at most for `time`.
    pub(super) fn wait_for_readers(&self, time: Duration) {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.left.wait_timeout_while(readers, time, |readers| *readers > 0));
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts as a reader while it exists.
#[derive(Debug)]
pub(super) struct Reader(Arc<History>);

impl Drop for Reader {
    fn drop(&mut self) {
        *self.0.readers.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_core::journal::EventKind;

    fn push(history: &History, numbers: std::ops::Range<u64>) {
        numbers.for_each(|n| history.push(&Event::new(EventKind::Note, n.to_string())));
    }

    fn ops(new: &NewEvents) -> Vec<&str> {
        new.events.iter().map(|event| &*event.op).collect()
    }

    #[test]
    fn a_reader_gets_new_events_in_order_and_in_chunks() {
        let history = History::with_capacity(10);
        push(&history, 0..5);
        let first = history.since(0, 3);
        assert_eq!((first.number, first.lost, ops(&first)), (0, 0, vec!["0", "1", "2"]));
        let rest = history.since(3, 100);
        assert_eq!((rest.number, ops(&rest)), (3, vec!["3", "4"]));
        assert!(history.since(5, 100).events.is_empty());
    }

    #[test]
    fn a_slow_reader_gets_the_number_of_missed_events() {
        let history = History::with_capacity(10);
        push(&history, 0..5);
        assert_eq!(history.since(0, 2).events.len(), 2);
        push(&history, 5..40);
        let new = history.since(2, 3);
        assert_eq!((new.number, new.lost, ops(&new)), (30, 28, vec!["30", "31", "32"]));
    }

    #[test]
    fn the_end_waits_for_readers_but_not_for_ever() {
        let history = Arc::new(History::default());
        let reader = history.join();
        let before = std::time::Instant::now();
        history.wait_for_readers(Duration::from_millis(30));
        assert!(before.elapsed() >= Duration::from_millis(30));
        drop(reader);
        history.wait_for_readers(Duration::from_secs(60));
        assert!(before.elapsed() < Duration::from_secs(30));
    }
}
