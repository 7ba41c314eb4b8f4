//! Recovery: a guarded piece of work, the ladder of ways to go on when it fails, and the policy
//! that says which of them it may use.
//!
//! The protocol of one guarded run:
//!
//! 1. a device is chosen (the first of the chain that is not lost) and the inputs are placed;
//! 2. the closure runs; its panic or error is caught; its result is confirmed by reading a
//!    value that depends on all of it;
//! 3. a fault is classified and recorded, the device's health noted, and the ladder asked for the
//!    next rung that the policy allows and the work can take;
//! 4. the rung changes how the work runs (less memory in use, smaller parts, recomputed
//!    activations, another dtype, streamed weights, another device) and 1 to 3 repeat;
//! 5. the run ends in an [`Outcome`]: the value and what happened on the way; without a rung left,
//!    in the fault, which keeps the ones before it.
//!
//! A closure may run several times, so nothing it does may be visible outside until it
//! returns.

mod batch;
mod confirm;
pub mod drill;
mod guard;
mod ladder;
mod outcome;
mod policy;
mod segment;
mod split;
mod split_memory;
mod step;

pub use batch::{Join, Part, Splittable};
pub use confirm::{Confirm, relative_gap};
pub use drill::{Drill, DrillError, Moment, Point};
pub use guard::Task;
pub use outcome::Outcome;
pub use policy::{Policy, Rung, UnknownRung};
pub use split::{Split, SplitWith};
pub use step::Step;

pub(crate) use segment::CpuSegments;
pub(crate) use split_memory::SplitMemory;
