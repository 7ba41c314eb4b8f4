//! Leases, once-cells and a batching queue, free of any device so that they can be model-checked.
//!
//! - [`Pool`]: lanes leased to one caller at a time, first come first served.
//! - [`OnceMap`]: what has to happen once per key happens once, and only its own key waits.
//! - [`BatchQueue`]: requests that are run together, with deadlines and cancellation.
//!
//! None of them holds a lock while a caller's code runs. All threads and all time come through one
//! module, `sync`, in which the features `loom` and `shuttle` put a model checker's.

mod batch_queue;
mod once_map;
mod pool;
mod request;
mod sync;

pub use batch_queue::{Batch, BatchQueue, Next};
pub use once_map::OnceMap;
pub use pool::{Lease, Pool, PoolStatistics};
pub use request::{Refused, Request, Ticket};
