//! Memory that ran out.

use surefoot_core::fault::FaultKind::OutOfMemory;

use super::{CHECK, Change, Command, Guide, PLAN, change, reference, setting};

pub(super) const SPLIT: Change = change(
    "Halve the micro-batch and accumulate: the effective batch, and so the training, stays the same.",
    "loss = model(x, y)\nloss.backward()\noptimizer.step()",
    "for part_x, part_y in zip(x.chunk(2), y.chunk(2)):\n    loss = model(part_x, part_y) * len(part_x) / len(x)\n    loss.backward()\noptimizer.step()\n# or: surefoot.Footing().step(model, optimizer, (x, y), lambda m, x, y: m(x, y)), in as many parts as it takes",
);
pub(super) const GUARD: Command = Command {
    line: "surefoot run train.py",
    does: "runs the script and explains an error that ends it",
};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "mps-backend-out-of-memory",
        kind: OutOfMemory,
        message: "RuntimeError: MPS backend out of memory (MPS allocated: 18.50 GiB, other allocations: 448.00 KiB, max allowed: 18.72 GiB). Tried to allocate 512.00 MiB on shared pool.",
        meaning: "PyTorch reached its own limit for memory on Apple's GPU. The limit is a ratio of what Metal recommends for the machine (1.7 unless set), and GPU and CPU share the same RAM.",
        causes: &[
            "The batch, the resolution or the context is too large for this Mac.",
            "Results are kept with their graph: losses in a list, outputs without `torch.no_grad()`.",
            "Input shapes vary from call to call: MPS keeps compiled graphs and buffers for each shape.",
        ],
        changes: &[
            SPLIT,
            change(
                "Keep numbers, not graphs.",
                "losses.append(loss)",
                "losses.append(loss.item())",
            ),
        ],
        settings: &[
            setting(
                "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
                "removes the limit",
                "the machine may swap until it stops responding; PyTorch's documentation warns of system failure",
            ),
            setting(
                "torch.mps.empty_cache()",
                "gives cached blocks back",
                "the next allocations are slower; it frees nothing that is still referenced",
            ),
        ],
        references: &[reference(
            "the variables and their defaults",
            "https://docs.pytorch.org/docs/stable/mps_environment_variables.html",
        )],
        commands: &[CHECK, PLAN],
        words: &["mps backend out of memory"],
    },
    Guide {
        name: "invalid-buffer-size",
        kind: OutOfMemory,
        message: "RuntimeError: Invalid buffer size: 19.38 GiB",
        meaning: "One single buffer is larger than Metal allows for this machine, however much memory is free. Most often it holds attention scores, which grow with the square of the sequence length.",
        causes: &[
            "Attention over a long sequence or a large image in one piece.",
            "One very large tensor, such as all logits of a long text.",
        ],
        changes: &[change(
            "Attend in pieces: no buffer holds all scores.",
            "out = F.scaled_dot_product_attention(q, k, v)",
            "out = torch.cat([F.scaled_dot_product_attention(part, k, v)\n                 for part in q.split(1024, dim=-2)], dim=-2)",
        )],
        settings: &[setting(
            "a smaller width, height or context",
            "the buffer shrinks with the square of the length",
            "less resolution or context",
        )],
        references: &[reference(
            "attention above 2**32 bytes fails on MPS (open)",
            "https://github.com/pytorch/pytorch/issues/149261",
        )],
        commands: &[PLAN, CHECK],
        words: &["invalid buffer size"],
    },
    Guide {
        name: "jax-resource-exhausted",
        kind: OutOfMemory,
        message: "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        meaning: "XLA could not get memory on the device. JAX reserves 75 % of the GPU when the first operation runs, so a second process finds little left.",
        causes: &[
            "Another process (also a notebook, or TensorFlow in the same process) holds the memory.",
            "One array of the program is too large: the message has its size.",
            "Inputs and results live at the same time where a buffer could be donated.",
        ],
        changes: &[
            change(
                "Let the old state's buffers be reused for the new one.",
                "step = jax.jit(step)",
                "step = jax.jit(step, donate_argnums=0)",
            ),
            change(
                "Recompute activations instead of keeping them.",
                "loss = f(params, x)",
                "loss = jax.checkpoint(f)(params, x)",
            ),
        ],
        settings: &[
            setting(
                "XLA_PYTHON_CLIENT_PREALLOCATE=false",
                "allocates as needed",
                "more fragmentation: a program that needs nearly all memory may then fail",
            ),
            setting(
                "XLA_CLIENT_MEM_FRACTION=.50",
                "reserves half instead of 75 % (older name: XLA_PYTHON_CLIENT_MEM_FRACTION)",
                "this process can use no more than that",
            ),
        ],
        references: &[reference(
            "how JAX allocates GPU memory",
            "https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
        )],
        commands: &[PLAN],
        words: &["resource_exhausted", "xlaruntimeerror", "jaxruntimeerror"],
    },
    Guide {
        name: "cublas-status-alloc-failed",
        kind: OutOfMemory,
        message: "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        meaning: "cuBLAS or cuDNN found no memory for its own workspace. It is an out-of-memory error under another name: PyTorch's allocator holds nearly all of the card.",
        causes: &[
            "The card is full; the library's workspace is only the last thing that asked.",
            "Another process uses the same card (nvidia-smi lists them).",
            "A batch that fits exactly leaves nothing for workspaces.",
        ],
        changes: &[
            SPLIT,
            change(
                "Leave room for libraries outside PyTorch's allocator.",
                "model.to(\"cuda\")",
                "torch.cuda.set_per_process_memory_fraction(0.9)\nmodel.to(\"cuda\")",
            ),
        ],
        settings: &[setting(
            "CUBLAS_WORKSPACE_CONFIG=:16:8",
            "gives cuBLAS a small workspace",
            "some products become slower",
        )],
        references: &[],
        commands: &[PLAN, CHECK],
        words: &["alloc_failed"],
    },
    Guide {
        name: "killed",
        kind: OutOfMemory,
        message: "Out of memory: Killed process 336943 (python) total-vm:20061840kB, anon-rss:13408616kB",
        meaning: "The host's own RAM ran out and the kernel ended the process (exit code 137, signal 9). The GPU has nothing to do with it.",
        causes: &[
            "The checkpoint is read whole, then copied: twice its size in RAM.",
            "Every loader worker holds its own copy of the dataset.",
            "The container's limit is lower than the machine's memory.",
        ],
        changes: &[
            change(
                "Map the file instead of reading it.",
                "state = torch.load(\"model.pt\")",
                "state = torch.load(\"model.pt\", mmap=True, map_location=\"cpu\")",
            ),
            change(
                "Fewer workers, each with less prefetched.",
                "DataLoader(data, num_workers=16)",
                "DataLoader(data, num_workers=2, prefetch_factor=1)",
            ),
        ],
        settings: &[setting(
            "docker run --memory 32g",
            "raises the container's limit",
            "other programs on the machine have less",
        )],
        references: &[],
        commands: &[PLAN, GUARD],
        words: &["killed", "sigkill", "exit code 137", "oom-kill", "signal 9"],
    },
    Guide {
        name: "cuda-out-of-memory",
        kind: OutOfMemory,
        message: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.12 GiB is free.",
        meaning: "PyTorch asked for one more block on the GPU and there was no room. The message says how much was asked for, how much is free, and how much PyTorch holds without using it.",
        causes: &[
            "Activations of the batch are too large: they grow with batch size and sequence length.",
            "Something keeps old graphs alive: a list of losses, an exception's traceback, outputs without `torch.no_grad()`.",
            "Memory is fragmented: much is \"reserved by PyTorch but unallocated\".",
            "Another process has the rest of the card.",
        ],
        changes: &[
            SPLIT,
            change(
                "No graph where nothing is trained.",
                "out = model(x)",
                "with torch.inference_mode():\n    out = model(x)",
            ),
            change(
                "Retry outside the handler: inside it, the traceback keeps the failed step's tensors alive.",
                "except torch.OutOfMemoryError:\n    torch.cuda.empty_cache()\n    retry()",
                "except torch.OutOfMemoryError:\n    failed = True\nif failed:\n    torch.cuda.empty_cache()\n    retry()",
            ),
        ],
        settings: &[setting(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "reduces fragmentation",
            "allocation is a little slower; it does not help where memory is simply used",
        )],
        references: &[reference(
            "memory is not freed inside `except`",
            "https://github.com/pytorch/pytorch/issues/18853",
        )],
        commands: &[PLAN, CHECK, GUARD],
        words: &["cuda", "gpu 0", "cudamalloc"],
    },
];
