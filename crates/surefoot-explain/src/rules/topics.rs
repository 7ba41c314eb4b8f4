//! The last resort: what a message is about, near a word of trouble. Asked only when no rule
//! names the fault and no turn of phrase is known, so a subject is all that is left to go by.
//!
//! The more a subject says by itself, the more it weighs: a shader or a command buffer is only
//! spoken of when it fails; a driver or a tensor may be in any error.

use super::FaultKind::{
    CommandBuffer, DataLoading, DeviceLost, DriverOrInit, DtypeMismatch, KernelCompile,
    ModelLoading, Numeric, OutOfMemory, PlaceholderStorage, ShapeMismatch, UnsupportedDtype,
    UnsupportedOp,
};
use super::Weight::{Hints, Names, Usual};
use super::{TextRule, rule};

/// Names of programs and settings that have a subject's words in them.
const ASIDE: &str = r"\bdeprecat|\bpip\b|\bNo module\b|\bpermission\b|\bhttps?\b|\bconnection\b|\bsocket\b|\bargument\b.{0,12}--|\busage:|\btoken\b|\blogin\b|\bgit\b|\byaml\b|\bjson\.|\bsql\b|\bdisk\b|\bquota\b|\bkeyword\b|\battribute\b|\bimport\b|\bdevice tree\b|\bmay fail\b|\bcustom build command\b|\bgithub issue\b|\bRequested node\b|\bsbatch\b|\bcould not compile `";

