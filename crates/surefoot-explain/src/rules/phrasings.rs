//! Turns of phrase that go with a kind whoever wrote them: a word of what it is about, near a
//! word of what is wrong with it. They only count where no rule of the other tables says more.

use super::FaultKind::{
    CommandBuffer, DataLoading, DeviceLost, DeviceMismatch, DriverOrInit, DtypeMismatch,
    KernelCompile, ModelLoading, Numeric, OutOfMemory, PlaceholderStorage, ShapeMismatch,
    UnsupportedDtype, UnsupportedOp,
};
use super::Weight::Hints;
use super::type_names::{any_places_differ, elements_differ};
use super::{TextRule, rule};

/// Texts that speak of computing at all; the words of unsupported things need them.
const COMPUTING: &[&str] = &[
    r"\b(tensors?|kernels?|cuda|gpus?|mps|metal|backend|device|op|operator|operation|layer|node|aten|mlx|onnx\w*|jax\w*|xla|ggml\w*|wgpu|vulkan|triton|torch|tensorflow|burn|candle|cudnn|cublas|hip|rocm|xpu|tpu|npu|dml|directml|coreml|ane|conv\w*|attention|matmul|gemm|quantiz\w*|autograd|backward|graph|primitive|shader|cmma|mma|\w*graph\w*|gather\w*|scatter\w*|inputs?|outputs?|stream|sampler|scheduler|optimizer)\b",
];

