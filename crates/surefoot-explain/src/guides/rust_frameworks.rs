//! Frameworks of Rust: candle and Burn.

use surefoot_core::fault::FaultKind::{OutOfMemory, UnsupportedOp};

use super::{Command, DOCTOR, Guide, PLAN, change_in, reference, setting};

const LIBRARY: Command = Command {
    line: "footing.run(\"forward\", |step| …)",
    does: "the crate `surefoot`: catches the panic, returns memory, splits the batch, then tries the next device",
};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "candle-drivererror-cuda-error-out-of-memory",
        kind: OutOfMemory,
        message: "Error: DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        meaning: "candle asked the CUDA driver for memory directly and it had none. candle keeps no cache, so that what `nvidia-smi` shows is really in use.",
        causes: &[
            "The weights do not fit: `VarBuilder` loads them in the dtype that it is given, and F32 is twice BF16.",
            "The KV cache is never cleared between prompts, or grows by concatenation, which needs twice its size for a moment.",
            "One device is used although there are several: candle places nothing by itself.",
        ],
        changes: &[
            change_in(
                "rust",
                "Load in half precision, mapped instead of read.",
                "let vb = VarBuilder::from_tensors(tensors, DType::F32, &device);",
                "let dtype = if device.is_cuda() { DType::BF16 } else { DType::F32 };\nlet vb = unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, &device)? };",
            ),
            change_in(
                "rust",
                "Clear the cache between prompts.",
                "let logits = model.forward(&tokens, 0)?;",
                "model.clear_kv_cache();\nlet logits = model.forward(&tokens, 0)?;",
            ),
        ],
        settings: &[setting(
            "a quantised file (GGUF) with candle_transformers::models::quantized_*",
            "a quarter of the memory",
            "slightly different outputs",
        )],
        references: &[reference(
            "several GPUs need a model that is written for them",
            "https://github.com/huggingface/candle/issues/2046",
        )],
        commands: &[PLAN, DOCTOR],
        words: &["drivererror(cuda_error_out_of_memory", "candle"],
    },
    Guide {
        name: "candle-no-cuda-implementation",
        kind: UnsupportedOp,
        message: "Error: no cuda implementation for rotary-emb",
        meaning: "candle has this operation for the CPU, and none for the device that the tensor is on; or the crate was built without the feature that has it.",
        causes: &[
            "The program was built without `--features cuda` (or `metal`), so that custom operations have their CPU code only.",
            "The operation really has no kernel for this device in this version.",
        ],
        changes: &[
            change_in(
                "sh",
                "Build with the device's feature, for candle-nn and candle-transformers too.",
                "cargo run --release",
                "cargo run --release --features cuda      # on a Mac: --features metal",
            ),
            change_in(
                "rust",
                "This one operation on the CPU.",
                "let y = op(&x)?;",
                "let y = op(&x.to_device(&Device::Cpu)?)?.to_device(x.device())?;",
            ),
        ],
        settings: &[],
        references: &[reference(
            "operations that Metal lacked, one by one",
            "https://github.com/huggingface/candle/issues?q=%22no+metal+implementation%22",
        )],
        commands: &[DOCTOR],
        words: &["no cuda implementation for", "no metal implementation for"],
    },
    Guide {
        name: "burn-buffer-too-big",
        kind: OutOfMemory,
        message: "called `Result::unwrap()` on an `Err` value: BufferTooBig(10909384704)",
        meaning: "CubeCL, under Burn, was asked for one buffer that is larger than the device allows for a single one: wgpu allows what the adapter reports, often 1 to 4 GiB, whatever the card's memory is.",
        causes: &[
            "One tensor is that large: logits of batch × tokens × vocabulary, attention scores, an embedding in f32.",
            "The batch is too large.",
            "On wgpu, more than the allowed number of buffers in one fused kernel shows as a lack of memory too (before Burn 0.19).",
        ],
        changes: &[change_in(
            "rust",
            "Smaller parts, gradients accumulated.",
            "let loss = model.forward(batch);\nlet grads = GradientsParams::from_grads(loss.backward(), &model);",
            "let mut accumulator = GradientsAccumulator::new();\nfor part in batch.parts(4) {\n    let grads = GradientsParams::from_grads((model.forward(part) / 4.0).backward(), &model);\n    accumulator.accumulate(&model, grads);\n}\nlet grads = accumulator.grads();",
        )],
        settings: &[setting(
            "the backend `cuda` instead of `wgpu` or `vulkan`",
            "has no limit of a single buffer below the card's memory",
            "NVIDIA only",
        )],
        references: &[
            reference(
                "BufferTooBig on a card of 24 GB (open)",
                "https://github.com/tracel-ai/burn/issues/4005",
            ),
            reference(
                "wgpu's own buffer counts as one more binding; fixed in CubeCL 0.7, Burn 0.19",
                "https://github.com/tracel-ai/cubecl/pull/873",
            ),
        ],
        commands: &[LIBRARY, PLAN],
        words: &["buffertoobig", "cubecl", "burn"],
    },
    Guide {
        name: "wgpu-buffer-size-is-greater-than-the-maximum-buffer-size",
        kind: OutOfMemory,
        message: "wgpu error: Validation Error\n\nCaused by:\n  In Device::create_buffer\n    Buffer size 10909384704 is greater than the maximum buffer size (268435456)",
        meaning: "A wgpu device was asked for without the adapter's limits, so that the low ones of the WebGPU standard hold (256 MiB for a buffer, 128 MiB for a binding).",
        causes: &[
            "`Limits::default()` was requested where the adapter allows more.",
            "One tensor is larger than any buffer of this adapter may be.",
        ],
        changes: &[change_in(
            "rust",
            "Ask for what the adapter has.",
            "let (device, queue) = adapter.request_device(&DeviceDescriptor::default()).await?;",
            "let (device, queue) = adapter\n    .request_device(&DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() })\n    .await?;",
        )],
        settings: &[],
        references: &[reference(
            "why WebGPU limits buffers",
            "https://github.com/gpuweb/gpuweb/issues/1371",
        )],
        commands: &[DOCTOR, LIBRARY],
        words: &["maximum buffer size", "max_buffer_size", "max buffer size", "maxbuffersize"],
    },
];
