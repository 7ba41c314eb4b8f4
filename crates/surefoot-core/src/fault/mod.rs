//! What can go wrong with a device, as one vocabulary for engines, the recovery ladder, the
//! journal and the program.
//!
//! An engine turns its own errors and panics into a [`Fault`] ([`crate::engine::Engine::classify`]):
//! the types that it knows decide first, [`kind_of_std`] knows those of the standard library, and
//! texts are read last. A `Fault` keeps the error it was made of as its [`source`](std::error::Error::source).

mod advice;
mod classify;
#[allow(clippy::module_inception, reason = "the module is named for its one type")]
mod fault;
mod kind;
mod panics;

pub use classify::{classify, kind_of_std};
pub use fault::{BoxError, Fault, Response};
pub use kind::{FaultKind, UnknownKind};
pub use panics::{PanicRecord, catch, install_hook, raise, take_device_panics};