pub(super) const RULES: &[TextRule] = &[
    // Shapes.
    rule(ShapeMismatch, Hints, &[
        r"\b(shapes?|dims?|dimensions?|ranks?|axis|axes|channels?|strides?|rows|columns|features|sizes|lengths|batch[ _]size\w*|num_features)\b.{0,100}\b(must|should|has to|have to|needs? to|expected to|required to|ought to|cannot|can't|can only) (all |both )?(be |have |not )?(\w+ )?(equal|match\w*|same|identical|compatible|divisible|multiple|greater|less|smaller|larger|at least|at most|agree|exceed|contain|consistent|positive|broadcast\w*|contiguous)\b",
        r"\b(incompatible|inconsistent|mismatch\w*|unequal|differing|non-?matching|unmatched|size-incompatible|unaligned)\b.{0,40}\b(shapes?|dims?|dimensions?|ranks?|axis|axes|channels?|strides?|sizes?|lengths?|broadcast\w*|matrix|matrices|array axes)\b",
        r"\b(shapes?|dims?|dimensions?|ranks?|axis|axes|channels?|strides?|sizes|matrix|matrices)\b.{0,60}\b(incompatible|inconsistent|mismatch\w*|unequal|differ|don't match|doesn't match|do not match|does not match|not match|not compatible|not aligned|size-incompatible|not conform\w*|cannot be)\b",
        r"\b(expect\w*|requires?|required|needs?|want\w*|should (have|be))\b.{0,60}\b(shapes?|dims?|dimensions?|ranks?|axis|axes|channels?|strides?|-?[1-6]d|elements)\b.{0,80}\b(but|got|found|received|given|actual|instead|not|was|is)\b",
        r"\b(shapes?|dims?|dimensions?|sizes?|axis|rank|channels?)\b.{0,60}\d\S{0,4} (but|and) (found|got|was|is|expected|received)\b|\b(invalid|out[- ]of[- ]range|illegal|bad|wrong|unexpected)\b.{0,40}\b(axis|axes|shapes?|dims?|dimensions?|ranks?|strides?)\b|\binferred shapes?\b.{0,40}\b(incompatible|invalid|mismatch\w*)\b|\b(rank|ndim|dims?|dimensions?|axis)\b.{0,20}\b(must|should|has to|have to|needs to) be (in |within |between |at |of |< |<= )?[\[(<]?\d|\b(volume|element count|numel|number of elements)\b.{0,40}\b(should|must) (match|equal|be)\b|\bshould contain \d+ elements? not \d+|\b(cannot|can't|could not|unable to|failed to|invalid|attempt\w* to) (reshape|squeeze|unsqueeze|broadcast|concat\w*|stack|expand|permute|transpose|flatten|multiply (matri\w*|tensors?|shapes?))\b",
        r"\bbroadcast\w*\b.{0,60}\b(axis|axes|dim\w*|shapes?|fail\w*|invalid|error|compatible|other than)\b|\b(left|right|lhs|rhs|input|output|expected|actual|target)[_ ]?shapes?\b.{0,60}\b(right|rhs|actual|got|but|vs|!=|==|and)\b|\bexpected_size == actual_size\b|\bmust be equal rank\b|\bout of range for (an? )?\d+-?d(imensional)?\b|\bindex \d+ (is )?out of (range|bounds)\b.{0,40}\b(tensor|dim\w*|axis|array|with size)\b|\bnumber of (columns|rows|dims|dimensions|channels|elements|inputs|features|heads)\b.{0,80}\b(must|should|equal|expected|but|!=|does not|doesn't)\b",
    ])
    .unless(&[
        r"\bcopying a param\b|\bcheckpoint\b|\bstate_dict\b|\bin loading\b|\bsaved weight|\bfor parameter\b|\bdtypes?\b|\bdata ?types?\b",
        r"\bmemory\b|\bbuffer size\b|\bworkgroup\b|\bthreadgroup\b|\bblock size\b|\bdisk\b|\bfile size\b|\bvocab|\bstring\b|\bpassword\b|\bcolumns? (in|of) (the )?(csv|table|dataframe)|\bDataFrame\b|\bslack|\bdiscord|\bscaled_?mm\b",
    ]),
    // Element types.
    rule(DtypeMismatch, Hints, &[
        r"\b\w*\.?dtypes?\b.{0,80}\b(equal to|match\w*|same|identical|differ\w*|consistent|mismatch\w*|agree|clash\w*|conflict\w*|instead|!=)\b|\b(expected|must|should|requires?|has to|got|mismatch\w*|inconsistent|different|conflicting)\b.{0,60}\b(dtypes?|data ?types?|element types?|scalar types?|tensor types?)\b.{0,60}\b(but|got|found|received|instead|match\w*|same|equal|identical|vs|!=|and)\b",
        r"\b(invalid|wrong|bad|unexpected|incorrect) (dtypes?|data ?types?|scalar types?|element types?)\b|\b(indices|index|matrix|tensors?|arrays?|inputs?|weights|mask|labels|targets?|argument)\b.{0,40}\b(must|should|needs? to|has to|have to) be (given |passed |specified )?(as |of |in )?(an? )?(type |dtype )?(integral|integers?|floating[- ]point|u?int(8|16|32|64)|long|b?float(16|32|64)?|bool\w*|complex)\b",
        r"\bto have (scalar|data|element) types?\b.{0,60}\bbut got\b",
    ])
    .unless(&[r"\bnot supported\b|\bunsupported\b|\bsupport for\b|\bcheckpoint\b|\bstate_dict\b|\bdevice type\b"]),
    // A condition that was asserted, as it is in the source.
    rule(DtypeMismatch, Hints, &[
        r"\b(d_?type|scalar_?type|element_?type|data_?type)\b(\(\))? ?[!=]= ?\S{0,60}(d_?type|scalar_?type|element_?type|data_?type)\b|\bexpected\b.{0,80}\b(dtype|scalar_?type)\b.{0,80}\bto be true\b",
    ])
    .unless(&[r"\bcheckpoint\b|\bstate_dict\b"]),
    rule(ShapeMismatch, Hints, &[
        r"\b(shape|sizes?|ndim|dims?|rank|numel|\w+_shape)\b(\([^)]{0,8}\))?(\[[^\]]{1,8}\])? ?== ?\S{0,60}\b(shape|sizes?|ndim|dims?|rank|numel|\w+_shape)\b|\bexpected\b.{0,80}\b(sizes?|dim|ndim|numel|shape|stride)\(.{0,80}\bto be true\b",
    ])
    .with(&[r"\b(assert\w*|TT_FATAL|check failed|TORCH_CHECK|to be true)\b"])
    .unless(&[r"\bcheckpoint\b|\bstate_dict\b"]),
    rule(DeviceMismatch, Hints, &[r"\bexpected\b.{0,60}\b(is_cuda|is_cpu|is_mps|device)\b.{0,60}\bto be true\b"]),
    rule(DtypeMismatch, Hints, &[
        r"\b(has|have|of|is|are|be|as|with|an?|expect\w*|got|found|requires?|between|type|received|want\w*|and|input) \S{0,12}\b(type )?(float|half|double|long|int|short|bool|char|byte|b?float(16|32|64)|bf16|f16|f32|f64|fp16|fp32|fp64|u?int(8|16|32|64)|i32|i64|u32|u64)\b.{0,70}\b(but|not|match\w*|vs\.?|while|whereas|got|found|and|instead|with|expected|received|!=|to)\b.{0,50}\b(float|half|double|long|int|short|bool|char|byte|b?float(16|32|64)|bf16|f16|f32|f64|fp16|fp32|fp64|u?int(8|16|32|64)|i32|i64|u32|u64)\b",
        r"\(tensor<[^>]{1,60}>, tensor<[^>]{1,60}>\)",
        r"\b(dtype|data ?type|scalar type|element type|type)s?\b.{0,50}\b(float|half|double|long|int|short|bool|b?float(16|32|64)|bf16|f16|f32|f64|fp16|fp32|fp64|u?int(8|16|32|64)|i32|i64|u32|u64)\b.{0,80}\b(float|half|double|long|int|short|bool|b?float(16|32|64)|bf16|f16|f32|f64|fp16|fp32|fp64|u?int(8|16|32|64)|i32|i64|u32|u64)\b",
    ])
    .check(elements_differ)
    .with(&[r"\b(tensors?|op|operands?|input|weight|array|matmul|argument|mps|cuda|gpu|jax|torch|graph|kernel|dtype|scalar|element|layer|binding|mat\d?)\b"])
    .unless(&[r"\bnot supported\b|\bunsupported\b|\bonly support|\bsupports?\b|\bdeprecat|\bloss scal|\bwill be (cast|converted|truncated)|\boverflow\b|\bcasting\b"]),
    // Devices.
    rule(DeviceMismatch, Hints, &[
        r"\b(mismatch\w*|inconsistent|conflicting|incompatible|different|wrong|unexpected)\b.{0,24}\b(provider|devices?|placement|memory space)\b.{0,40}\b(expected|actual|got|found|but|for|of|tensor)\b|\b(provider|device|placement|tensor location)s? (mismatch\w*|conflict\w*|differ\w*|are not the same|is not the same)\b",
    ])
    .unless(&[r"\bdevice_map\b|\bversion\b|\bdriver\b|\bmeta\b"]),
    rule(DeviceMismatch, Hints, &[
        r"\b(on|in|at|to|from|device|expected|got|input|is|backend|found|a|type:?) '?(device )?(cpu|cuda|gpu|mps|xpu|hpu|npu|metal|host)\b.{0,90}\b(but|while|whereas|and|vs\.?|not|is|are|got|found|expected|actual|instead|other)\b.{0,60}\b(cpu|cuda|gpu|mps|xpu|hpu|npu|metal|host)\b",
    ])
    .check(any_places_differ)
    .with(&[r"\b(tensors?|inputs?|weights?|model|parameters?|arrays?|operands?|buffers?|arguments?|generator|module|indices|mask|device|got)\b"])
    .unless(&[r"\bdevice_map\b|\bmeta\b|\bmemory\b|\bsupport|\bimplement|\bcompil|\bavailable\b|\bfall|\bbuilt\b|\bcapab|\bdriver\b|\bwarning\b|\busing\b|\boffload"]),
    // Not supported: the element type first, then the operation.
    rule(UnsupportedDtype, Hints, &[
        r"\b(bfloat16|bf16|float64|fp64|f64|double[- ]precision|float16|fp16|f16|half[- ]precision|fp8\w*|float8\w*|int4|int8|fp4|mxfp4|complex(64|128)|int64|uint16|uint64|data ?types?|dtypes?|element types?|scalar types?)\b.{0,80}\b(not|un|isn't|aren't|only|cannot|can't|n't)[ -]?(be |been |yet |currently |natively |fully )*(support\w*|implement\w*|available|allowed|valid|legal\w*)\b",
        r"\b(not|un|cannot|only|no|n't|never)[ -]?(yet |currently |natively )*(support\w*|implement\w*|accepts?|available|works? with|handle)\b.{0,60}\b(bfloat16|bf16|float64|fp64|f64|double|float16|fp16|f16|half|fp8\w*|float8\w*|int4|int8|fp4|mxfp4|complex(64|128)?|int64|uint16|uint64|data ?types?|dtypes?|element types?|scalar types?)\b",
    ])
    .unless(&[r"\bdeprecat|\bpython\b|\bfile\b|\bjson\b|\bcheckpoint\b|\bsame (dtype|data type)|\bmust match\b"]),
    rule(UnsupportedOp, Hints, &[
        r"\b(not|n't|never) (\w+ ){0,2}(supported|implemented|registered|permitted|allowed|available|defined)\b.{0,80}\b(backend|device|gpus?|cuda|mps|metal|xpu|dml|directml|tpu|npu|hpu|platform|provider|architecture|hardware|card|stream|captur\w+|target|kernel|op|operator)\b",
        r"\b(no|not find( any| an?)?|without|cannot find( any| an?)?|missing|lacks?( an?)?|unable to find( any| an?)?) (\w+ ){0,2}(implementations?|kernels?|algorithms?|engines?|primitives?|solutions?|lowerings?|translation rules?|opkernel|symbolic|converters?|candidate|execution plans?)\b",
        r"\b(does not|doesn't|do not|don't|did not|can't|cannot) (\w+ )?(support|implement|handle)\b|\bonly (supports?|implements?|handles?|allows?)\b|\bonly\b.{0,60}\b(is|are) supported\b|\bunimplemented\b|\bnot[ _-]?implemented\b|\b(is|are) unsupported\b|\bunsupported \w+|\bnot (currently |yet |current )?supported\b|\bcould not create a primitive\b|\bNo algorithm worked\b",
    ])
    .with(COMPUTING)
    .unless(&[
        r"\bdeprecat|\bversion\b|\bpython\b|\bunsupported operand\b|\bfile (type|format|extension)\b|\bcharacter\b|\burl\b|\bprotocol\b|\blocale\b|\bmodel type\b|\barchitectures?\b.{0,24}\bmodel\b|\bchat template\b|\btokenizer\b|\bunsupported (image|video|audio|media|content|compiler|browser)\b|\bformat\b|\bNo module\b|\bopen(ing)? file\b|\bnode configuration\b|\bnodes? are available\b",
        r"\b(bfloat16|bf16|float64|fp64|f64|float16|fp16|fp8\w*|float8\w*|dtypes?|data ?types?|scalar ?types?|double|half)\b",
    ]),
    rule(UnsupportedOp, Hints, &[
        r"\b(fail\w* to apply|error applying) (the )?(\w+ )?delegate\b|\bdelegate\w*\)? failed to prepare\b",
    ])
    .cause("The accelerator's delegate did not take the model's graph."),
    // Compilers.
    rule(KernelCompile, Hints, &[
        r"\bxla/(service|hlo|shape\w*|layout\w*|literal\w*|translate)\S{0,80}\.cc:\d+\] (RET_)?check fail",
    ])
    .cause("The compiler's own check failed while it compiled the program."),
    rule(KernelCompile, Hints, &[
        r"\b\w*compil(e|es|ed|ing|er|ation)\b.{0,60}\b(fail\w*|error\w*|unable|could not|cannot|crash\w*|exception|abort\w*|timed out|internal|invalid)\b|\b(fail\w*|error|unable to|could not|cannot|couldn't|can't|exception|crash\w*)\b.{0,40}\bcompil(e|es|ed|ing|er|ation)\b|\b\w+Compile\w*\(\) FAILED\b|\bfailed to (legalize|lower|codegen|assemble|link)\b|\bcompile failed\b",
    ])
    .unless(&[
        r"\bcould not compile `|\bnot (been )?compiled (with|for)\b|\bwithout\b|\bcompiled (with|using|against) (a )?(different|newer|older|cuda|numpy)|\bre\.compile\b|\bout of memory\b|\bcompiled by a newer\b|\bmemory\b",
        r"\b(regex|regular expression|pattern|template|typescript|javascript|java|latex|sass|scss|webpack|babel|protobuf|proto|wheel|python|cython|rustc|cargo|gcc|g\+\+|cmake|makefile|setup\.py|pip|dataset|document|report|grammar|schema)\b",
    ]),
    rule(KernelCompile, Hints, &[
        r"\bimplicit declaration of function\b|\bbuild program failed\b|\bFailed in (cuda|nopython) mode pipeline\b|\bno matching (constructor|overload)\b|\bfailed requirement '|\bunknown type name '|\bno matching (function|member function)\b|\bcall to undeclared function\b|\bundeclared identifier\b|\bidentifier \x22\w+\x22 is undefined\b|\bunresolved (value|identifier|symbol|call target)\b|\b(pipeline|library|kernel function|shader)\b.{0,40}\b(creation|create|load\w*|build\w*|link\w*)\b.{0,30}\b(fail\w*|error|nil|null)\b",
    ])
    .with(&[r"\b(kernels?|shaders?|metal\w*|ane\w*|gpu\w*|cuda\w*|ptx\w*|llvm|mlir|triton|xla|hip\w*|opencl|spir-?v|wgsl|msl|glsl|hlsl|nvcc|nvrtc|inductor|dynamo|pipeline|graph|neural ?engine|coreml|tvm|iree|vulkan|jit|nvptx|numba|tint|amdgcn|monolithic_metal|tpu|mosaic|pallas|cutlass|sycl|naga|wgpu|dxc)\b"])
    .unless(&[r"\bnot (been )?compiled (with|for)\b|\bwithout\b|\bcompiled (with|using|against) (a )?(different|newer|older|cuda|numpy)|\bre\.compile\b|\bout of memory\b|\bcompiled by a newer\b"]),
    rule(KernelCompile, Hints, &[
        r"\b(fail\w*|unable|could not|cannot|error)\b.{0,12}\b(build|create|compile|serialize)\w*( the| an?)? ?(\w+ )?engine\b|\b(building|creating|creation of)( the| an?)? ?(\w+ )?engine (has )?(fail\w*|error)\b|\bengine (could not be|was not) (created|built)\b|\bbuild_?serialized_?network\b.{0,24}\b(fail\w*|error)\b",
    ])
    .with(&[r"\b(tensorrt|trt\w*|nvinfer\w*|network|onnx\w*|builder)\b"])
    .unless(&[r"\bmemory\b|\bsearch engine\b|\bdatabase\b"])
    .cause("The engine could not be built from the network for this device."),
    rule(KernelCompile, Hints, &[
        r"\blink(ing|age)? (has )?failed\b|\blink(er|ing) error\b|\bfail\w* to (build|compile|link)( the| an?)? ?(\w+ )?program\b",
    ])
    .with(&[r"\b(shaders?|uniforms?|glsl|adreno|mali|powervr|opencl\w*|gles?|webgl|kernels?|clbuild\w*)\b|\[\w*opencl\w*\]"])
    .unless(&[r"\bcargo\b|\brustc\b|\bgcc\b|\bld:|\bcmake\b"]),
    // Memory.
    rule(OutOfMemory, Hints, &[
        r"\b(alloc\w*|malloc\w*|cudamalloc\w*|hipmalloc\w*|reserv(e|ing|ation)|memmap|mmap)\b.{0,60}\b(fail\w*|unable|could not|cannot|exceed\w*|too (large|big|much)|refused|rejected|exhausted|not enough|insufficient|impossible|returned (null|nil|0))\b|\b(fail\w*|unable|could not|couldn't|cannot|can't|not enough|insufficient|error)\b.{0,40}\b(alloc(ate|ating|ation|ated)?|malloc|reserve)\b",
        r"\bno\b.{0,24}\b(memory )?(pool|heap|memory type|page|block|chunk|arena)\b.{0,40}\b(reserve|alloc\w*|bytes|big enough|large enough|free|available|fits?)\b",
        r"\b(memory|vram|ram|hbm|vmem|heap|buffer|binding|allocation|texture|kv[- ]?cache|workspace)\b.{0,50}\b(exceed\w*|exhaust\w*|insufficient|not enough|too (small|large|big|low|little)|larger than|greater than|bigger than|more than|full|run out|ran out|over the limit|limit reached|used up|depleted)\b|\b(exceed\w*|exhaust\w*|insufficient|not enough|too little|larger than|greater than|running low on|run out of|ran out of|low on|more|additional|enough)\b.{0,36}\b(gpu memory|device memory|memory|vram|gpu ram|hbm|vmem|binding size|buffer size|heap)\b",
    ])
    .unless(&[
        r"\bshared memory\b|\bshm\b|/dev/shm|\bdisk\b|\bdatabase\b|\bredis\b|\bsql\b|\bpostgres|\bquota\b|\bstack\b|\bthreadgroup\b|\bworkgroup\b|\bringbuffer\b|\bfile handles?\b|\bsocket\b|\bhugepages?\b|\bexpected (to )?(have )?at least\b|\baudio buffer\b|\bbuffer is too small\b|\bbuffer overflow\b|\bwarn\w*\b|\binfo\b|\bmay\b|\bmight\b|\bcould lead\b|\bovercommit|\blocked memory\b|\bRLIMIT|\brequires? more recent\b",
    ]),
    // A device that died, or never came up.
    rule(DeviceLost, Hints, &[
        r"\b(gpu|cuda context|cuda device|device|accelerator|driver|graphics card|video card|display driver|context|tpu|npu)\b[^,;]{0,40}\b(crash\w*|hang|hangs|hung|died|is dead|gone|lost|corrupt\w*|unresponsive|not respond\w*|stopped respond\w*|disappear\w*|faulted|unrecoverable|went away|wedged)\b|\b(gpu|cuda|hip|hardware|mmu|vm) (page )?(fault|exception)\b|\b(gpu|cuda|hip|kernel) (program|kernel|launch|execution)s? (has |have )?(failed|failure|crashed|aborted|failed to execute)\b|\bGPU program failed to execute\b|\b(exception|fault|trap)\b.{0,40}\bduring (kernel|gpu|device) execution\b|\b(core|kernel|device) execution is abnormal\b",
    ])
    .unless(&[r"\bconnection\b|\bsocket\b|\bremote host\b|\blost in\b|\bmodel context\b|\bcontext (length|window|size)|\bcontext manager\b|\bcorrupt\w* (file|image|jpeg|data)|\bout of memory\b|\bno longer supported\b"]),
    rule(DriverOrInit, Hints, &[
        r"\b(cuda\w*|cudnn|cublas|rocm|hip|vulkan|opencl|level[- ]?zero|metal|nvml|nvidia\w*|gpu|driver|runtime|npu|xpu|directml|webgpu|adapter|accelerator|provider|bitsandbytes|tensorrt|onednn|sycl)\b.{0,60}\b(fail\w*|unable|could not|couldn't|cannot|can't|not able|wasn'?t able|isn'?t|error)\b.{0,40}\b(load\w*|init\w*|found|open\w*|creat\w*|detect\w*|start\w*|enumerat\w*|quer\w*|register\w*|set ?up|connect\w*|install\w*)\b|\b(fail\w*|unable|could not|couldn't|cannot|can't|not able|error)\b.{0,40}\b(load\w*|init\w*|find|open\w*|detect\w*|enumerat\w*|quer\w*|register\w*|set ?up|bring up|communicate with)\b.{0,50}\b(cuda|cudnn|cublas|rocm|hip|vulkan|opencl|level[- ]?zero|nvml|nvidia\w*|gpu|gpus|drivers?|npu|xpu|directml|webgpu|adapter|accelerator|bitsandbytes|tensorrt|onednn|sycl|native library)\b",
        r"\b(unable|fail\w*|could not|cannot|couldn't|can't)\b.{0,6}\b(creat\w*|find|open|acquire|obtain|get)\b.{0,20}\b((gpu|graphics|gles|opengl|egl|vulkan|webgpu|wgpu|cuda|device|rendering)\b.{0,16}\b(context|instance|surface|display)|adapter|icd|extension: VK_\w+)\b",
        r"\b(init\w*|load\w*|set ?up|start\w*|creat\w*|register\w*)\b.{0,30}\b(cuda|cudnn|rocm|hip|vulkan|opencl|nvml|gpu|driver|npu|xpu|webgpu|adapter|accelerator|provider( bridge)?)\b.{0,24}\b(fail\w*|error)\b",
        r"\b(lib)?(cu(da|dnn|blas|fft|rand|sparse|solver|pti)|nv(cuda|rtc|infer|ml)|zlibwapi|amdhip|rocblas|hipblas|MIOpen|vulkan|OpenCL|DirectML|torch_cuda|c10_cuda|onnxruntime_providers)[\w.-]*\.dll\b.{0,80}\b(not (be )?found|missing|cannot|could not|can't|fail\w*|not loaded|error)\b",
        r"\blib(ze|sycl|pi_|ur_|bitsandbytes|torch|c10|amd|hsa|dnnl|openvino|intel|level|nv|cu[abdfprs]|EGL_nvidia|GLX_nvidia|npu|ascend|hccl|mlx|vulkan|MoltenVK|OpenCL|roc|hip|MIOpen|rccl|nccl)\w*[\w.-]*\.(so|dylib|dll)\b.{0,80}\b(cannot open|no such file|not found|image not found|could not|undefined)\b",
        r"\b(cuda|gpu|vulkan|metal|rocm|driver|nvidia)\b.{0,40}\b(version|versions)\b.{0,40}\b(mismatch\w*|incompatible|too old|unsupported|insufficient|not match|does not match|required)\b",
    ])
    .unless(&[
        r"\bkernel\b|\bfunction\b|\bmodel\b|\bcheckpoint\b|\bshader\b|\bcompil|\bpip\b|\bdataset\b|\bimage\b|\btensor\b|\bdtype\b|\bweights?\b|\bmemory\b|\balloc|\bconfig\b|\.py\b|\bNo module\b|\bimport\b|\bpipeline\b|\bstate_dict\b|\bfile\b.{0,20}\.(json|yaml|toml|txt)\b",
    ]),
    rule(CommandBuffer, Hints, &[
        r"\b(command|commandbuffer|command[- ]?list|encoder|submission|submit|fence|semaphore|queue submit)\b.{0,60}\b(fail\w*|timed? ?out|invalid|aborted|rejected|ignored|error\w*|assertion|already|uncommitted|discarded)\b",
    ])
    .with(&[r"\b(metal|mtl\w*|iogpu\w*|agx\w*|wgpu|webgpu|gpu|vulkan|vk\w*|queue|mps\w*)\b"])
    .unless(&[r"\b(batch )?job\b|\bsbatch\b|\bcommand line\b|\bcommand not found\b|\bmemory\b|\blost\b|\bhang\b|\btext encoder\b|\bimage encoder\b|\bvideo encoder\b|\bCommand '"]),
    rule(CommandBuffer, Hints, &[
        r"\b(wgpu|webgpu) (validation )?error\b|\bIn (Device|Queue|CommandEncoder|RenderPass|ComputePass)::\w+|\bError in (Device|Queue|CommandEncoder|Surface|Buffer)::\w+|\bvalidate(Render|Compute|Blit)\w*\b.{0,24}\bfailed assertion\b",
    ])
    .unless(&[r"\bmemory\b|\blost\b|\bshader\b|\bpipeline\b|\blimit|\bexceed|\bfeatures?\b|\b(larger|greater) than\b"])
    .cause("A validation layer refused a call: the API was used in a way it doesn't allow."),
    // Files.
    rule(ModelLoading, Hints, &[
        r"\b(checkpoints?|weights?( file)?|saved (model|weights?)|model (file|type|format|archive|weights|architecture|version)|safetensors?|gguf|ggml|onnx (model|file)|engine file|state ?dict|pickle|\.(pth?|ckpt|h5|hdf5|onnx|gguf|engine|plan|mlmodel\w*|tflite|pb|keras|nemo|bin))\b.{0,80}\b(corrupt\w*|truncat\w*|invalid|not recogni[sz]\w*|unrecogni[sz]\w*|unknown|mismatch\w*|missing|not found|incompatible|incomplete|unexpected|damaged|unsupported|not supported|does not exist|doesn't exist|failed|cannot be|could not|malformed|has shape)\b",
        r"\b(fail\w*|unable|could not|couldn't|cannot|can't|error|invalid|unknown|unrecogni[sz]ed|corrupt\w*|truncated|unexpected)\b.{0,50}\b(recogni[sz]e|detect|load\w*|pars\w*|read\w*|deseriali[sz]\w*|unpickl\w*|restor\w*|open\w*)?.{0,20}\b(checkpoints?|weights? file|model (type|file|format|archive|weights|architecture)|safetensors?|gguf|state ?dict|saved model|\.(pth?|ckpt|h5|onnx|gguf|mlmodel\w*|tflite|keras))\b",
        r"\b(de)?seriali[sz]ation\b.{0,60}\b(fail\w*|error|assertion|mismatch|version|invalid)\b|\btruncated file: eof\b|\bfile signature\b|\bsaved weight has shape\b|\bunexpected end of (file|data|archive)\b|\bmodel (was|has been) (saved|serialized|exported) (with|by|using) (a|an) (different|newer|older|incompatible)\b|\bversion tag does not match\b|\bexpect\w* version \d+ got \d+",
    ])
    .unless(&[r"\bmemory\b|\balloc|\bcompil|\bcuda error\b|\bgpu\b|\bdevice\b|\bhttp|\bconnection\b|\bkernel\b|\bgradient|\boptimizer\b|\bloss\b|\bmask\b"]),
    rule(DataLoading, Hints, &[
        r"\b(lmdb|h5py|tfrecord|webdataset|pyarrow|parquet|arrow|csv|PIL|cv2|opencv|imread\w*|torchaudio|soundfile|librosa|decord|av|ffmpeg|torchvision\.io|datasets)\b.{0,100}\b(error|no such file|not found|corrupt\w*|truncat\w*|can't open|cannot open|could not (read|open|decode)|fail\w*|invalid|mismatch\w*)\b",
        r"\b(data ?loaders?|datasets?|data ?pipe\w*|samples?|batch(es)?|collate\w*|workers?|shards?)\b.{0,60}\b(fail\w*|error|crash\w*|died|killed|corrupt\w*|timed? ?out|not found|missing|empty|broken|exhausted|exited|did not return|didn't return|stuck|hang|hung|hangs)\b",
    ])
    .unless(&[r"\bbatch[ _]size\b|\bmemory\b|\bcheckpoint\b|\bmodel\b|\bweights?\b|\bnccl\b|\bhttp|\bconnection\b|\bgated\b|\brank\b|\bNo module\b|\bimport\b|\btorchelastic\b|\bgpu\b|\bcuda\b|\bray\b|\bsupervisor\b|\bversion\b|\bkernel\b"]),
    // Storage and numbers.
    rule(PlaceholderStorage, Hints, &[
        r"\b(uninitiali[sz]ed|unallocated|unmateriali[sz]ed|un-?initiali[sz]ed|deleted|donated|freed|disposed|released|destroyed|meta|fake)\b.{0,24}\b(value|variables?|tensors?|parameters?|buffers?|storages?|handle|array|weights?)\b|\b(tensors?|parameters?|buffers?|storages?|arrays?|variables?|weights?)\b.{0,60}\b(not (been |yet |be )*(initiali[sz]ed|allocated|materiali[sz]ed|written|filled)|has no (data|storage)|have no (data|storage)|before (it|they|being) (is |was |were |are )?(ever |been )?(written|initiali[sz]ed|allocated|materiali[sz]ed|filled)|(were|was|been) (deleted|donated|freed|disposed|destroyed)|on the meta device)\b",
    ])
    .unless(&[r"\bmemory\b|\bSome weights\b|\bnewly initialized\b|\bfile\b|\bnull pointer\b|\bmetadata\b|\bprocess group\b|\bpool\b|\brecommend"]),
    rule(Numeric, Hints, &[
        r"\b(nans?|infs?|infinit\w+|non-?finite|overflow\w*|underflow\w*|diverg(e|ed|es|ing|ence)|ill-conditioned|singular|not converge\w*|failed to converge)\b.{0,80}\b(loss|losses|gradients?|grads?|tensors?|logits|weights|activations?|training|step|matrix|values?|float|half|fp16|softmax|output|norm|numeric\w*)\b|\b(loss|losses|gradients?|grads?|tensors?|logits|weights|activations?|training|matrix|values?|softmax|outputs?|norm)\b.{0,60}\b(nans?|infs?|infinit\w+|non-?finite|overflow\w*|underflow\w*|diverg(e|ed|es|ing)|explod\w+|ill-conditioned|singular)\b",
    ])
    .unless(&[r"\b(no|zero|without( any)?|0) (nans?|infs?)\b|\bstack overflow\b|\bbuffer overflow\b|\binteger overflow\b|\bOverflowError\b|\bmemory\b|\bdtype\b"]),
];
