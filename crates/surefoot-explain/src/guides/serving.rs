//! Programs that run models for others: llama.cpp and vLLM.

use surefoot_core::fault::FaultKind::{DriverOrInit, ModelLoading, OutOfMemory};

use super::{Command, DOCTOR, Guide, PLAN, change_in, reference, setting};

const PLAN_GGUF: Command = Command {
    line: "surefoot plan model.gguf",
    does: "says before loading how many bytes weights and cache need, and what would be streamed",
};
const LOG: Command = Command {
    line: "surefoot explain server.log",
    does: "finds the first error among those of all workers: the last one is only its echo",
};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "llama-cpp-cudamalloc-failed-out-of-memory",
        kind: OutOfMemory,
        message: "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: out of memory",
        meaning: "llama.cpp asked the driver for one buffer and did not get it. The lines before say which: weights (`load_tensors`), the KV cache (`llama_kv_cache`) or the compute buffer (`graph_reserve`), and each has its own remedy.",
        causes: &[
            "More layers were put on the GPU than fit (`-ngl`).",
            "The KV cache is too long: its size is layers × context × KV heads × head size × 2, for each parallel slot.",
            "The compute buffer grows with the micro-batch (`-ub`), and much more without flash attention.",
            "With several cards, the split gives one of them more than it has; device 0 also holds the compute buffers.",
            "The host is short of memory: cudaMalloc can fail for that as well.",
        ],
        changes: &[
            change_in(
                "sh",
                "Fewer layers on the GPU, and a context of the length that is needed.",
                "llama-server -m model.gguf -ngl 99",
                "llama-server -m model.gguf -ngl 28 -c 8192 -np 1",
            ),
            change_in(
                "sh",
                "Half the cache: keys and values in 8 bits, which needs flash attention.",
                "llama-server -m model.gguf -c 32768",
                "llama-server -m model.gguf -c 32768 -fa on -ctk q8_0 -ctv q8_0",
            ),
        ],
        settings: &[
            setting("-ub 256", "halves the compute buffer", "prompts are read more slowly"),
            setting(
                "--no-kv-offload",
                "keeps the KV cache in the host's memory",
                "each new token waits for the copies; generation becomes several times slower",
            ),
            setting(
                "GGML_CUDA_ENABLE_UNIFIED_MEMORY=1",
                "lets the driver swap to the host's memory instead of failing (Linux)",
                "what is swapped runs at the speed of the bus",
            ),
        ],
        references: &[
            reference(
                "cudaMalloc fails although the card has room: the host's memory was short",
                "https://github.com/ggml-org/llama.cpp/issues/7366",
            ),
            reference(
                "which layers' cache `--no-kv-offload` keeps on the CPU",
                "https://github.com/ggml-org/llama.cpp/issues/14043",
            ),
        ],
        commands: &[PLAN_GGUF],
        words: &["ggml_", "llama_model_load", "llama_kv_cache", "llama_init", "llama_context"],
    },
    Guide {
        name: "llama-cpp-unknown-model-architecture",
        kind: ModelLoading,
        message: "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'qwen3next'",
        meaning: "The file is a GGUF file, but this build of llama.cpp (or of the program that contains one) is older than the model's architecture.",
        causes: &[
            "llama.cpp, or the copy of it in Ollama, LM Studio or llama-cpp-python, is older than the model.",
            "The file was converted by a fork under a name that only the fork knows.",
        ],
        changes: &[change_in(
            "sh",
            "A newer build; `general.architecture` of the file says what it has to know.",
            "pip install llama-cpp-python==0.2.90",
            "pip install --upgrade --force-reinstall --no-cache-dir llama-cpp-python",
        )],
        settings: &[],
        references: &[reference(
            "the list of supported architectures",
            "https://github.com/ggml-org/llama.cpp#description",
        )],
        commands: &[PLAN_GGUF],
        words: &["unknown model architecture"],
    },
    Guide {
        name: "vllm-no-available-memory-for-the-cache-blocks",
        kind: OutOfMemory,
        message: "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        meaning: "vLLM may use `gpu_memory_utilization` × the whole card. After weights, activations of the longest batch and CUDA graphs nothing of that was left for the KV cache.",
        causes: &[
            "The weights alone nearly fill the share: in bf16 a model needs 2 bytes for each parameter.",
            "Another process, often an earlier vLLM that did not end, holds memory of the card: the share counts the whole card, not what is free.",
            "`max_model_len` is the model's maximum, so that the profiling run is as large as can be.",
            "CUDA graphs of many batch sizes are captured.",
        ],
        changes: &[
            change_in(
                "python",
                "A shorter context and a larger share.",
                "llm = LLM(model)",
                "llm = LLM(model, gpu_memory_utilization=0.95, max_model_len=8192, max_num_seqs=64)",
            ),
            change_in(
                "python",
                "Weights in 8 bits, or over two cards.",
                "llm = LLM(model)",
                "llm = LLM(model, quantization=\"fp8\")   # or: tensor_parallel_size=2",
            ),
        ],
        settings: &[
            setting(
                "--enforce-eager",
                "captures no CUDA graphs and saves their memory",
                "small batches decode more slowly",
            ),
            setting(
                "--kv-cache-dtype fp8",
                "halves the cache",
                "slightly different outputs; not on every card",
            ),
        ],
        references: &[
            reference(
                "a long thread with what helped on which card",
                "https://github.com/vllm-project/vllm/issues/2248",
            ),
            reference(
                "the share counts what other processes hold",
                "https://github.com/vllm-project/vllm/issues/10439",
            ),
        ],
        commands: &[PLAN, LOG],
        words: &["cache blocks"],
    },
    Guide {
        name: "vllm-max-seq-len-is-larger-than-the-kv-cache",
        kind: OutOfMemory,
        message: "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (31024). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        meaning: "The cache that is left after loading holds fewer tokens than one sequence of the model's full length, so vLLM refuses to start. The number in brackets is what fits.",
        causes: &[
            "The model was published for a much longer context than is needed.",
            "Weights take most of the card.",
        ],
        changes: &[change_in(
            "sh",
            "Ask for the context that fits (the second number of the message), or less.",
            "vllm serve MODEL",
            "vllm serve MODEL --max-model-len 30000",
        )],
        settings: &[
            setting(
                "--gpu-memory-utilization 0.95",
                "5 % more of the card for the cache",
                "other programs on the card may fail",
            ),
            setting(
                "--kv-cache-dtype fp8",
                "twice the tokens",
                "slightly different outputs; not on every card",
            ),
        ],
        references: &[reference(
            "how vLLM divides the card's memory",
            "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html",
        )],
        commands: &[PLAN],
        words: &["stored in kv cache", "kv cache is needed", "max_model_len", "max seq len"],
    },
    Guide {
        name: "vllm-engine-core-initialization-failed",
        kind: DriverOrInit,
        message: "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_0': 1}",
        meaning: "The process that runs the model ended while starting. This line is only the parent's echo: the cause is an error of `EngineCore` or of a worker earlier in the log.",
        causes: &[
            "Out of memory while loading, profiling or capturing CUDA graphs.",
            "A library does not fit the card or the driver: an attention kernel, Triton's compiler, NCCL.",
            "The worker was killed by the kernel for the host's memory: then there is no error above, and `dmesg` names it.",
        ],
        changes: &[change_in(
            "sh",
            "Keep the whole log, and read its first error.",
            "vllm serve MODEL",
            "vllm serve MODEL 2>&1 | tee server.log; surefoot explain server.log",
        )],
        settings: &[
            setting("VLLM_LOGGING_LEVEL=DEBUG", "logs each stage of the start", "long logs"),
            setting(
                "--enforce-eager",
                "starts without torch.compile and CUDA graphs: tells whether they are the cause",
                "slower decoding",
            ),
        ],
        references: &[reference(
            "vLLM's troubleshooting page",
            "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        )],
        commands: &[LOG, DOCTOR],
        words: &["engine core initialization failed", "enginecore"],
    },
];
