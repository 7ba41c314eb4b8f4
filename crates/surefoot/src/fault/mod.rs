//! What can go wrong with a device, as one vocabulary for the classifier, the recovery
//! ladder, the journal and the program.
//!
//! An error becomes a [`Fault`] in one of two ways. Where its type can be reached, `classify`
//! reads the type: Burn's and cubecl's errors, io, safetensors. Where only text is left (a
//! panic's payload, an error that Burn flattened, another program's log), the text rules of
//! [`explain`] decide, and they say "not device related" rather than guess.

mod classify;
mod explain;
mod kind;
mod panics;
mod rules;
mod story;

pub(crate) use explain::kind_said;
pub use explain::{Explanation, MAX_TEXT, explain};
pub use kind::{FaultKind, UnknownKind};
pub use panics::{PanicRecord, catch};
pub use story::{BoxError, Fault};
