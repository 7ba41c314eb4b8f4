//! Surefoot's core: what a process stands on when it runs work on devices that can fail.

pub mod fault;
pub mod journal;
