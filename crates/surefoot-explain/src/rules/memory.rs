//! Memory that ran out, on the device or on the host.

use super::FaultKind::OutOfMemory;
use super::Weight::{Hints, Names, Overrides, Usual};
use super::{TextRule, rule};

const SMALLER: &str = "Use a smaller batch, or split it and accumulate gradients.";
const ONE_BUFFER: &[&str] = &[
    "Split the tensor: one buffer is over the device's limit, however much memory is free.",
    SMALLER,
];
const HOST: &[&str] = &[
    "Load less at a time: stream or memory-map files, use fewer loader workers.",
    "Give the process or container more RAM, or add swap.",
];

pub(super) const RULES: &[TextRule] = &[
    rule(OutOfMemory, Names, &[
        r"\b(CUDA_ERROR|VK_ERROR|CL|ZE_RESULT_ERROR|ncclResult)_?(OUT_OF_(DEVICE_|HOST_|POOL_)?MEMORY|MEM_OBJECT_ALLOCATION_FAILURE)\b",
        r"\bERROR_OUT_OF_(DEVICE|HOST|POOL)_MEMORY\b",
        r"\bErrorOutOf(Device|Host|Pool)Memory\b",
        r"\bOutOf(Device|Host)Memory(Error)?\b",
        r"\bE_OUTOFMEMORY\b|\b0x8007000E\b|\bSTATUS_NO_MEMORY\b",
        r"\b(CUBLAS|CUDNN|CUSPARSE|CUSOLVER|CUFFT|CURAND|HIPBLAS|HIPSPARSE|MIOPEN|ROCBLAS)_(STATUS_)?(LT_)?(ALLOC_FAILED|ALLOCATION_FAILED)\b",
        r"\b(rocblas_status_memory_error|miopenStatusAllocFailed|CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED)\b",
        r"\b(cudaErrorMemoryAllocation|hipErrorOutOfMemory|hipErrorMemoryAllocation|cudaErrorMemoryValueTooLarge)\b",
        r"\bkIOGPUCommandBufferCallbackErrorOutOfMemory\b|\bMTLCommandBufferErrorOutOfMemory\b",
        r"\bInsufficient Memory \((IOAF code 8|0*8:)",
    ]).advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[
        r"\b(CUDA|HIP|GPU|MPS|XPU|ROCm|Metal|Vulkan|WebGPU|HBM|VRAM)( backend| device| driver| runtime)?( error)?( \(\d+\))?[:,]?( is| ran| has run| running| went)?[ :-]+out[ -]of[ -]memory\b",
        r"\b(cuda|hip|gpu|device|host|system|cpu|video|graphics|main)[ -]?(memory)? ?(oom|OOMs)\b",
        r"\bout of (device|gpu|host|video|graphics|cuda|system|unified|card) ?(memory|ram)\b|\bout of (vram|ram)\b",
        r"\bcuda (runtime )?error[ :(]+2\b.{0,20}memory",
        r"\bout of memory\b.{0,12}\bat .{0,160}\.(cu|cpp|cc|c|h|hpp|cuh|mm|rs)\b",
        r"\b(torch|torch\.cuda|cupy\.cuda\.memory|numba\.cuda|jax)\.OutOfMemoryError\b",
        r"\bRESOURCE_EXHAUSTED: .{0,60}\b(out of memory|failed to allocate|attempting to (reserve|allocate)|allocat)",
        r"\bRESOURCE_EXHAUSTED: ?(LoadProgram|XLA:TPU compile permanent|Error (allocating|loading program)|Ran out of memory)",
        r"\bOOM when allocating tensor\b|\bResourceExhaustedError\b",
        r"\b(DefaultCPUAllocator|CPUAllocator|PosixMemalign)\b.{0,40}(can't allocate memory|not enough memory)",
        r"\bout of memory (while )?(trying to )?(allocat|reserv)",
        r"\bout of memory\b.{0,30}\b(tried|trying|attempted|failed|unable|requested) (to )?(alloc|reserv|creat|map)",
        r"\bout-of-memory error happened\b",
    ]).advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[
        r"\b(_?ArrayMemoryError)\b|\bUnable to allocate .{1,24} for an array\b",
        r"\bstd::bad_alloc\b|\bbad allocation\b|\bbad_array_new_length\b",
        r"^\s*MemoryError\b|\bMemoryError\b(:|\W*$)",
        r"\bmemory allocation of \d+ bytes failed\b|\bAllocError\b|\bTryReserveError\b",
        r"\b(java heap space|javascript heap out of memory|gc overhead limit exceeded|insufficient memory for the java runtime)\b",
        r"\b(cannot|can't|could not|unable to|failed to) allocate memory\b",
        r"\bErrno 12\b|\bENOMEM\b|\bos error 12\b|\berror code 12\b",
        r"\bnot enough memory: you tried to allocate\b|\bpaging file is too small\b|\bWinError (1455|8)\b|\bos error (1455|8)\b",
        r"\bmmap\b.{0,40}(cannot allocate|failed).{0,20}memory",
        r"\b(GGML_)?ASSERT\w*\b.{0,200}\b\w*(mem_buf\w*|alloc\w*)(\([^)]*\))? ?!= ?(null|0)",
    ])
    .unless(&[r"\bshared memory\b|\bshm\b|/torch_\d+|/dev/shm|dataloader worker"])
    .cause("The host's own memory ran out.")
    .advice(HOST),
    rule(OutOfMemory, Names, &[
        r"\boom[-_ ]?kill(ed|er)?\b.{0,60}\b(kill|invoked|process|terminated|reaped|triggered|signal)",
        r"\b(killed|terminated|reaped|evicted|stopped)\b.{0,60}\b(oom|out[- ]of[- ]memory)\b",
        r"\bout of memory: kill(ed)? process\b|\bOOMKilled\b|\boom-kill:|\boom_kill(_handler| event|_process)\b|\bmemory cgroup out of memory\b",
        r"\bDetected \d+ oom[-_]kill event|\bslurmstepd: .{0,60}oom",
        r"\b(container|pod|job|process|worker|actor|task)\b.{0,60}\b(exceeded|over|above|beyond)\b.{0,40}\bmemory( usage| threshold)?( limit|\b)",
    ])
    .unless(&[r"\bdataloader worker\b"])
    .cause("The host's memory ran out and the system killed the process.")
    .advice(HOST),
    rule(OutOfMemory, Usual, &[
        r"(exit(ed)?( with)?( code| status)?|returned non-zero exit status|return code|exitcode|exit-code|status)[ :=]+\(?(137|-9)\b",
        r"\b(signal 9|signal:? ?SIGKILL|SIGKILL|signal: 9|died with <Signals\.SIGKILL)",
    ])
    .unless(&[r"\bdataloader worker\b"])
    .cause("The process was killed from outside, most often because the host's memory ran out.")
    .advice(HOST),
    rule(OutOfMemory, Usual, &[
        r"^\s*(\[?\d+\]?[+-]?\s+)?(\d+\s+)?((zsh|bash|sh|fish): )?(\S+: line \d+:\s+\d+ )?Killed\b(: 9)?[\s.!]*(python|\./|sh |bash|$)|\bline \d+:\s+\d+ killed\b|[:\]\-*][ \x22]{0,3}killed\W*$|\d+ killed\s+python",
        r"已杀死",
    ])
    .unless(&[r"\bdataloader worker\b"])
    .cause("The process was killed from outside, most often because the host's memory ran out.")
    .advice(HOST),
    // Windows loads a library into memory that it can't commit; which library is chance.
    rule(OutOfMemory, Overrides, &[r"\bpaging file is too small\b|\bWinError 1455\b|\bos error 1455\b"])
        .cause("The host's own memory and its page file are used up.")
        .advice(HOST),
    rule(OutOfMemory, Overrides, &[r"\bunable to find a valid cuDNN algorithm\b"])
        .cause("No algorithm's workspace fits the memory that is left.")
        .advice(&[SMALLER]),
    // A tainted buffer, a poisoned device: what lies below "Caused by" is the root.
    rule(OutOfMemory, Overrides, &[
        r"\bout of device memory allocating\b|\bout-of-memory error happened\b|\bevery page size the memory tracks\b|\bcouldn't map storage for a deferred allocation\b",
    ])
    .advice(&[SMALLER]),
    // One buffer over the device's limit.
    rule(OutOfMemory, Names, &[
        r"\bInvalid buffer size: ?\d",
        r"\bmust not exceed \d+ ?[KMG]B\b|\bnewBufferWith\w*.{0,40}\breturned nil\b",
        r"\bbuffer size \(?\d+\)? (is greater than|exceeds|is larger than|is over)\b.{0,60}\b(max|limit)",
        r"\bbinding size\b.{0,100}\b(larger|greater|exceeds?|over)\b",
        r"\bbuffer binding \d+ range \d+ exceeds\b|\bexceeds `?max_[a-z_*]*buffer_binding_size`?",
        r"\b(is )?(larger|greater|bigger|more) than the (maximum|max)( allowed)? buffer (size|length)\b",
        r"\b(exceeds?|over|above|beyond)\b.{0,30}\b(max_buffer_size|maxBufferSize|maxBufferLength|maxStorageBufferBindingSize|max_storage_buffer_binding_size|maxMemoryAllocationSize|maximum buffer (size|length)|max buffer (size|length))\b",
        r"\bsize \(?\d+\)? is too large for the implementation\b",
        r"\btotal bytes of NDArray > |\bproduct of dimension sizes > 2\*\*31|\bNDArray dimension length > INT_MAX\b",
        r"\bmax(imum)? (memory )?allocation size\b.{0,60}\b(exceed|limit|larger|greater)|\b(exceed|larger|greater)\w*\b.{0,60}\bmax(imum)? (memory )?allocation size\b",
        r"\brequested (buffer|allocation) size\b.{0,40}\b(exceeds|larger|greater|over)\b",
    ])
    .unless(&[r"requestDevice|required limit|RequestDeviceError"])
    .cause("One buffer is larger than the device allows.")
    .advice(ONE_BUFFER),
    // Allocators that say it in their own words.
    rule(OutOfMemory, Names, &[
        r"\b(failed|unable|not able|could not|couldn't|cannot|can't|cant|attempt(ed|ing)?|tried|trying|error|failure|insufficient memory|not enough memory|no memory)\b( to)?,?[ :]*(allocat\w*|reserve|malloc)\b.{0,48}?\b(\d[\d.,_]* ?(\w{0,2}i?b|bytes?|[kmgt])\b|memory|buffers?|(kv )?cache|tensor|bytes|vram|blocks?|page|storage|heap|workspace|arena)",
        r"\b(cudaMalloc\w*|hipMalloc\w*|cuMemAlloc\w*|cuMemCreate|hipHostMalloc|cudaHostAlloc|cudaMallocAsync|vkAllocateMemory|zeMemAllocDevice|malloc|calloc|realloc|posix_memalign|aligned_alloc)(\([^)]*\))? ?(call )?(failed|failure|error|returned (null|nullptr|0\b))",
        r"\b(alloc\w*|allocation|allocating|malloc) ?(of|for|:)? ?(size )?\d[\d.,_]* ?(\w{0,2}i?b|bytes?)?( on \w+)? (has )?failed\b",
        r"\b(buffer|memory|tensor|device|gpu|vram) allocation (has )?(failed|failure|error)|\b(device|gpu|host) memory allocation\b.{0,12}\bfail",
        r"\ballocation (request )?(of|for) \d[\d.,_]*( ?\w{0,2}i?b| bytes)?\b.{0,40}\b(fail|exceed|refus|reject)",
        r"\bNot enough (gpu |device |cuda |video |graphics |host |free |available |system |unified |virtual )*(memory|vram|ram)\b",
        r"\b(insufficient|lack of|lacks?|exhausted|exceed(ed|s|ing)?( the)?) (gpu |device |cuda |video |graphics |host |free |available |system |unified |virtual |shared gpu )*(memory|vram)\b",
        r"\bno (free|available|more|remaining|enough) (gpu |device |video |kv[- ]?cache )*(memory|vram|blocks)\b|\bno available memory for the cache blocks\b",
        r"\b(gpu|device|vram|video|system|host|available|free) ?(memory|ram)? (is |was |has been |got )?(exhausted|depleted|full|insufficient|exceeded)\b",
        r"\b(model|tensor|batch|weights|input|graph|kv cache|workload|it)\b.{0,40}\b(does not|doesn't|won't|will not|cannot|can't|do not|not) fit (in|into|on|within)\b.{0,30}\b(memory|vram|gpu|device|card)",
        r"\b(requires?|needs?|need(ed)?|required)\b.{0,60}\b(more )?(memory|vram)\b.{0,40}\b(than|but)\b.{0,40}\b(available|free|only|have|left|has)\b",
        r"\b(available|free) (memory|bytes|vram)\b.{0,30}\b(smaller|less|lower) than\b|\btokens that can be stored in KV cache\b",
        r"\bFree memory on device\b.{0,80}\bis less than\b|\blarger than the available KV cache memory\b|\bno room for \d+ bytes in the memory held\b",
        r"\bCannot create (buffer|texture|heap|MTLBuffer)\b.{0,40}\b(memory|nil|size)",
        r"\bfailed to (create|allocate|make|init\w*)( a| an| the)? (\w+ ){0,3}(buffer|texture|heap)\b.{0,60}\b(size|bytes|MiB|GiB|MB|GB)\b",
    ])
    .unless(&[
        r"\bshared memory\b|\bshm\b|/torch_\d+|/dev/shm|\bdataloader worker|\bdisk|\bno space left|\binode|\bfile ?system\b|\bquota\b|\bsocket|\bport\b|\baddress already\b|\bip address|\bthread\b.{0,20}\bstack\b|\bpermission",
    ])
    .advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[
        r"\benough (gpu |cpu |free |device )?(ram|memory|vram) to (fit|load|hold|run|store|serve)\b",
    ])
    .advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[
        r"\bCUDA driver error: device not ready\b",
    ])
    .cause("The driver couldn't map more memory: the allocator was out of room.")
    .advice(&[SMALLER, "Turn expandable segments off, if they are on."]),
    rule(OutOfMemory, Names, &[
        r"\bFailedToCreateResource\b|\b(GL|CL|VK|CUDA|EGL|D3D|CU|HIP|ZE)\w*_OUT_OF_(MEMORY|RESOURCES|VRAM)\b",
        r"\b(cudaMalloc|hipMalloc|cuMemAlloc|MTLBuffer|VkDeviceMemory|vkAllocateMemory|malloc|alloc\w*|allocator|buffer|heap)\b.{0,40}\b(of size|requested|requesting|for)\b.{0,24}\d.{0,24}\b(failed|failure|bytes|MiB|GiB|[MG]B)\b",
        r"\b(needs?|need|requires?|required|requested|tried|want\w*)\b.{0,40}\b\d[\d.]* ?([MGT]i?B|bytes)\b.{0,60}\b(but )?(only|have|has|available|free|left|remaining)\b.{0,24}\b\d[\d.]* ?([MGT]i?B|bytes)",
        r"\b(out of|exceed\w*|insufficient|not enough) (hbm|kv[- ]cache|unified memory|wired memory|memory (space|pool|budget))\b|\bmemory pool\b.{0,30}\b(exhausted|full|empty)\b|\bdevice heap\b.{0,20}\b(exhausted|full)\b",
    ])
    .unless(&[r"\bshared memory\b|\bshm\b|\bdisk\b|\bno space left\b|\bDataLoader worker\b|\bdownload|\bHardware limit\b|\bthreadgroup\b|\bbuffer allocated\b"])
    .advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[
        r"\[metal::malloc\] Resource limit\b|\bresource limit \(?\d+\)? exceeded\b",
        r"\bFailed to create metal resource: Buffer\b|\bfailed to create (a |the )?(metal |gpu )?(resource|buffer)\b.{0,20}\bof \d+ bytes\b",
    ])
    .advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[r"\bHSA_STATUS_ERROR_OUT_OF_RESOURCES\b"])
        .without(&[r"rocminfo|hsa api call failure|hsa_init|clinfo"])
        .advice(&[SMALLER]),
    rule(OutOfMemory, Usual, &[
        r"\bout[ -]of[ -]memory\b|\bOutOfMemory(Error|Exception)?\b|\bout_of_memory\b|\bmemory exhausted\b|\binsufficient memory\b",
        r"\b(ran|runs|running|run) out of (\w+ ){0,2}(memory|vram|ram)\b|\b(memory|vram) ran out\b",
        r"\b(got|hit|hits|hitting|caught|an?|due to|because of|with|from|encountered|cause[ds]?( by)?|by|goes|went|going|the) (cuda |gpu |cpu |host |device |vram |ram )?OOM(s|ed)?\b",
        r"\bOOM(ed)? (error|exception|at|on|during|while|in|for|when|after|occurred|detected|caught|with|crash)\b|^\W*OOM\W*$|\b(cuda|gpu|error|exception|failed|fatal)\b[: ]+OOM\b",
    ])
    .unless(&[
        r"\b(disk|database|redis|maxmemory|quota|file ?system|swap file|stack)\b",
        r"\bout of resources?:",
        r"\bOOM (killer|protection|handling|score|adj\w*|policy|check\w*|retry|retries|guard)\b.{0,20}\b(is|disabled|enabled|off|on|set)\b",
    ])
    .advice(&[SMALLER]),
    rule(OutOfMemory, Hints, &[
        r"\bexceed\w*\b.{0,40}\b(memory|vram) (limit|budget|capacity|usage)\b|\bmemory (limit|budget|capacity)\b.{0,20}\bexceeded\b",
        r"\b(gpu|cuda|device|vram) memory\b.{0,40}\b(too small|too low|too little|not sufficient|not enough)\b",
    ])
    .unless(&[r"shared memory|\bdisk\b"])
    .advice(&[SMALLER]),
    rule(OutOfMemory, Overrides, &[r"\bGPUOutOfMemoryError\b|\bwgpu error: Out of Memory\b"]).advice(&[SMALLER]),
    rule(OutOfMemory, Names, &[
        r"\b\w*(Buffer|Allocation|Tensor|Texture)TooBig\b|\bBufferTooLarge\b|\b(buffer|allocation|texture|tensor) (is |was )?too (big|large)\b",
    ])
    .unless(&[r"\bhttp|\brequest entity\b|\bheader\b"])
    .cause("One buffer is larger than the device allows.")
    .advice(ONE_BUFFER),
];
