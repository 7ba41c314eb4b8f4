//! PyTorch on GPUs of AMD (ROCm) and Intel (XPU).

use surefoot_core::fault::FaultKind::{DeviceLost, DriverOrInit, OutOfMemory, UnsupportedOp};

use super::memory::{GUARD, SPLIT};
use super::{CHECK, Command, Guide, PLAN, change, change_in, reference, setting};

const TORCH_DOCTOR: Command = Command {
    line: "surefoot doctor --torch",
    does: "allocates, multiplies, convolves and attends on each device of your PyTorch, in a child process that may die",
};
const RESTARTS: Command = Command {
    line: "surefoot run --restarts 3 train.py",
    does: "starts the script again when its process or its device died; `foot.save` and `foot.resume` make it go on",
};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "hip-error-invalid-device-function",
        kind: UnsupportedOp,
        message: "RuntimeError: HIP error: invalid device function",
        meaning: "PyTorch's ROCm build has no code for this card's architecture (gfx number), or a library beside it has not. The stack trace is often of a later call, since kernels run asynchronously.",
        causes: &[
            "The card is not among those that this build was compiled for: `torch.cuda.get_arch_list()` against `rocminfo | grep gfx`.",
            "The installed PyTorch was built for another ROCm release than the driver's.",
            "An extension (flash-attention, bitsandbytes, xformers) was compiled for other cards.",
        ],
        changes: &[change_in(
            "sh",
            "A build that knows the card; newer ones know more.",
            "pip install torch --index-url https://download.pytorch.org/whl/rocm6.2",
            "pip install --pre torch --index-url https://download.pytorch.org/whl/nightly/rocm7.0\npython -c \"import torch; print(torch.cuda.get_arch_list())\"",
        )],
        settings: &[
            setting(
                "HSA_OVERRIDE_GFX_VERSION=11.0.0",
                "runs code of a related architecture (10.3.0 for RDNA2, 11.0.0 for RDNA3), where the card's own is missing",
                "not supported: wrong results or a hang are possible where the instructions differ; check with `surefoot doctor --torch`",
            ),
            setting(
                "AMD_SERIALIZE_KERNEL=3",
                "makes the traceback name the guilty line",
                "every kernel waits for the one before: for debugging only",
            ),
        ],
        references: &[
            reference(
                "gfx1151 before it was supported, with the override that helped",
                "https://github.com/pytorch/pytorch/issues/164346",
            ),
            reference(
                "which cards ROCm supports",
                "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
            ),
        ],
        commands: &[TORCH_DOCTOR],
        words: &["hip error", "hiperror", "gfx"],
    },
    Guide {
        name: "hip-out-of-memory",
        kind: OutOfMemory,
        message: "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 15.98 GiB of which 64.00 MiB is free.",
        meaning: "PyTorch on an AMD card asked for one more block and there was no room. Everything that is true of `CUDA out of memory` is true here; variables have the same names or begin with PYTORCH_HIP.",
        causes: &[
            "Activations of the batch are too large: they grow with batch size and sequence length.",
            "The desktop uses the same card: compositors and browsers hold 1 to 2 GiB.",
            "MIOpen chose a convolution with a large workspace.",
            "On APUs the carve-out of the BIOS, not the machine's memory, is the limit.",
        ],
        changes: &[
            SPLIT,
            change(
                "No graph where nothing is trained.",
                "out = model(x)",
                "with torch.inference_mode():\n    out = model(x)",
            ),
        ],
        settings: &[
            setting(
                "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8,max_split_size_mb:256",
                "reduces fragmentation, where expandable segments are not available",
                "allocation is a little slower",
            ),
            setting(
                "MIOPEN_FIND_MODE=FAST",
                "tries fewer convolution kernels and workspaces",
                "convolutions may be slower",
            ),
        ],
        references: &[reference(
            "memory is not freed inside `except`",
            "https://github.com/pytorch/pytorch/issues/18853",
        )],
        commands: &[PLAN, CHECK, GUARD],
        words: &["hip out of memory", "hip error: out of memory", "hiperroroutofmemory", "rocm"],
    },
    Guide {
        name: "xpu-out-of-memory",
        kind: OutOfMemory,
        message: "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.11 GiB.",
        meaning: "An Intel GPU had no room for the block, or the block is larger than one allocation may be: Arc A-series cards allow 4 GiB at once unless told otherwise, however much is free.",
        causes: &[
            "One tensor of 4 GiB or more on an Arc card, with a PyTorch before 2.8 or without the relaxed limits.",
            "Activations of the batch are too large.",
            "Under WSL2 single allocations fail earlier than on Linux or Windows.",
        ],
        changes: &[
            SPLIT,
            change(
                "Attend without keeping scores, and in half precision.",
                "scores = (q @ k.transpose(-2, -1)).softmax(-1)\nout = scores @ v",
                "with torch.autocast(\"xpu\", dtype=torch.bfloat16):\n    out = F.scaled_dot_product_attention(q, k, v)",
            ),
        ],
        settings: &[setting(
            "UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1",
            "allows single allocations above 4 GiB; set it before Python starts",
            "kernels that index with 32 bits can be wrong on such tensors before PyTorch 2.8",
        )],
        references: &[
            reference(
                "arrays above 4 GB; works since PyTorch 2.8",
                "https://github.com/intel/intel-extension-for-pytorch/issues/325",
            ),
            reference(
                "4.00 GiB asked for on a card of 16 GB",
                "https://github.com/intel/intel-extension-for-pytorch/issues/863",
            ),
        ],
        commands: &[TORCH_DOCTOR, PLAN, GUARD],
        words: &["xpu out of memory", "ur_result_error_out_of", "larger than 4gb", "xpu"],
    },
    Guide {
        name: "xpu-native-api-failed-device-lost",
        kind: DeviceLost,
        message: "RuntimeError: Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        meaning: "The Level Zero driver reset the Intel GPU. Nothing on the device is valid any more, and every later call fails with the same words until the process ends.",
        causes: &[
            "More memory was asked for than is free: some driver versions lose the device instead of refusing.",
            "A kernel ran longer than the driver's hang check allows, as large operations on integrated GPUs do.",
            "The driver is older than the card or than this PyTorch.",
        ],
        changes: &[change(
            "Keep below the card's memory, so that PyTorch refuses before the driver has to.",
            "model.to(\"xpu\")",
            "torch.xpu.set_per_process_memory_fraction(0.85)   # or: surefoot.Footing(device=\"xpu\", memory=\"12GiB\")\nmodel.to(\"xpu\")",
        )],
        settings: &[setting(
            "echo N | sudo tee /sys/module/i915/parameters/enable_hangcheck",
            "turns the hang check of the i915 driver off (Linux)",
            "a kernel that really hangs stops the desktop",
        )],
        references: &[reference(
            "the device is lost when more is allocated than is free (open)",
            "https://github.com/intel/torch-xpu-ops/issues/3155",
        )],
        commands: &[RESTARTS, TORCH_DOCTOR],
        words: &["ur_result_error_device_lost", "ze_result_error_device_lost", "native api failed"],
    },
    Guide {
        name: "no-xpu-devices-are-available",
        kind: DriverOrInit,
        message: "RuntimeError: No XPU devices are available.",
        meaning: "PyTorch found no Intel GPU that it can use: it was built without XPU support, or the driver is missing, or the user may not open the device.",
        causes: &[
            "The installed PyTorch is the CUDA or CPU build (`torch.__version__` does not end in `+xpu`).",
            "Intel's compute runtime (level-zero) is not installed.",
            "The user is not in the group `render` (Linux).",
        ],
        changes: &[change_in(
            "sh",
            "The build for Intel GPUs, and what it needs.",
            "pip install torch",
            "pip install torch --index-url https://download.pytorch.org/whl/xpu\nsudo usermod -aG render $USER   # then log in again\npython -c \"import torch; print(torch.__version__, torch.xpu.is_available())\"",
        )],
        settings: &[setting(
            "ONEAPI_DEVICE_SELECTOR=level_zero:0",
            "makes only this device visible",
            "others are not seen",
        )],
        references: &[reference(
            "how to install PyTorch for Intel GPUs",
            "https://docs.pytorch.org/docs/main/notes/get_start_xpu.html",
        )],
        commands: &[TORCH_DOCTOR],
        words: &["xpu"],
    },
];
