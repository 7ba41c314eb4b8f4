//! What a user of Surefoot can change about each kind of fault.

use super::FaultKind;

impl FaultKind {
    /// What to change when a fault of this kind ends a run, most useful first.
    pub fn advice(self) -> &'static [&'static str] {
        match self {
            Self::OutOfMemory => &[
                "Use a smaller batch, a shorter sequence or a smaller model.",
                "Raise the budget (--memory), or end other programs that hold memory.",
            ],
            Self::DeviceMismatch => {
                &["Move the model and all of its inputs to one device before the call."]
            }
            Self::DtypeMismatch => &["Cast the inputs to the dtype of the weights."],
            Self::UnsupportedDtype => {
                &["Use --precision fp32, or a device that computes in this dtype."]
            }
            Self::UnsupportedOp => {
                &["Run this operation on the CPU (--device cpu), or allow recovery to do so."]
            }
            Self::PlaceholderStorage => {
                &["Write or load the tensor on its device before it is read."]
            }
            Self::DeviceLost => &[
                "Start a new process: a lost device cannot be used again in this one.",
                "Use --isolate, so that a lost device costs a restart and not the run.",
                "If it happens again, check temperature, power and the driver's log.",
            ],
            Self::DriverOrInit => &[
                "Run `surefoot doctor` to see what this machine's devices can do.",
                "Use --device cpu until the driver works.",
            ],
            Self::KernelCompile => &["Update the driver, or use --device cpu for this model."],
            Self::CommandBuffer => {
                &["Try again with a smaller batch, and keep other work off this GPU."]
            }
            Self::ShapeMismatch => {
                &["Compare the shapes on both sides of the operation named here."]
            }
            Self::Numeric => &[
                "Use --precision fp32, a lower learning rate or gradient clipping.",
                "Check the inputs for NaN and infinity.",
            ],
            Self::DataLoading => {
                &["Check the file that is named here, and the format of the data."]
            }
            Self::ModelLoading => &[
                "Check that the file is complete: compare its size or checksum, or download it again.",
                "Check that the configuration belongs to this checkpoint.",
            ],
            Self::StateLost => &["Go on from the last checkpoint (--resume)."],
            Self::NotDeviceRelated => {
                &["Check the command, its files and its settings; another device will not help."]
            }
        }
    }
}
