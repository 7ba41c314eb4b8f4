//! CUDA: asserts, drivers, libraries, collectives.

use surefoot_core::fault::FaultKind::{DeviceLost, DriverOrInit, UnsupportedOp};

use super::{CHECK, DOCTOR, Guide, change, reference, setting};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "cuda-error-device-side-assert-triggered",
        kind: DeviceLost,
        message: "RuntimeError: CUDA error: device-side assert triggered",
        meaning: "A kernel found something impossible, nearly always an index out of range, and stopped. The CUDA context is dead afterwards: every later call fails with the same words, so the line in the traceback is seldom the guilty one.",
        causes: &[
            "A class label is outside `0 … num_classes - 1` (also -1 for \"no label\").",
            "A token id is not below the size of the embedding: tokens were added and the embedding was not resized.",
            "A position is beyond the model's context.",
        ],
        changes: &[
            change(
                "Check before the loss; on the CPU the same error names the index.",
                "loss = F.cross_entropy(logits, labels)",
                "assert 0 <= labels.min() and labels.max() < logits.shape[-1]\nloss = F.cross_entropy(logits, labels)",
            ),
            change(
                "Resize the embedding with the tokenizer.",
                "tokenizer.add_tokens(new)",
                "tokenizer.add_tokens(new)\nmodel.resize_token_embeddings(len(tokenizer))",
            ),
        ],
        settings: &[setting(
            "CUDA_LAUNCH_BLOCKING=1",
            "makes the traceback name the guilty line",
            "every kernel waits for the one before: for debugging only",
        )],
        references: &[],
        commands: &[CHECK],
        words: &["device-side assert", "srcindex", "assertion `"],
    },
    Guide {
        name: "nccl-watchdog-timeout",
        kind: DeviceLost,
        message: "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
        meaning: "A rank waited ten minutes for the others. The time-out is the echo: look for the rank that failed, hung or took another path first.",
        causes: &[
            "One rank died before (out of memory, an assert, a broken sample): its error is earlier in the log.",
            "The ranks did not call the same collectives in the same order: a branch that only rank 0 takes, loaders of different length.",
            "One rank was busy for longer than the limit: saving, evaluating, downloading.",
            "The network or a link between cards does not work.",
        ],
        changes: &[
            change(
                "What rank 0 does alone must not take longer than the limit.",
                "dist.init_process_group(\"nccl\")",
                "dist.init_process_group(\"nccl\", timeout=datetime.timedelta(hours=1))",
            ),
            change(
                "The same number of steps on every rank.",
                "DataLoader(data, sampler=DistributedSampler(data))",
                "DataLoader(data, sampler=DistributedSampler(data, drop_last=True), drop_last=True)",
            ),
        ],
        settings: &[
            setting(
                "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with TORCH_NCCL_DUMP_ON_TIMEOUT=1",
                "writes which collective each rank was in",
                "a little memory",
            ),
            setting("NCCL_DEBUG=INFO", "logs what NCCL sets up", "long logs"),
        ],
        references: &[reference(
            "a long thread with many causes",
            "https://github.com/pytorch/pytorch/issues/118369",
        )],
        commands: &[
            super::Command {
                line: "surefoot explain training.log",
                does: "finds the first cause among the ranks' errors",
            },
            DOCTOR,
        ],
        words: &["watchdog", "collective operation timeout", "nccl"],
    },
    Guide {
        name: "found-no-nvidia-driver",
        kind: DriverOrInit,
        message: "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver.",
        meaning: "The program is a CUDA build, and no driver answered.",
        causes: &[
            "The container was started without the GPU.",
            "The driver is not loaded, or was updated and the machine not restarted.",
            "The machine has no NVIDIA card.",
        ],
        changes: &[change(
            "Ask before you use it.",
            "model.to(\"cuda\")",
            "device = \"cuda\" if torch.cuda.is_available() else \"cpu\"\nmodel.to(device)",
        )],
        settings: &[setting(
            "docker run --gpus all",
            "gives the container the cards",
            "needs NVIDIA's container toolkit on the host",
        )],
        references: &[],
        commands: &[DOCTOR, CHECK],
        words: &[
            "no nvidia driver",
            "no cuda-capable",
            "no cuda gpus",
            "not compiled with cuda",
            "driver version is insufficient",
            "cuda initialization",
        ],
    },
    Guide {
        name: "cudnn-failed-to-initialize",
        kind: DriverOrInit,
        message: "UnknownError: Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so try looking to see if a warning log message was printed above.",
        meaning: "cuDNN could not be brought up: its version does not fit CUDA or the driver, or the card had no memory left for it.",
        causes: &[
            "The versions of driver, CUDA and cuDNN do not belong together.",
            "The framework took all memory first, so cuDNN got none.",
            "Two cuDNN versions are on the library path.",
        ],
        changes: &[change(
            "Let TensorFlow take memory as it needs it.",
            "import tensorflow as tf",
            "import tensorflow as tf\nfor gpu in tf.config.list_physical_devices(\"GPU\"):\n    tf.config.experimental.set_memory_growth(gpu, True)",
        )],
        settings: &[setting(
            "TF_FORCE_GPU_ALLOW_GROWTH=true",
            "the same, from outside",
            "more fragmentation",
        )],
        references: &[],
        commands: &[DOCTOR],
        words: &["cudnn"],
    },
    Guide {
        name: "no-kernel-image-is-available",
        kind: UnsupportedOp,
        message: "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        meaning: "The installed build has no code for this card's generation.",
        causes: &[
            "The card is newer than the build (install one for a newer CUDA).",
            "The card is older than the build supports.",
            "An extension was compiled for other cards.",
        ],
        changes: &[change(
            "Compare what the build has with what the card is.",
            "torch.cuda.is_available()",
            "print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())",
        )],
        settings: &[setting(
            "TORCH_CUDA_ARCH_LIST=\"8.9\"",
            "builds an extension for this generation (8.9 is one example)",
            "the extension has to be built again",
        )],
        references: &[],
        commands: &[DOCTOR],
        words: &["no kernel image", "invalid device function", "sm_"],
    },
];
