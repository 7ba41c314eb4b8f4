//! Surefoot's core: what a process needs to run work on devices that can fail, for any tensor
//! library.
//!
//! The core knows no tensors. A tensor library implements [`Engine`]: which devices
//! there are, how to open and probe one, its memory, how to place values and confirm results. On
//! that the core chooses a device ([`Footing`]), guards work and recovers it ([`recover`]), injects
//! faults on purpose ([`recover::Drill`]), keeps a memory budget ([`device::memory`]), records what
//! happened ([`journal`]) and restarts work in a child process ([`supervisor`]).
//!
//! ```
//! use surefoot_core::recover::{Drill, Rung};
//! use surefoot_core::{FaultKind, Footing};
//! // An engine of plain vectors for tests; `surefoot::Burn` is one for Burn's tensors.
//! use testkit::fake::Fake;
//!
//! // Memory runs out on purpose, once.
//! let drill = Drill::once(FaultKind::OutOfMemory, 0);
//! let footing: Footing<Fake> = Footing::builder().drill(drill).build()?;
//! let sum = footing.run("sum", |_step| Ok([1.0, 2.0, 3.0].iter().sum::<f64>()))?;
//! assert_eq!(sum.value, 6.0);
//! assert_eq!(sum.rungs, [Rung::Reclaim], "what it took");
//! # Ok::<(), surefoot_core::Fault>(())
//! ```
//!
//! People who write Burn use the crate `surefoot`, which implements the engine and re-exports
//! this crate.

#![cfg_attr(not(test), warn(clippy::expect_used))]

pub mod device;
pub mod engine;
pub mod fault;
mod footing;
pub mod journal;
pub mod place;
pub mod precision;
pub mod recover;
pub mod supervisor;

pub use engine::Engine;
pub use fault::{BoxError, Fault, FaultKind};
pub use footing::{Footing, FootingBuilder, Room};
