//! What a tensor library brings so that the core can choose devices, guard work and recover.
//!
//! Burn (crate `surefoot`), PyTorch (crate `surefoot-python`) and a fake engine of plain vectors
//! (crate `testkit`) implement [`Engine`]; one conformance suite runs on all of them. The core
//! calls an engine from any thread and never holds a lock of its own while it does.

use std::fmt;
use std::sync::Arc;

use crate::device::{DeviceName, NameError};
use crate::fault::{BoxError, Fault, PanicRecord};
use crate::place::{Spot, Target};
use crate::precision::{Dtype, Precision, Resolved};

/// A tensor library, as the core sees it.
pub trait Engine: fmt::Debug + Send + Sync + Sized + 'static {
    /// An open device with what the engine keeps for it.
    type Device: fmt::Debug + Send + Sync;
    /// What work computes on: the library's own handle of a device.
    type Handle: Clone + PartialEq + fmt::Debug + Send + Sync;
    /// The library's own element type.
    type ElementType: Clone + PartialEq + fmt::Debug;

    /// The devices that `auto` considers, best first, each with why it is passed over if it is.
    fn candidates(&self) -> Vec<Candidate>;

    /// The device that `name` stands for in this build, or why there is none.
    fn resolve(&self, name: DeviceName) -> Result<DeviceName, NameError>;

    /// Opens a device, once per process. Never panics: whatever stops it is a fault.
    fn open(&self, name: DeviceName) -> Result<Arc<Self::Device>, Fault>;

    /// Checks that the device stores numbers and computes with them.
    fn probe(&self, device: &Self::Device) -> Result<(), Fault>;

    /// What the device is called.
    fn name(&self, device: &Self::Device) -> DeviceName;

    /// What the hardware is called.
    fn hardware(&self, device: &Self::Device) -> String;

    /// What work computes on.
    fn handle<'d>(&self, device: &'d Self::Device) -> &'d Self::Handle;

    /// Whether work goes on after a call returns, so that its errors show only when a result is
    /// read.
    fn is_asynchronous(&self, device: &Self::Device) -> bool;

    /// The dtype to compute in. A precision that was asked for by name and does not work is a
    /// fault, not a silent change.
    fn settle_precision(&self, device: &Self::Device, wanted: Precision)
    -> Result<Resolved, Fault>;

    /// Whether the device computes right numbers in `dtype`.
    fn computes_in(&self, device: &Self::Device, dtype: Dtype) -> bool;

    /// Bytes in use on the device by this process, measured now.
    fn memory_in_use(&self, device: &Self::Device) -> u64;

    /// The most bytes that were ever in use.
    fn memory_peak(&self, device: &Self::Device) -> u64;

    /// Bytes that the device has in all, if it can be known.
    fn memory_total(&self, device: &Self::Device) -> Option<u64>;

    /// Bytes that could still be allocated, if it can be known.
    fn memory_available(&self, device: &Self::Device) -> Option<u64>;

    /// Whether the device's memory is the host's.
    fn shares_host_memory(&self, device: &Self::Device) -> bool;

    /// Returns memory that nothing uses; gives the bytes that came back.
    fn reclaim(&self, device: &Self::Device) -> u64;

    /// Whether what is at `spot` has to move or change for work on `target`; a fault if it may
    /// not.
    fn is_misplaced(&self, spot: &Spot<Self>, target: &Target<Self>) -> Result<bool, Fault>;

    /// Turns an error or a panic of guarded work into a fault: known types decide first, then
    /// texts.
    fn classify(&self, operation: &str, failure: Failure) -> Fault;
}

/// A device that `auto` considers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device.
    pub name: DeviceName,
    /// Why it is not used; none if it can be.
    pub passed_over: Option<String>,
}

/// How guarded work failed.
#[derive(Debug)]
pub enum Failure {
    /// It returned an error.
    Error(BoxError),
    /// It panicked.
    Panic(PanicRecord),
}
