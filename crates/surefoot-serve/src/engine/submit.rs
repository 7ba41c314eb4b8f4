//! Accepts requests into the engine's queues.

use std::hash::Hash;
use std::time::Instant;

use surefoot_lanes::{BatchQueue, Refused};

use super::error::EngineError;
use crate::metrics::Metrics;

/// Requests that were not taken in. Whoever waits for them has to be gone before they are dropped: a
/// request that is dropped while someone waits for it counts as lost.
pub(super) struct NotQueued<K, T> {
    pub(super) error: EngineError,
    pub(super) items: Vec<(K, T)>,
}

/// Queues all of `items` or none. Those that nobody waits for any more make room first, if there
/// is none.
pub(super) fn submit_all<K: Eq + Hash + Clone, T>(
    queue: &BatchQueue<K, T>,
    items: Vec<(K, T)>,
    deadline: Option<Instant>,
    is_abandoned: impl Fn(&T) -> bool,
    metrics: &Metrics,
) -> Result<(), NotQueued<K, T>> {
    let mut queued = queue.push_all(items, deadline);
    if let Err(Refused::Full(items)) = queued {
        for _ in queue.take_if(is_abandoned) {
            metrics.cancelled();
        }
        queued = queue.push_all(items, deadline);
    }
    queued.map_err(|refused| match refused {
        Refused::Full(items) => NotQueued { error: EngineError::Full(queue.capacity()), items },
        Refused::Closed(items) => NotQueued { error: EngineError::Closed, items },
    })
}
