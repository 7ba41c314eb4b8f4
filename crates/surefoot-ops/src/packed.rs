//! Many flat tensors in one, so that one launch does what many would.
//!
//! On devices of CubeCL a launch costs tens of microseconds of the host's time, and an optimizer's update of each parameter
//! alone takes more launches than the rest of a training step. [`Packed`] holds tensors one after another, each beginning
//! where a view may begin. On the processor nothing is gained, and [`Packed::new`] gives none.

#[cfg(not(any(feature = "gpu", target_os = "macos")))]
mod absent;
#[cfg(any(feature = "gpu", target_os = "macos"))]
mod arena;

#[cfg(not(any(feature = "gpu", target_os = "macos")))]
pub use absent::{Clip, Packed, adamw_packed, first_numbers};
#[cfg(any(feature = "gpu", target_os = "macos"))]
pub(crate) use arena::{AT_ONCE, padded};
#[cfg(any(feature = "gpu", target_os = "macos"))]
pub use arena::{Clip, Packed, adamw_packed, first_numbers};
