//! Building blocks for many threads that share one device: leases, worker threads, once-cells and a
//! batching queue. Nothing here knows a device, so all of it can be model-checked.
//!
//! - [`Pool`]: lanes leased to one caller at a time, first come, first served.
//! - [`WorkerPool`]: threads that run work on a pool's lanes for callers that would have to wait.
//! - [`OnceMap`]: what has to happen once per key happens once, and only callers of that key wait.
//! - [`LaneTuner`]: how many lanes give the highest throughput, from measured rates.
//! - [`BatchQueue`]: requests that are run together, with deadlines and cancellation.
//!
//! Most programs want `surefoot_serve::lanes::Lanes`, which puts the first four together on a device.
//! Used alone, they look like this:
//!
//! ```
//! use std::sync::Arc;
//! use surefoot_lanes::{OnceMap, Patience, Pool, WorkerPool};
//!
//! let pool = Arc::new(Pool::new(2));
//! let workers = Arc::new(WorkerPool::new(Arc::clone(&pool)));
//! let compiled: Arc<OnceMap<&str, u32>> = Arc::new(OnceMap::new());
//! let callers: Vec<_> = (0..8)
//!     .map(|number| {
//!         let (workers, compiled) = (Arc::clone(&workers), Arc::clone(&compiled));
//!         std::thread::spawn(move || {
//!             // Once for all eight callers.
//!             let base = compiled.get_or_try_make(&"model", || Ok::<_, ()>(100)).unwrap();
//!             // At most two of these run at the same time.
//!             workers.run(Patience::Forever, move |_lane| base + number).unwrap()
//!         })
//!     })
//!     .collect();
//! let sum: u32 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
//! assert_eq!(sum, 828);
//! assert_eq!(compiled.initialisations(), 1);
//! ```
//!
//! No lock is held while a caller's code runs. All threads and all time come through one module,
//! `sync`, in which the features `loom` and `shuttle` substitute a model checker's.

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod batch_queue;
mod lane_tuner;
mod meter;
mod once_map;
mod patience;
mod pool;
mod request;
mod sync;
mod worker_pool;

pub use batch_queue::{BatchQueue, Next, RequestBatch};
pub use lane_tuner::LaneTuner;
pub use meter::Reading;
pub use once_map::{Begun, OnceMap, Turn};
pub use patience::Patience;
pub use pool::{Lease, Pool, PoolStatistics};
pub use request::{Refused, Request, Ticket};
pub use worker_pool::WorkerPool;
