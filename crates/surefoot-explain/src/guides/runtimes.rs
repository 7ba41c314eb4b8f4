//! Frameworks beside PyTorch: MLX, ONNX Runtime, TensorFlow.

use surefoot_core::fault::FaultKind::{DriverOrInit, OutOfMemory, ShapeMismatch};

use super::{Command, DOCTOR, Guide, PLAN, change, change_in, reference, setting};

const RUN: Command = Command {
    line: "surefoot run --restarts 3 script.py",
    does: "names what ended the process, with the line of Python that ran, and starts it again",
};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "mlx-metal-malloc-maximum-allowed-buffer-size",
        kind: OutOfMemory,
        message: "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum allowed buffer size of 30150672384 bytes.",
        meaning: "One array is larger than Metal allows for a single buffer, about three quarters of the machine's memory on most Macs. That other memory is free does not matter.",
        causes: &[
            "Attention scores or logits of a long prompt in one array: they grow with the square of its length, or with length × vocabulary.",
            "The KV cache of a long context is one array for each layer, and it grows by being copied into a larger one.",
            "float32 where float16 or bfloat16 would do.",
        ],
        changes: &[
            change(
                "Read a long prompt in pieces.",
                "generate(model, tokenizer, prompt=prompt)",
                "generate(model, tokenizer, prompt=prompt, prefill_step_size=512, max_kv_size=8192)",
            ),
            change(
                "Fused attention keeps no scores.",
                "scores = mx.softmax(q @ k.transpose(0, 1, 3, 2) * scale, axis=-1)\nout = scores @ v",
                "out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)",
            ),
        ],
        settings: &[
            setting(
                "mx.set_cache_limit(2 * 2**30)",
                "returns freed buffers above 2 GiB to the system",
                "allocations that would have reused them are slower",
            ),
            setting("kv_bits=8 (mlx-lm)", "halves the KV cache", "slightly different outputs"),
        ],
        references: &[reference(
            "buffers of growing sizes are kept in the cache and never reused (open): set the cache limit",
            "https://github.com/ml-explore/mlx/issues/3350",
        )],
        commands: &[PLAN, RUN],
        words: &["[metal::malloc]", "metal::malloc"],
    },
    Guide {
        name: "mlx-command-buffer-insufficient-memory",
        kind: OutOfMemory,
        message: "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        meaning: "The arrays were allocated, but the GPU could not keep all of one command buffer's memory resident. The exception comes from a thread of Metal, so that `except` does not see it and the process ends.",
        causes: &[
            "The working set is above the limit that macOS wires for the GPU, about three quarters of the memory.",
            "Lazy evaluation: nothing called `mx.eval`, so that a whole epoch became one graph.",
            "Other programs (a browser, another model) use the shared memory.",
        ],
        changes: &[
            change(
                "Evaluate after each step.",
                "for batch in batches:\n    loss, grads = step(model, batch)\n    optimizer.update(model, grads)",
                "for batch in batches:\n    loss, grads = step(model, batch)\n    optimizer.update(model, grads)\n    mx.eval(model.parameters(), optimizer.state, loss)",
            ),
            change("Recompute activations.", "y = layer(x)", "y = mx.checkpoint(layer)(x)"),
        ],
        settings: &[
            setting(
                "mx.set_wired_limit(bytes)",
                "keeps that much wired for the GPU (macOS 15 and later)",
                "other programs have less",
            ),
            setting(
                "sudo sysctl iogpu.wired_limit_mb=N",
                "raises the system's limit for the GPU until the next restart",
                "too high a value makes the whole machine swap or stop",
            ),
        ],
        references: &[reference(
            "memory functions of MLX",
            "https://ml-explore.github.io/mlx/build/html/python/memory_management.html",
        )],
        commands: &[RUN, PLAN],
        words: &["[metal] command buffer execution failed: insufficient memory", "mlx"],
    },
    Guide {
        name: "onnxruntime-cuda-provider-could-not-be-loaded",
        kind: DriverOrInit,
        message: "[ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file: No such file or directory",
        meaning: "ONNX Runtime found no CUDA or cuDNN library of the version that it was built for. It goes on on the CPU, many times slower, and only this line says so.",
        causes: &[
            "CUDA or cuDNN is not installed, or is of another major version: onnxruntime-gpu needs CUDA 12 and cuDNN 9 since 1.19, CUDA 11 and cuDNN 8 before 1.17.",
            "The libraries came with PyTorch's wheels and are not on the loader's path.",
            "`onnxruntime` and `onnxruntime-gpu` are both installed: the CPU package hides the other one.",
        ],
        changes: &[
            change(
                "Load the libraries of the installed wheels before the first session (1.21 and later), and look at what you got.",
                "session = ort.InferenceSession(\"model.onnx\", providers=[\"CUDAExecutionProvider\", \"CPUExecutionProvider\"])",
                "ort.preload_dlls()\nsession = ort.InferenceSession(\"model.onnx\", providers=[\"CUDAExecutionProvider\", \"CPUExecutionProvider\"])\nassert session.get_providers()[0] == \"CUDAExecutionProvider\", session.get_providers()",
            ),
            change_in(
                "sh",
                "One package, with its libraries.",
                "pip install onnxruntime onnxruntime-gpu",
                "pip uninstall -y onnxruntime onnxruntime-gpu\npip install 'onnxruntime-gpu[cuda,cudnn]'",
            ),
        ],
        settings: &[setting(
            "LD_LIBRARY_PATH=…/nvidia/cudnn/lib:…/nvidia/cublas/lib",
            "lets the loader find the libraries of the wheels",
            "holds for every program that is started so",
        )],
        references: &[
            reference(
                "what each version needs",
                "https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#requirements",
            ),
            reference(
                "the fallback to the CPU failed where CUDA_PATH was set; fixed in 1.19",
                "https://github.com/microsoft/onnxruntime/pull/21425",
            ),
            reference(
                "the fallback happens without an exception (open)",
                "https://github.com/microsoft/onnxruntime/issues/23372",
            ),
        ],
        commands: &[DOCTOR],
        words: &["executionprovider", "onnxruntime_providers", "onnxruntime"],
    },
    Guide {
        name: "onnxruntime-failed-to-allocate-memory",
        kind: OutOfMemory,
        message: "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. Name:'Conv_0' Status Message: bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 1073741824",
        meaning: "The arena that ONNX Runtime keeps for the device could not grow. It doubles by default, so that it can ask for twice what is needed, and it never shrinks by itself.",
        causes: &[
            "The batch or the image is too large for the card.",
            "The arena grew to the next power of two and no longer fits beside another session's arena or PyTorch's cache.",
            "Inputs of many sizes have fragmented it.",
        ],
        changes: &[change(
            "Grow by what is needed, up to a limit.",
            "providers=[\"CUDAExecutionProvider\"]",
            "providers=[(\"CUDAExecutionProvider\", {\n    \"arena_extend_strategy\": \"kSameAsRequested\",\n    \"gpu_mem_limit\": 6 * 1024**3,\n    \"cudnn_conv_use_max_workspace\": \"0\",\n})]",
        )],
        settings: &[
            setting(
                "memory.enable_memory_arena_shrinkage=gpu:0 (run option)",
                "gives memory back after a run",
                "the next run allocates again",
            ),
            setting(
                "session_options.enable_mem_pattern = False",
                "plans no memory for one shape ahead: for inputs of many shapes",
                "each run allocates step by step",
            ),
        ],
        references: &[reference(
            "options of the CUDA provider and of its arena",
            "https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#configuration-options",
        )],
        commands: &[PLAN, RUN],
        words: &["bfc_arena", "bfcarena", "onnxruntime"],
    },
    Guide {
        name: "onnxruntime-got-invalid-dimensions-for-input",
        kind: ShapeMismatch,
        message: "onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: input for the following indices\n index: 2 Got: 256 Expected: 224\n Please fix either the inputs/outputs or the model.",
        meaning: "The model was exported with a fixed size in that dimension, and the input has another one.",
        causes: &[
            "The export fixed what should vary: batch, height, length.",
            "The preprocessing differs from training's: another size, or channels last instead of first.",
        ],
        changes: &[
            change(
                "Name the dimensions that vary when exporting.",
                "torch.onnx.export(model, (x,), \"model.onnx\")",
                "torch.onnx.export(model, (x,), \"model.onnx\", dynamo=True,\n                  dynamic_shapes=({0: \"batch\", 2: \"height\", 3: \"width\"},))",
            ),
            change(
                "Ask the model what it wants.",
                "session.run(None, {\"input\": x})",
                "print([(i.name, i.shape, i.type) for i in session.get_inputs()])\nsession.run(None, {\"input\": x})",
            ),
        ],
        settings: &[],
        references: &[reference(
            "fixed and dynamic shapes",
            "https://onnxruntime.ai/docs/tutorials/mobile/helpers/make-dynamic-shape-fixed.html",
        )],
        commands: &[Command {
            line: "surefoot explain -",
            does: "reads the sizes out of the whole message",
        }],
        words: &["got invalid dimensions for input", "onnxruntime"],
    },
    Guide {
        name: "tensorflow-oom-when-allocating-tensor",
        kind: OutOfMemory,
        message: "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,64,224,224] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]",
        meaning: "TensorFlow's allocator had no room for this one tensor; its shape and type are in the message, so that its size can be computed: here 256 × 64 × 224 × 224 × 4 bytes, 3.1 GiB.",
        causes: &[
            "The batch is too large: the first number of the shape is nearly always the batch.",
            "TensorFlow took the whole card at its start and another process wants some of it, or the other way round.",
            "Models of an earlier `fit` in the same notebook are still alive.",
        ],
        changes: &[
            change(
                "Allocate as needed; before anything else uses the GPU.",
                "import tensorflow as tf",
                "import tensorflow as tf\nfor gpu in tf.config.list_physical_devices(\"GPU\"):\n    tf.config.experimental.set_memory_growth(gpu, True)",
            ),
            change(
                "Half precision halves activations.",
                "model = build()",
                "tf.keras.mixed_precision.set_global_policy(\"mixed_float16\")\nmodel = build()",
            ),
        ],
        settings: &[
            setting(
                "TF_FORCE_GPU_ALLOW_GROWTH=true",
                "the same as set_memory_growth, without changing the code",
                "more fragmentation; memory is not given back",
            ),
            setting(
                "TF_GPU_ALLOCATOR=cuda_malloc_async",
                "uses CUDA's own pool, which fragments less",
                "needs CUDA 11.2 or later",
            ),
        ],
        references: &[reference(
            "how TensorFlow uses GPU memory",
            "https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth",
        )],
        commands: &[RUN],
        words: &["oom when allocating tensor", "resourceexhaustederror", "gpu_0_bfc"],
    },
    Guide {
        name: "tensorflow-cannot-dlopen-some-gpu-libraries",
        kind: DriverOrInit,
        message: "Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to use GPU. Skipping registering GPU devices...",
        meaning: "TensorFlow runs on the CPU: one of the CUDA libraries that it was built for was not found. The lines above name it.",
        causes: &[
            "TensorFlow was installed without its CUDA libraries (`pip install tensorflow` has none on Linux).",
            "Another CUDA version is installed than this TensorFlow was built with.",
            "On Windows, versions after 2.10 have no GPU support: it needs WSL2.",
        ],
        changes: &[change_in(
            "sh",
            "The package with its libraries.",
            "pip install tensorflow",
            "pip install 'tensorflow[and-cuda]'\npython -c \"import tensorflow as tf; print(tf.config.list_physical_devices('GPU'))\"",
        )],
        settings: &[setting(
            "TF_CPP_MAX_VLOG_LEVEL=3",
            "logs which file each library was looked for in",
            "very long logs",
        )],
        references: &[reference(
            "which CUDA and cuDNN each version was built with",
            "https://www.tensorflow.org/install/source#gpu",
        )],
        commands: &[DOCTOR],
        words: &["cannot dlopen some gpu libraries", "skipping registering gpu devices"],
    },
];
