//! Metal and MPS: missing operations, aborts, threads.

use surefoot_core::fault::FaultKind::{CommandBuffer, OutOfMemory, UnsupportedOp};

use super::{CHECK, DOCTOR, Guide, change, reference, setting};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "operator-is-not-currently-implemented-for-the-mps-device",
        kind: UnsupportedOp,
        message: "NotImplementedError: The operator 'aten::_linalg_svd' is not currently implemented for the MPS device.",
        meaning: "PyTorch has no Metal kernel for this operation in this version.",
        causes: &[
            "The operation has no MPS kernel yet.",
            "The installed PyTorch is older than the kernel.",
        ],
        changes: &[change(
            "Run this one operation on the CPU.",
            "u, s, v = torch.linalg.svd(x)",
            "u, s, v = (t.to(x.device) for t in torch.linalg.svd(x.cpu()))",
        )],
        settings: &[setting(
            "PYTORCH_ENABLE_MPS_FALLBACK=1",
            "runs missing operations on the CPU; set it before torch is imported",
            "each such call copies its tensors to the CPU and back and waits for the GPU",
        )],
        references: &[reference(
            "which operations MPS has: the tracking issue",
            "https://github.com/pytorch/pytorch/issues/77764",
        )],
        commands: &[CHECK],
        words: &["mps"],
    },
    Guide {
        name: "mpsndarray-larger-than-4-gib",
        kind: OutOfMemory,
        message: "MPSNDArray.mm:850: failed assertion `[MPSNDArray initWithDevice:descriptor:isTextureBacked:] Error: total bytes of NDArray > 2**32'",
        meaning: "Metal's own library refuses an array of more than 4 GiB (or 2**31 elements in one dimension) and aborts the process: no `except` can catch it.",
        causes: &[
            "Attention scores of a long sequence or large image in one tensor.",
            "float32 where half precision would do.",
        ],
        changes: &[change(
            "Attend in pieces.",
            "out = F.scaled_dot_product_attention(q, k, v)",
            "out = torch.cat([F.scaled_dot_product_attention(part, k, v)\n                 for part in q.split(1024, dim=-2)], dim=-2)",
        )],
        settings: &[],
        references: &[
            reference(
                "attention above 2**32 bytes (open)",
                "https://github.com/pytorch/pytorch/issues/149261",
            ),
            reference(
                "a dimension above INT_MAX raises an exception instead of aborting",
                "https://github.com/pytorch/pytorch/pull/158824",
            ),
        ],
        commands: &[CHECK],
        words: &["2**32", "2**31", "ndarray", "int_max"],
    },
    Guide {
        name: "command-encoder-is-already-encoding",
        kind: CommandBuffer,
        message: "failed assertion `A command encoder is already encoding to this command buffer'",
        meaning: "Two threads used MPS at once, or an extension opened its own encoder beside PyTorch's. Metal aborts the process.",
        causes: &[
            "A thread pool, a web server or a data loader's thread runs the model on MPS in parallel.",
            "A custom Metal kernel makes an encoder instead of asking PyTorch's stream for it.",
        ],
        changes: &[change(
            "One thread at a time on MPS.",
            "with ThreadPoolExecutor() as pool:\n    outs = list(pool.map(model, batches))",
            "lock = threading.Lock()\n\ndef run(batch):\n    with lock:\n        out = model(batch)\n        torch.mps.synchronize()\n        return out",
        )],
        settings: &[],
        references: &[
            reference(
                "the stream's state was touched outside its queue",
                "https://github.com/pytorch/pytorch/pull/197836",
            ),
            reference(
                "extensions: release the pending encoder",
                "https://github.com/pytorch/pytorch/pull/164093",
            ),
        ],
        commands: &[CHECK],
        words: &["encoder", "encoding"],
    },
    Guide {
        name: "command-buffer-execution-failed",
        kind: CommandBuffer,
        message: "Execution of the command buffer was aborted due to an error during execution. Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
        meaning: "Metal gave up on submitted work: it ran too long, touched memory it must not, or was stopped because of another program's fault. The device lives on; the results of that submission are lost.",
        causes: &[
            "One submission takes too long while the same GPU drives the display.",
            "The machine is short of memory.",
            "Another program's GPU work failed (\"innocent victim\").",
        ],
        changes: &[change(
            "Submit less at a time.",
            "for batch in batches:\n    out = model(batch)",
            "for batch in batches:\n    out = model(batch)\n    torch.mps.synchronize()",
        )],
        settings: &[],
        references: &[],
        commands: &[DOCTOR, CHECK],
        words: &["command buffer", "iogpu", "ioaf"],
    },
];