pub(super) const RULES: &[TextRule] = &[
    rule(CommandBuffer, Names, &[
        r"\b\w*command[ _]?(buffer|encoder|list)s?\w*\b.{0,80}\b(error|errors|fail\w*|invalid|twice|already|not|without|after|before|cannot|can't|while|returned|released|reset|nil|null|state|aborted|dropped|finished)\b|\b(error|fail\w*|invalid|cannot|unable|attempt\w*|assert\w*)\b.{0,60}\b\w*command[ _]?(buffer|encoder|list)s?\w*\b",
        r"\b(vkQueueSubmit|vkEndCommandBuffer|vkQueueWaitIdle|queue ?submit|queue\.submit|map_async|mapAsync|getMappedRange|write_buffer)\w*\b.{0,60}\b(error|fail\w*|returned|invalid|not|timeout|none)\b|\bbuffer (is|was) (not|still|already) mapped\b|\bGPU submission\b",
    ])
    .unless(&[ASIDE]),
    rule(KernelCompile, Names, &[
        r"\b(shaders?|wgsl|glsl|hlsl|msl|spir-?v\w*|spirv-cross|metallib|ptxas?|nvcc|nvrtc|hipcc|hiprtc|naga|glslc|dxc|LLVM|inductor|mlir|compute pipeline|render pipeline|pipeline (layout|state|cache)|entry ?point)\b.{0,80}\b(error|errors|fail\w*|invalid|cannot|can't|unable|unknown|unsupported|unresolved|undefined|undeclared|exception|threw|crash\w*|not|missing|illegal|unexpected|exceed\w*|do not know)\b|\b(error|fail\w*|invalid|cannot|unable|unknown|unsupported|exception)\b.{0,60}\b(shaders?|wgsl|glsl|hlsl|msl|spir-?v\w*|metallib|ptxas?|nvcc|nvrtc|hipcc|naga|compute pipeline|render pipeline|pipeline (layout|state|cache))\b",
        r"\bunsupported (GNU|Microsoft Visual Studio|clang|gcc) version\b|\b(temporary|available) registers\b|\bLLVM ERROR\b|\bbytes of (shared|threadgroup|workgroup) memory\b",
    ])
    .unless(&[ASIDE, r"\bcuda-nvcc-|\bmemory left\b"]),
    rule(Numeric, Names, &[
        r"\b(is_?nan|is_?inf|is_?finite|nans?|non-?finite|singular|ill-conditioned|math domain error|inf checks)\b",
    ])
    .unless(&[ASIDE, r"\bsingular (form|noun)\b|\bnan ?check (passed|ok)\b"]),
    rule(ModelLoading, Usual, &[
        r"\b(check ?points?|state ?dict\w*|state dictionary|safe ?tensors?|gguf|ggml file|onnx (model|file|graph)|saved ?model|model (file|weights?|architecture|spec)|weights? file|pretrained|pickle (data|file)|unpickl\w+|protobuf|tokenizer\.json|config\.json|magic)\b.{0,80}\b(error|fail\w*|invalid|cannot|can't|unable|unknown|unsupported|corrupt\w*|missing|not|mismatch\w*|different|malformed|wrong|bad|really|truncated|incomplete)\b|\b(error|fail\w*|invalid|cannot|can't|unable|unknown|unsupported|corrupt\w*|missing|unexpected|bad|malformed|not found)\b.{0,60}\b(check ?points?|state ?dict\w*|safe ?tensors?|gguf|onnx (model|file|graph)|saved ?model|model (file|weights?|spec)|weights? file|pretrained|protobuf|magic)\b",
        r"\b(unable|failed|could not|cannot|can't|error) (to )?(load|loading|open|read|restore|parse|deseriali[sz]e)\w* (the |a |this )?(\w+ )?(model|network|weights|graph|record|engine)\b|\bunsupported architecture\b|\bgraph is not valid\b|\bCan't get attribute '\w+' on <module\b|\bin the zipfile\b|\bKeyError: .?(unexpected|missing) (key|param)",
    ])
    .unless(&[ASIDE, r"\bmemory\b|\bCUDA error\b|\bdtype\b|\bgpu\b"]),
    rule(DataLoading, Usual, &[
        r"\b(data ?loaders?|_worker_loop|__getitem__|data ?sets?|tf ?records?|webdataset|parquet|h5py|hdf5|lmdb|libpng|libjpeg|image files?|video frames?|audio files?|samples?|data workers?|collate\w*|prefetch\w*)\b.{0,80}\b(\w*error|fail\w*|invalid|cannot|can't|unable|corrupt\w*|missing|not found|empty|died|killed|truncated|timed out|exception)\b|\b(\w*error|fail\w*|invalid|cannot|unable|corrupt\w*|missing|no|bad)\b.{0,40}\b(data ?loaders?|_worker_loop|__getitem__|data ?sets?|tf ?records?|parquet|hdf5|images? (found|file)|video frame|audio file|sample)\b",
        r"\btoo many open files\b|\bErrno 24\b|\bworkers?\b.{0,40}\b(did not|didn't|died|dead|lost|killed|crashed|timed out)\b",
    ])
    .unless(&[ASIDE, r"\bcuda\b|\bgpu\b|\bkernel\b|\bnccl\b|\bsample rate\b|\bcheckpoint\b|\bmodel\b"]),
    rule(PlaceholderStorage, Usual, &[
        r"\b(tensors?|parameters?|buffers?|storages?|arrays?|variables?|handles?|weights?|UntypedStorage|data_ptr|flat_param)\b.{0,60}\b(uninitiali[sz]ed|unallocated|unmateriali[sz]ed|not (been )?(set|initiali[sz]ed|allocated|materiali[sz]ed|uploaded|available)|NOT_AVAILABLE|no (data|storage)|without (a )?storage|never (uploaded|set|initiali[sz]ed|written)|undefined|freed|deleted|donated|offloaded|before materiali[sz]ation|data ?!= ?null|is null)\b|\b(uninitiali[sz]ed|unallocated|unmateriali[sz]ed|unwritten|no storage for|without storage)\b.{0,40}\b(tensors?|parameters?|buffers?|storages?|arrays?|variables?|handles?|weights?|memory)\b",
        r"\btensor ?(->|\.) ?data ?!= ?NULL\b|'status': 'NOT_AVAILABLE'",
    ])
    .unless(&[ASIDE, r"\bprocess group\b|\bmemory pool\b|\bfile\b|\bnewly\b"]),
    rule(DtypeMismatch, Usual, &[
        r"\b(dtypes?|data ?types?|element types?|scalar types?|mask type)\b.{0,60}\b(must|should|expected|mismatch\w*|differ\w*|wrong|invalid|unexpected|promote|convert|cast)\b",
    ])
    .unless(&[ASIDE, r"\bsupport\w*\b|\bjson\b|\bcolumn\b"]),
    rule(UnsupportedDtype, Usual, &[
        r"\b(dtypes?|data ?types?|element types?|scalar types?|bf16|bfloat\w*|fp16|float16|fp8|float8\w*|fp64|float64|int4|int8|complex(64|128)?)\b.{0,60}\b(not|unsupported|only|cannot|can't|unknown|isn't)\b",
    ])
    .unless(&[ASIDE]),
    rule(ShapeMismatch, Usual, &[
        r"\b(shapes?|dims?|dimensions?|ndim|ranks?|axis|axes|strides?|broadcast\w*|reshape|channels?|batch[ _]size|sequence length|tensor sizes?)\b.{0,80}\b(error|must|should|mismatch\w*|expected|invalid|wrong|incompatible|inconsistent|differ\w*|does ?n[o']t|do not|don't|cannot|can't|not|out of|too (many|few|small)|got|exceed\w*|unequal)\b|\b(error|mismatch\w*|expected|invalid|wrong|incompatible|inconsistent|cannot|unable|unexpected)\b.{0,60}\b(shapes?|dims?|dimensions?|ndim|ranks?|axis|axes|strides?|broadcast\w*|reshape|channels?|tensor sizes?)\b",
    ])
    .unless(&[ASIDE, r"\bmemory\b|\bworkgroup\b|\bdistributed\b|\brank \d|\brank:? ?\d|\bcolumn\b|\bscreen\b|\bwindow\b"]),
    rule(OutOfMemory, Usual, &[
        r"\b(memory|vram|alloc\w*|malloc\w*|heap|buffer (size|length)|kv[ -]?cache)\b.{0,80}\b(error|fail\w*|exceed\w*|insufficient|not enough|too (large|big|small|much|little)|cannot|can't|unable|refused|exhaust\w*|full|nil|null|overflow\w*|must not exceed|ran out)\b|\b(error|fail\w*|exceed\w*|insufficient|not enough|too (much|little|large)|cannot|unable|exhaust\w*|overflow\w*)\b.{0,60}\b(memory|vram|alloc\w*|malloc\w*|heap|buffer (size|length)|space in the (buffer|context|pool|arena)|kv[ -]?cache)\b",
        r"\bnewBufferWith\w*|\bmust not exceed \d+ ?[KMG]?B\b|\bsize calculation overflowed\b|\bsize \d{6,} exceeds\b",
    ])
    .unless(&[ASIDE, r"\bshared memory\b|\bshm\b|\bdisk\b|\bmemory[_ ]format\b|\bstack\b|\bpinned\b|\bredis\b|\bpost(gres|master)\w*"]),
    rule(DeviceLost, Usual, &[
        r"\b(gpu|cuda context|device|nvlink|pcie|gpu process|nouveau|amdgpu|i915)\b[^,;]{0,40}\b(fault\w*|terminated|killed|hung|hang|lost|crash\w*|died|reset|unresponsive|dead|cancell?ed)\b|\bnvlink\b.{0,20}\berror\b",
    ])
    .unless(&[ASIDE]),
    rule(DriverOrInit, Usual, &[
        r"\b(drivers?|cuda|gpus?|metal|vulkan|rocm|hip|opencl|webgpu|wgpu|adapters?|level[- ]zero|directml|npu|tpu|mps|accelerators?|nvml|cudnn|cublas|icd|backend)\b.{0,50}\b(not (be )?(loaded|running|found|installed|present|detected|available|visible|enabled|accessible|created|initiali[sz]ed|appear to be running)|is (null|nil|none|missing)|missing|unavailable|in use|busy|exclusive-?process|denied|too old|mismatch\w*|without|required|requires|init\w*)\b|\b(no|missing|without|failed|unable|could not|cannot|can't|requires?|need|needs)\b.{0,40}\b(drivers?|cuda|gpus?|metal(\.framework)?|vulkan|rocm|hip|opencl|webgpu|adapters?|level[- ]zero|directml|npu|tpu|mps|accelerators?|nvml|cudnn|icd|DRI3)\b",
    ])
    .unless(&[ASIDE, r"\bkernel (image|for|fun)|\bmodel\b|\bshape\b|\btensor\b|\bweights\b|\bdata ?set\b|\bfile\b|\boperation\b|\bop\b|\boperator\b|\bsupport(s|ed)?\b|\bnot implemented\b"]),
    rule(UnsupportedOp, Hints, &[
        r"\b(not (yet |currently )?(supported|implemented|available)|unsupported|does ?n[o']t support|no solution (was )?found|not implemented|unimplemented|too old|needs compute capability)\b",
    ])
    .unless(&[ASIDE])
    .with(&[r"\b(op|ops|operator|operation|operations|kernel|gpu|cuda|device|backend|adapter|card|sm_\d+|rule|primitive|optimizers?|metal|mps|vulkan|hipblas\w*|tensile|rocm|layer|feature|subgroup\w*|timestamps?|compute capability)\b"]),
];
