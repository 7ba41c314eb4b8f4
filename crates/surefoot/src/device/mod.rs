//! The devices of this machine: their names, finding and opening them, probing them for real,
//! their health and memory, and a supervisor for work that may take the process down.
//!
//! This is the only room that asks which backend it is on.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod discover;
pub mod health;
#[cfg(any(feature = "gpu", feature = "cuda", target_os = "macos"))]
mod kept;
pub mod memory;
mod name;
mod open;
pub mod probe;
mod stream;
pub mod supervisor;

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod wgpu;

pub use name::{Backend, DeviceName, NameError, Selector};
pub use open::{DeviceInfo, DeviceKind, OpenDevice, open};
pub use stream::Stream;
