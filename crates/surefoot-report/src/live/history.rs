//! The events of a run that is watched: the latest ones, numbered, for any number of readers.
//!
//! The thread that records an event only takes a short lock and pushes; it never waits for a
//! reader. Each reader has its own place and takes what came since. A reader that is so slow
//! that its next event was dropped is told how many it missed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surefoot::journal::Event;
use tokio::sync::watch;

/// Events that are kept for pages that are opened or reloaded later.
const KEPT: usize = 200_000;

/// Shared by the journal's listener and the server.
#[derive(Debug)]
pub(super) struct History {
    kept: Mutex<Kept>,
    capacity: usize,
    /// Changes when the run has ended.
    ended: watch::Sender<bool>,
    readers: Mutex<usize>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Arc<Event>>,
    /// The number of the first one.
    first: u64,
}

/// What came since a reader's place.
#[derive(Debug)]
pub(super) struct News {
    /// The number of the first event.
    pub(super) number: u64,
    pub(super) events: Vec<Arc<Event>>,
    /// Events before it that the reader never got.
    pub(super) lost: u64,
}

impl Default for History {
    fn default() -> Self {
        Self::with_capacity(KEPT)
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

    /// Keeps an event; the oldest goes if there are too many.
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

    /// At most `most` events from `place` on.
    pub(super) fn since(&self, place: u64, most: usize) -> News {
        let kept = self.lock();
        let number = place.max(kept.first);
        let skip = usize::try_from(number - kept.first).unwrap_or(usize::MAX);
        let events = kept.events.iter().skip(skip).take(most).cloned().collect();
        News { number, events, lost: number - place }
    }

    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns when the run has ended or `time` is over.
    pub(super) async fn ended_within(&self, time: Duration) {
        let mut ended = self.ended.subscribe();
        let _ = tokio::time::timeout(time, ended.wait_for(|ended| *ended)).await;
    }

    /// Counts a reader until the guard is dropped.
    pub(super) fn join(self: &Arc<Self>) -> Reader {
        *self.readers.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Reader(Arc::clone(self))
    }

    /// Waits until all readers have left, or `time` is over.
    pub(super) fn wait_for_readers(&self, time: Duration) {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.left.wait_timeout_while(readers, time, |readers| *readers > 0));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader that is there.
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
    use surefoot::journal::EventKind;

    fn push(history: &History, numbers: std::ops::Range<u64>) {
        numbers.for_each(|n| history.push(&Event::new(EventKind::Note, n.to_string())));
    }

    fn ops(news: &News) -> Vec<&str> {
        news.events.iter().map(|event| &*event.op).collect()
    }

    #[test]
    fn a_reader_gets_what_came_since_in_order_and_piece_by_piece() {
        let history = History::with_capacity(10);
        push(&history, 0..5);
        let first = history.since(0, 3);
        assert_eq!((first.number, first.lost, ops(&first)), (0, 0, vec!["0", "1", "2"]));
        let rest = history.since(3, 100);
        assert_eq!((rest.number, ops(&rest)), (3, vec!["3", "4"]));
        assert!(history.since(5, 100).events.is_empty());
    }

    #[test]
    fn a_slow_reader_is_told_what_it_missed() {
        let history = History::with_capacity(10);
        push(&history, 0..5);
        assert_eq!(history.since(0, 2).events.len(), 2);
        push(&history, 5..40);
        let news = history.since(2, 3);
        assert_eq!((news.number, news.lost, ops(&news)), (30, 28, vec!["30", "31", "32"]));
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
