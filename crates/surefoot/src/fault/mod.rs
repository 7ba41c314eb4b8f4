//! Faults of Burn's devices. The kinds and [`Fault`] are the core's; what is here turns Burn's and
//! cubecl's errors and panics into them.
//!
//! Where an error's type can be reached, it decides. Burn flattens many of cubecl's errors to text
//! of a fixed form; only what comes as text alone is read as text.

mod classify;

pub use classify::{from_error, from_panic};
pub use surefoot_core::engine::Failure;
pub use surefoot_core::fault::{
    BoxError, Fault, FaultKind, PanicRecord, Response, UnknownKind, catch, install_hook, raise,
    take_device_panics,
};
pub use surefoot_explain::{Explanation, MAX_TEXT, explain};
