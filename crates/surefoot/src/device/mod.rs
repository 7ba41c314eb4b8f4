//! Burn's devices on this machine: finding, opening and probing them. Names, health, memory and
//! the supervisor for work that may take the process down are the core's, re-exported here.
//!
//! This is the only module that asks which backend it is on.

mod build;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod discover;
mod kernel_bundle;
#[cfg(any(feature = "gpu", feature = "cuda", target_os = "macos"))]
mod kernel_cache;
mod open;
pub mod probe;
mod stream;

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod wgpu;

pub use build::{is_in_build, named, resolve, select};
pub use kernel_bundle::{BundleError, LoadedKernels, keeps_kernels, load_kernels, save_kernels};
pub use open::{DeviceInfo, DeviceKind, OpenDevice, open};
pub use stream::Stream;
pub use surefoot_core::device::{Backend, DeviceName, NameError, Selector, health, memory};

/// Work in a child process. See [`surefoot_core::supervisor`].
pub mod supervisor {
    use std::process::Command;
    use std::time::Duration;

    pub use surefoot_core::supervisor::*;

    use crate::fault::Fault;

    /// A supervisor that understands what a dying process wrote to stderr.
    pub fn supervisor<'a>() -> Supervisor<'a> {
        Supervisor::default().kind_of_text(surefoot_explain::kind_of_text)
    }

    /// Runs `command` to its end and hands each line of its stdout to `on_line`. A crash, a hang
    /// beyond `limit` or a failed exit is a fault.
    pub fn run_probe(
        command: Command,
        limit: Duration,
        on_line: impl FnMut(&str),
    ) -> Result<(), Fault> {
        let kind_of_text = surefoot_explain::kind_of_text;
        surefoot_core::supervisor::run_probe(command, limit, kind_of_text, on_line)
    }
}
