//! What the core knows of devices: their names, how far they can be trusted, and their memory.
//! How to find, open and probe one is the engine's business.

mod control_group;
pub mod health;
pub mod memory;
mod name;

pub use name::{Backend, DeviceName, NameError, Selector};
