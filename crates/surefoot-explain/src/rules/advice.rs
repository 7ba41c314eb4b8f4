//! What to say and do about each kind, whatever the message.

use super::FaultKind;

/// What to change when a fault of this kind happens, in whatever framework, most useful first.
pub(crate) fn advice_for(kind: FaultKind) -> &'static [&'static str] {
    match kind {
        FaultKind::OutOfMemory => &[
            "Free what is not needed any more: other processes, cached tensors, kept graphs.",
            "Use gradient checkpointing or a lower precision.",
            "Stream the weights or move part of the work to the CPU.",
        ],
        FaultKind::DeviceMismatch => &[
            "Move the model and all of its inputs to one device before the call.",
            "Look for tensors made inside the forward pass without a device.",
        ],
        FaultKind::DtypeMismatch => &[
            "Cast the inputs to the dtype of the weights, or run both under autocast.",
            "Look for a tensor made with the default dtype.",
        ],
        FaultKind::UnsupportedDtype => &[
            "Use a dtype that this device computes in: float32 always works.",
            "Run this part on the CPU, or on a device that has the dtype.",
        ],
        FaultKind::UnsupportedOp => &[
            "Run this operation on the CPU and bring its result back.",
            "Use a build made for this card, or another operation in its place.",
        ],
        FaultKind::PlaceholderStorage => &[
            "Give the tensor real storage before it is read: load or initialise it on its device.",
            "Move inputs and weights to the device before the call.",
        ],
        FaultKind::DeviceLost => &[
            "Start a new process: nothing on the lost device can be used again.",
            "Check indices and labels against their ranges, and run once with synchronous launches to find the operation.",
            "If it comes back, look at temperature, power, the driver's log and its watchdog.",
        ],
        FaultKind::DriverOrInit => &[
            "Check that the device is visible and its driver loaded (surefoot doctor).",
            "Match the driver, the toolkit and the build of the framework.",
            "Go on with the CPU until that is done.",
        ],
        FaultKind::KernelCompile => &[
            "Match compiler, toolkit and driver versions to the card.",
            "Turn compilation off for this part, or use a kernel that doesn't need it.",
        ],
        FaultKind::CommandBuffer => &[
            "Run it again with less work per submission: a smaller batch, fewer steps between syncs.",
            "Keep one thread per command buffer, and don't reuse one that was committed.",
            "Keep the display's work off this GPU, or run this part on the CPU.",
        ],
        FaultKind::ShapeMismatch => &[
            "Print the shapes on both sides of the operation named here and correct the caller.",
            "No device and no retry will help.",
        ],
        FaultKind::Numeric => &[
            "Run the step in float32 (at least norms, softmax and loss) and look where the first NaN appears.",
            "Lower the learning rate, clip gradients, check the inputs for NaN.",
        ],
        FaultKind::DataLoading => &[
            "Run the loader with no workers to see its own error.",
            "Give it more shared memory (--shm-size, --ipc=host) or fewer workers.",
        ],
        FaultKind::ModelLoading => &[
            "Check that the file is complete: compare its size or checksum, or download it again.",
            "Check that the architecture and its configuration are those of the checkpoint.",
        ],
        FaultKind::NotDeviceRelated => &[
            "Look at the program, its files and its settings; a retry or another device won't help.",
        ],
        // Our own programs' faults; no message of another program means this.
        _ => &[],
    }
}

/// What a fault of this kind is, in plain words.
pub(crate) fn cause_of(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::OutOfMemory => "Memory ran out while something was allocated.",
        FaultKind::DeviceMismatch => "Tensors of one operation live on different devices.",
        FaultKind::DtypeMismatch => "Tensors of one operation have different element types.",
        FaultKind::UnsupportedDtype => "The device can't compute in this element type.",
        FaultKind::UnsupportedOp => "The device has no kernel for this operation.",
        FaultKind::PlaceholderStorage => "Storage was read that was never allocated or written.",
        FaultKind::DeviceLost => "The device, its context or its driver connection is gone.",
        FaultKind::DriverOrInit => "The device could not be found or brought up.",
        FaultKind::KernelCompile => "A kernel or shader did not compile, or doesn't fit the card.",
        FaultKind::CommandBuffer => "A submitted command buffer failed.",
        FaultKind::ShapeMismatch => "Shapes don't fit each other: a mistake of the caller.",
        FaultKind::Numeric => "Inf or NaN came up where a finite number is needed.",
        FaultKind::DataLoading => "A loader, its workers or its shared memory failed.",
        FaultKind::ModelLoading => "A model file is missing, damaged or of another shape.",
        _ => "An ordinary error that has nothing to do with a device.",
    }
}
