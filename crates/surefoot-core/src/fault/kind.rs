//! The kinds of fault: each is named for the recovery that would help.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What kind of fault this is. The kind decides which recovery can help, so an out-of-memory
/// that calls itself `CUBLAS_STATUS_ALLOC_FAILED` is still [`FaultKind::OutOfMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// Device or host memory ran out, or one buffer is over the device's limit.
    OutOfMemory,
    /// Operands live on different devices.
    DeviceMismatch,
    /// Operands have different element types.
    DtypeMismatch,
    /// The device can't compute in this element type.
    UnsupportedDtype,
    /// The device has no kernel for this operation.
    UnsupportedOp,
    /// Storage was read that was never written or allocated.
    PlaceholderStorage,
    /// The device, its context or its driver connection is gone.
    DeviceLost,
    /// The device could not be found or brought up.
    DriverOrInit,
    /// A kernel or shader did not compile, or doesn't fit the card.
    KernelCompile,
    /// A submitted command buffer failed, but the device may live on.
    CommandBuffer,
    /// Shapes don't fit each other: the caller's mistake.
    ShapeMismatch,
    /// Inf or NaN where a finite number is needed.
    Numeric,
    /// A loader, its workers or its shared memory failed.
    DataLoading,
    /// A model file is missing, damaged or of another shape.
    ModelLoading,
    /// The only copy of a run's state was on a device that is lost: the run must go back to an
    /// earlier state, since no retry of the same work can help.
    StateLost,
    /// An ordinary error that has nothing to do with a device.
    NotDeviceRelated,
}

impl FaultKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 16] = [
        Self::OutOfMemory,
        Self::DeviceMismatch,
        Self::DtypeMismatch,
        Self::UnsupportedDtype,
        Self::UnsupportedOp,
        Self::PlaceholderStorage,
        Self::DeviceLost,
        Self::DriverOrInit,
        Self::KernelCompile,
        Self::CommandBuffer,
        Self::ShapeMismatch,
        Self::Numeric,
        Self::DataLoading,
        Self::ModelLoading,
        Self::StateLost,
        Self::NotDeviceRelated,
    ];

    /// The name used in JSON, the journal and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::DeviceMismatch => "device_mismatch",
            Self::DtypeMismatch => "dtype_mismatch",
            Self::UnsupportedDtype => "unsupported_dtype",
            Self::UnsupportedOp => "unsupported_op",
            Self::PlaceholderStorage => "placeholder_storage",
            Self::DeviceLost => "device_lost",
            Self::DriverOrInit => "driver_or_init",
            Self::KernelCompile => "kernel_compile",
            Self::CommandBuffer => "command_buffer",
            Self::ShapeMismatch => "shape_mismatch",
            Self::Numeric => "numeric",
            Self::DataLoading => "data_loading",
            Self::ModelLoading => "model_loading",
            Self::StateLost => "state_lost",
            Self::NotDeviceRelated => "not_device_related",
        }
    }

    /// Whether running the same work again, here or on another device, can help. A caller's own
    /// mistake and a broken file stay broken, and state that is lost stays lost.
    pub fn is_retryable(self) -> bool {
        !self.is_callers() && self != Self::StateLost
    }

    /// Whether this is the caller's to correct: reported at once, never retried, never counted
    /// against a device.
    pub fn is_callers(self) -> bool {
        matches!(
            self,
            Self::ShapeMismatch | Self::DataLoading | Self::ModelLoading | Self::NotDeviceRelated
        )
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no fault kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a fault kind; the kinds are {names}", names = FaultKind::ALL.map(FaultKind::as_str).join(", "))]
pub struct UnknownKind(String);

impl FromStr for FaultKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_text_and_json() {
        for kind in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert!("oom".parse::<FaultKind>().is_err());
    }
}
