//! Taking requests in.

use std::hash::Hash;
use std::time::Instant;

use surefoot_lanes::{BatchQueue, Refused};

use super::error::EngineError;
use crate::metrics::Metrics;

/// Queues all of `items` or none. Those that nobody waits for any more make room first, if there
/// is none.
pub(super) fn submit_all<K: Eq + Hash + Clone, T>(
    queue: &BatchQueue<K, T>,
    items: Vec<(K, T)>,
    deadline: Option<Instant>,
    is_abandoned: impl Fn(&T) -> bool,
    metrics: &Metrics,
) -> Result<(), EngineError> {
    let mut queued = queue.push_all(items, deadline);
    if let Err(Refused::Full(items)) = queued {
        for _ in queue.take_if(is_abandoned) {
            metrics.cancelled();
        }
        queued = queue.push_all(items, deadline);
    }
    queued.map_err(|refused| match refused {
        Refused::Full(_) => EngineError::Full(queue.capacity()),
        Refused::Closed(_) => EngineError::Closed,
    })
}
