//! What waits in a [`BatchQueue`](crate::BatchQueue), and what its owner holds meanwhile.

use std::time::Duration;

use thiserror::Error;

use crate::sync::{Arc, AtomicBool, Instant, Ordering};

/// One request, with what it carries.
#[derive(Debug)]
pub struct Request<T> {
    /// What it carries.
    pub item: T,
    id: u64,
    arrived: Instant,
    deadline: Option<Instant>,
    cancelled: Arc<AtomicBool>,
}

impl<T> Request<T> {
    pub(crate) fn new(id: u64, item: T, arrived: Instant, deadline: Option<Instant>) -> Self {
        Self { item, id, arrived, deadline, cancelled: Arc::new(AtomicBool::new(false)) }
    }

    /// Its number in the order of arrival.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// When it was pushed.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// When its owner stops caring.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether its deadline has passed at `now`.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether its owner called it off, also after it was taken.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// When it must stop waiting for company: after `max_wait`, or at once where its deadline
    /// comes before that.
    pub(crate) fn due(&self, max_wait: Duration) -> Instant {
        let due = self.arrived + max_wait;
        match self.deadline {
            Some(deadline) if deadline < due => self.arrived,
            _ => due,
        }
    }
}

/// The owner's hold on a request, to cancel it.
#[derive(Clone, Debug)]
pub struct Ticket<K> {
    key: K,
    id: u64,
    cancelled: Arc<AtomicBool>,
}

impl<K> Ticket<K> {
    pub(crate) fn new<T>(key: K, request: &Request<T>) -> Self {
        Self { key, id: request.id, cancelled: Arc::clone(&request.cancelled) }
    }

    /// The key that it waits under.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Its number in the order of arrival.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn mark_cancelled(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

/// Why a request was not taken into the queue. The item comes back.
#[derive(Error)]
pub enum Refused<T> {
    /// As many wait as may.
    #[error("the queue is full")]
    Full(T),
    /// It takes no more.
    #[error("the queue is closed")]
    Closed(T),
}

impl<T> std::fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full",
            Self::Closed(_) => "Closed",
        })
    }
}

impl<T> Refused<T> {
    /// What was to be queued.
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }
}
