//! Leases, once-cells and a batching queue, free of any device so that they can be model-checked.
//!
//! - [`Pool`]: lanes leased to one caller at a time, first come first served.
//! - [`Hands`]: threads that work the lanes of a pool for callers that would have to wait.
//! - [`OnceMap`]: what has to happen once per key happens once, and only its own key waits.
//! - [`Climb`]: how many of the lanes pay, found from the rates that are measured.
//! - [`BatchQueue`]: requests that are run together, with deadlines and cancellation.
//!
//! None of them holds a lock while a caller's code runs. All threads and all time come through one
//! module, `sync`, in which the features `loom` and `shuttle` put a model checker's.

mod batch_queue;
mod climb;
mod hands;
mod meter;
mod once_map;
mod patience;
mod pool;
mod request;
mod sync;

pub use batch_queue::{Batch, BatchQueue, Next};
pub use climb::Climb;
pub use hands::Hands;
pub use meter::Reading;
pub use once_map::{Begun, OnceMap, Turn};
pub use patience::Patience;
pub use pool::{Lease, Pool, PoolStatistics};
pub use request::{Refused, Request, Ticket};
