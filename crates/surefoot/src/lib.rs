//! Surefoot's core: what a process stands on when it runs work on devices that can fail.

pub mod device;
pub mod fault;
pub mod place;
