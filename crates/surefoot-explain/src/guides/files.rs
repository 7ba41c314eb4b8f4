//! Loaders.

use surefoot_core::fault::FaultKind::DataLoading;

use super::{CHECK, Guide, change, setting};

pub(super) const GUIDES: &[Guide] = &[Guide {
    name: "dataloader-worker-is-killed",
    kind: DataLoading,
    message: "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    meaning: "A worker process of the loader died. With a bus error, `/dev/shm` is full: workers hand batches over through it, and containers give it 64 MiB by default.",
    causes: &[
        "The container's shared memory is too small.",
        "The host's RAM ran out and the kernel killed a worker (signal: Killed).",
        "A sample crashes a native library.",
    ],
    changes: &[change(
        "Load in the main process once: the worker's own error appears.",
        "DataLoader(data, num_workers=8)",
        "DataLoader(data, num_workers=0)",
    )],
    settings: &[
        setting(
            "docker run --shm-size 8g (or --ipc=host)",
            "gives the container more shared memory",
            "the memory is taken from the host; --ipc=host shares it with other processes",
        ),
        setting(
            "torch.multiprocessing.set_sharing_strategy(\"file_system\")",
            "hands batches over through files",
            "slower, and files stay behind if the program is killed",
        ),
    ],
    references: &[],
    commands: &[CHECK],
    words: &["worker", "shared memory", "shm"],
}];
