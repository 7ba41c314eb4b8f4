//! Recovery: a guarded piece of work, the ladder it climbs down when it fails, and the policy
//! that says which rungs it may use.
//!
//! The protocol of one guarded run:
//!
//! 1. a device is chosen (the first of the chain that is not lost) and the inputs are placed;
//! 2. the closure runs; its panic or error is caught; its result is confirmed by reading a
//!    value that depends on all of it;
//! 3. a fault is classified and told, the device's health noted, and the ladder asked for the
//!    next rung that the policy allows and the work can take;
//! 4. the rung changes how the work runs (less memory in use, smaller parts, recomputed
//!    activations, another dtype, streamed weights, another device) and 1 to 3 repeat;
//! 5. without a rung left, the fault goes to the caller with the story of the ones before it.
//!
//! A closure may run several times, so nothing it does may be visible outside until it
//! returns.

mod batch;
mod confirm;
mod drill;
mod guard;
mod ladder;
mod policy;
mod segment;
mod split;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Part};
pub use confirm::Confirm;
pub use drill::{Drill, DrillError};
pub use guard::{Step, Task};
pub use policy::{Policy, Rung, UnknownRung};

pub(crate) use segment::Segments;
pub(crate) use split::SplitMemory;
