//! The latest events in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Event;

#[derive(Debug)]
pub(super) struct Ring {
    capacity: usize,
    events: Mutex<VecDeque<Event>>,
}

impl Ring {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, events: Mutex::default() }
    }

    pub(super) fn push(&self, event: Event) {
        let mut events = self.lock();
        // The oldest one is dropped after the lock is released, since that frees memory.
        let oldest = if events.len() == self.capacity { events.pop_front() } else { None };
        events.push_back(event);
        drop(events);
        drop(oldest);
    }

    pub(super) fn recent(&self) -> Vec<Event> {
        self.lock().iter().cloned().collect()
    }

    /// A panic while pushing leaves the queue whole, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::EventKind;

    #[test]
    fn keeps_the_latest_in_order() {
        let ring = Ring::new(3);
        for number in 0..10 {
            ring.push(Event::new(EventKind::Note, number.to_string()));
        }
        let ops: Vec<_> = ring.recent().into_iter().map(|event| event.op).collect();
        assert_eq!(ops, ["7", "8", "9"]);
    }
}
