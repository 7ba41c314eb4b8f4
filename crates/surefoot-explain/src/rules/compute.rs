//! What the device can't do: kernels that don't compile or fit, operations and element types
//! that have no kernel.

use super::FaultKind::{DtypeMismatch, KernelCompile, UnsupportedDtype, UnsupportedOp};
use super::Weight::{Hints, Names, Overrides, Usual};
use super::{TextRule, rule};

const BLOCKS: &[&str] = &["Use smaller blocks, tiles or fewer pipeline stages in the kernel."];

pub(super) const RULES: &[TextRule] = &[
    // A kernel that needs more of a core than the card has: the words sound like memory.
    rule(KernelCompile, Overrides, &[
        r"\bout of resources?:|\bOutOfResources\b|\bHardware limit ?:? ?\d|\bno valid triton configs\b",
        r"\btoo many resources( were)? requested\b|\b(CUDA_ERROR|cudaError|hipError)_?LAUNCH_?OUT_?OF_?RESOURCES\b|\bcuda runtime error \((7|701)\)|\bCUDA (failure|error) 701\b",
        r"\btoo much shared (memory|data)\b|\b(exceeds?|exceeded|exceeding|over|larger than|greater than|more than)\b.{0,40}\b(shared|threadgroup|local|workgroup|lds|smem|tensor) ?(memory|storage)\b( size| limit)?|\b(shared|threadgroup|workgroup|lds|smem)[ _]?(memory|storage)\b.{0,60}\b(exceed|limit|larger|greater|too (much|large|many)|overflow|maximum|required)\b",
        r"\bper-stage limit\b|\blarger than launch bounds\b|\bTotal unit count exceeds maximum\b|\bworkgroup invocations\b.{0,24}\bexceeds?\b|\bCube dim exceeds\b|\bmax(imum)? (threads|registers|workgroup|invocations)\w* (per|size)\b.{0,60}\b(exceed|greater|limit|larger)|\b(uses|needs|requires) too many registers\b|\bregister (spill|allocation) failed\b|\bworkgroup size\b.{0,60}\b(exceed|limit|larger|greater)|\bmaxTotalThreadsPerThreadgroup\b|\btoo many bindings of type\b|\bran out of registers\b|\bout of (shared memory|registers|local memory|smem|lds)\b",
    ])
    .unless(&[r"\bdataloader\b|\bworker\b|\bshm\b|/dev/shm|\bdocker\b|\binsufficient shared memory \(shm\)|\bbus error\b"])
    .cause("The kernel needs more shared memory, registers or threads than this card has; device memory is not the matter.")
    .advice(BLOCKS),
    rule(KernelCompile, Overrides, &[r"\bfatal error: \S*(cuda|cublas|cudnn|cusparse|cusolver|nccl|hip|thrust|cutlass)\S*\.(h|hpp|cuh)\b.{0,12}\bNo such file"])
        .cause("A kernel could not be compiled: the toolkit's headers were not found."),
    rule(KernelCompile, Overrides, &[r"\btriton\b.{0,24}\b(only supports?|requires?|needs?) CUDA \d.{0,40}\bversion\b"])
        .cause("The kernel compiler doesn't fit the CUDA toolkit that it found."),
    rule(KernelCompile, Overrides, &[r"\bshader( \w+)? compil\w+ fail"]),
    // A pipeline or a module that the driver would not make: the code beside it is its general answer.
    rule(KernelCompile, Overrides, &[
        r"\bvkCreate(Graphics|Compute|RayTracing)\w*Pipelines?\w*\b.{0,40}\b(fail|error|return)",
        r"\bfail\w* (creating|to create)( the| an?)? (\w+ )?module from (file|memory|data|image|binary|code)\b|\bfail\w* (loading|to load)( the| an?)? (hip|cuda|gpu|ptx|cubin|hsaco|spir-?v) module\b",
    ])
    .unless(&[r"out_?of_?(device_?|host_?)?memory|\bout of memory\b|device_?lost|[ :=(]-[124]\b|no_?binary|no kernel image"])
    .cause("A kernel or shader could not be built or loaded for this device."),
    rule(KernelCompile, Names, &[
        r"\b(compile|link|create|build|load)\w{0,16}(shader|kernel|metallib)\w*(\(\))?:? (has )?(fail|returned (null|false|-))",
        r"\bfail\w* to (create|build|compile|link|load)( the| an?)? ?(vulkan |metal |gpu |opengl |d3d1[12] )*(graphics|compute|render|rendering|ray ?tracing|mesh|raster\w*) pipelines?\b",
        r"\busing language version \S{1,12} which is incompatible\b",
        r"\bduring context \[[\w -]{1,40}\]|\[hlo verifier\]",
        r"\bVUID-VkGraphicsPipeline|\bVUID-VkComputePipeline|\bVUID-VkShaderModule|\bVUID-StandaloneSpirv|\bVUID-RuntimeSpirv",
        r"\bload_binary\b.{0,40}\b(returned null|fail|error)",
        r"\b(triton|mlir|llvm|nvvm|glslang|spirv_cross|tint)::\w.{0,600}\bassert\w*\b.{0,200}\bfail|\bassert\w*\b.{0,400}\b(triton|mlir|llvm)::",
        r"\b(too many|no|multiple|several) kernels? (were |was )?(found )?in (the )?(library|cubin|module|binary|fatbin)\b",
    ])
    .unless(&[r"\bout of memory\b|\bdevice is lost\b|\bunsupported dtype\b"])
    .cause("A kernel or shader could not be compiled for this device."),
    // A place in a kernel's source. Not "error" with it, which nearly every line has.
    rule(KernelCompile, Names, &[
        r"\.cl:\d+:\d+: |\.metal:\d+:\d+: |\.wgsl:\d+:\d+: |\.glsl:\d+: |\.hlsl\(\d+,\d+|\.frag:\d+: |\.vert:\d+: ",
    ])
    .unless(&[r"\b(warning|note|remark):"])
    .cause("A kernel or shader could not be compiled for this device."),
    // OpenCL's builds, in words.
    rule(KernelCompile, Names, &[
        r"\b(open ?cl|cl(enqueue|create|build|link|compile)\w*)\b.{0,60}\binvalid (program|kernel|binary|build options)\b",
        r"\bfail\w* to (build|compile|link)( the| an?)? ?(opencl |cl |gpu |kernel )*program (executable|object|binary|from|for|with|source)\b",
        r"\bprogram[ _](build|link)[ _](fail\w*|error)\b|\bprogram\.build\(.{0,60}: ?-\d+|\bcl(Build|Compile|Link)Program\b.{0,8}\(-\d+\)",
    ])
    .unless(&[r"\bout[ _]of[ _](\w+[ _])?(memory|resources)\b"])
    .cause("An OpenCL program could not be built for this device."),
    rule(KernelCompile, Overrides, &[r"\b(compiler|compilation) (has )?(encountered|hit|failed with) an? internal error\b"])
        .cause("The device's own compiler broke down on this kernel."),
    rule(KernelCompile, Names, &[
        r"\bnvrtc: error\b|\bnvrtc\b.{0,40}\b(compilation|compile)\b.{0,20}\b(fail|error)|\bNVRTC_ERROR_\w+|\bNVRTCError\b|\bnvrtc compilation failed\b|\bhiprtc\w*\b.{0,40}\b(error|fail)|\bHIPRTC_ERROR_\w+",
        r"\b(CUDA_ERROR|cudaError|hipError)_?(UNSUPPORTED_?PTX_?VERSION|INVALID_?PTX|INVALID_?IMAGE|INVALID_?KERNEL_?IMAGE|INVALID_?SOURCE|JIT_?COMPILER_?NOT_?FOUND|JIT_?COMPILATION_?DISABLED|NVVM_\w+|INVALID_?CLUSTER_?SIZE)\b|\bPTX\b.{0,60}\b(unsupported toolchain|JIT compil\w+ fail|was compiled with|invalid|error)|\bPTX JIT\b|\bdevice kernel image is invalid\b",
        r"\bptxas\b.{0,80}\b(error|fatal|fail|exited|non-zero|not found|unknown|died)|\bfatbinary\b.{0,30}\bfail|\bnvcc\b.{0,30}\b(fatal|fail|error)\b|\bnvcc fatal\b|\bUnsupported gpu architecture\b|\bunsupported (gpu )?arch\w*\b.{0,20}\b(compute_|sm_|gfx)|\bfeature '[^']*' requires \.?target\b|\b\.target sm_\d+\b|\brequires \.target\b|\bPTX \.version\b|\bnvvm\b.{0,40}\b(error|fail)|\blibdevice not found\b|\blibdevice\.\w+\b.{0,30}\bnot found\b|\bcicc\b.{0,20}\b(died|fail)",
        r"\bCompilationError\b|\btriton\b.{0,60}\b(compil\w* (error|fail)|failed to compile|CompilationError|PassManager)|\bPassManager::run failed\b|\bTritonGPU\w*\b.{0,40}\bfail|\bfailed to (translate|compile)\b.{0,40}\b(triton|llvm|ptx|kernel|module|mlir|shader|spir-?v|msl|wgsl)|\bLLVM ERROR: Cannot select\b|\bLLVM compilation\b.{0,20}\bfail|\bCannot find a working triton installation\b|\bTritonMissing\b|\bmlir\b.{0,60}\bfailed\b",
        r"\b(InductorError|BackendCompilerFailed|CppCompileError|LoweringException|TorchRuntimeError: .{0,30}compile)\b|\bbackend='?\w+'? raised\b|\bC\+\+ compile error\b|\bError building extension\b|\berror compiling (objects for extension|source|kernel|program|shader)\b|\bninja: build stopped\b|\bNinja is required to load\b",
        r"\bMTLLibraryError\w*|\bMTLLibraryErrorDomain\b|\bprogram_source:\d+|\bMetal (shader |kernel )?(compilation|compile|compiler)\b.{0,30}\b(fail|error)|\bmissing Metal Toolchain\b|\bunable to build metal library\b|\bunable to (create|build|compile) (the )?kernel\b|\bunable to (load|create|build|compile) (the )?(library|metallib|pipeline|shader|compute pipeline)\b|\bfail\w* to (find|load|create|compile|open|build)( the| a)? ?(default |metal |shader |msl |compute )*(library|metallib|shaders?|kernels?|pipeline( state)?s?)\b|\bdefault\.metallib\b.{0,40}\b(not found|missing|fail|could not)|\bnewComputePipelineState\w*\b.{0,60}\b(fail|error)|\bnewLibraryWithSource\b.{0,40}\b(fail|error)|\bpipeline state\b.{0,40}\b(fail|error|null|nil)\b|\bXPC_ERROR_CONNECTION_INTERRUPTED\b|\bCompiler encountered an internal error\b|\bAGXMetal\w*\b.{0,60}\b(compil|error)|\bmetal kernel\b.{0,40}\b(compil|error)",
        r"\bShader validation error\b|\bcreate_shader_module\b|\bcreateShaderModule\b|\bShader '[^']*' parsing error\b|\b(failed to|could not|cannot|unable to|couldn't) (parse|validate|compile|create|build|link|translate|process) (the )?(shader|wgsl|spir-?v|glsl|msl|hlsl|compute pipeline|render pipeline|pipeline)\b|\b(shader|wgsl|spir-?v|glsl|hlsl|msl) (module )?(compil\w+|validation|parsing|translation|link\w*) (has )?(fail|error)|\bInternal error in \S+ shader\b|\bEntry point \w+ at \w+ is invalid\b|\bPipeline constant error\b|\bnaga\b.{0,120}\b(error|panicked|unreachable|not cached|fail)|\bCreateComputePipelines?\b.{0,60}\b(fail|error)|\bcreate_(compute|render)_pipeline\b|\b(unable|failed) to (find|select) (an |the )?entry[- ]?point\b|\bno entry point was found\b|\bcreateComputePipeline\b|\bvkCreate(ComputePipelines|ShaderModule)\b.{0,40}\b(fail|error|return)|\bVK_ERROR_INVALID_SHADER\w*|\bDXC\b.{0,40}\b(error|fail)|\bFXC\b.{0,30}\berror|\b(shader|kernel) compil\w+ (failed|error|failure)\b|\bfailed to compile (the )?(\w+ )?(kernel|shader|program|module|graph|function)s?\b",
        r"\bFailed to find C compiler\b|\bno (C|C\+\+|cuda|host) compiler\b|\b(ptxas|nvcc|hipcc|clang|glslc|dxc|metal compiler|spirv-val|naga)\b.{0,40}\b(exited|exit code|failed|error|died|crash)|\bSPIR-?V\b.{0,40}\b(invalid|fail|error)|\bSPIR-?V\b.{0,40}\bnot valid\b|\bInconsistentSpirv\b|\bShader module is invalid\b|\b(error|errors|failed) while creating (a |the )?shader\b|\bfailed to create shader module\b|\bCompileError\b.{0,60}\b(nvrtc|cuda|kernel|shader|metal|ptx)",
        r"\bworkgroup size\b.{0,60}\bmust be less or equal\b|\bTint WGSL\b|\bunknown enable-extension\b|\bcapability operand\b|\brequires one of these capabilities\b|\bCapability \w+ is not (allowed|enabled)\b|\bWGSL reader failure\b|\b(shader module|pipeline) creation failed\b|\[Invalid (ShaderModule|ComputePipeline|RenderPipeline|PipelineLayout)\b|\bTint (\w+ ){0,2}failure\b|\b(error|fail\w*|invalid)\b.{0,24}\bpars(e|ing)\b.{0,12}\b(wgsl|shader|spir-?v|glsl|hlsl|msl|ptx)\b|\bload pipeline error\b|\bError Domain=(CompilerError|AGXMetal\w*)",
        r"\bcompilation error happened\b|\bcaused the compilation to fail\b|\bExpanding the kernel\b.{0,40}\bpanicked\b|\b(kernel|device|jit|cuda|hip|opencl|gpu) (kernel |code |program )?compil\w+ (has )?(failed|error|failure)\b|\bCL_BUILD_PROGRAM_FAILURE\b|\bclBuildProgram\b.{0,40}\b(fail|error|return)|\bCL_(INVALID_PROGRAM\w*|COMPILE_PROGRAM_FAILURE|LINK_PROGRAM_FAILURE)\b|\bcuda kernel\b.{0,30}\bcompil|\bcupy\b.{0,60}\bCompileException\b|\bCompileException\b|\bMosaic failed to compile\b|\bhipcc\b.{0,40}\b(fail|error)|\bclang\S*: error\b.{0,60}\b(amdgcn|gpu|nvptx)|\bCodegen\w* (error|fail)|\bmiopenStatus\w*Compil|\bCode object build failed\b|\bcomgr\b.{0,30}\b(fail|error)",
    ])
    .unless(&[r"\bload library\b.{0,160}\.(so|dll)\b|\bload library:? .?(lib)?(cuda|nv\w+|hip\w*|hsa\w*|amd\w*|vulkan|opencl)\b|\bload library, error code\b", r"\bInvalidTypeWidth\b|\bNot enough memory\b|\bout of memory\b|\bdevice is lost\b|\bis lost\b|\bSHADER_F(16|64)\b|\bunsupported dtype\b"])
    .without(&[r"\bNot enough memory left\b|\bCaused by:(?s:.){0,200}\bout of device memory\b"])
    .cause("A kernel or shader could not be compiled for this device."),
    rule(KernelCompile, Names, &[r"\binvalid LLVM IR\b|\bInvalidIRError\b"])
        .without(&[r"\bunsupported use of (double|half)\b"]),
    rule(KernelCompile, Usual, &[
        r"\bcannot find -l(cuda|cudart|cublas|cudnn|nvrtc|nvidia|hip|amdhip)\w*|\bCommand '\[?'?(\S*/)?(ninja|nvcc|hipcc|ptxas|cicc|gcc|g\+\+|clang\S*)\b.{0,400}\breturned non-zero\b|\b(couldn't|could not|failed to|unable to) (invoke|run|execute|find|launch) (the )?(ptxas|nvcc|hipcc|nvrtc|metal compiler|fatbinary)\b|\bunable to find utility .?metal|\bidentifier .?__\w+.? is undefined\b|\berror: static assertion failed\b|\bdetected during instantiation of\b|\.cuh?\(\d+\): (fatal )?error: ",
        r"\brun `?ptxas\b|\bbug in `?(ptxas|nvcc|triton|nvrtc)\b",
        r"\buse of undeclared identifier\b|\berror: .{0,60}\b(__global__|__device__|threadgroup|metal_stdlib|cuda_fp16|cuda_bf16)\b|\bEntered unreachable code: Expression\b|\bcompute_\d+\b.{0,40}\bunsupported\b",
        r"\btorch\._dynamo\.exc\.\w+|\btorch\.compile\b.{0,40}\bfail",
    ]),
    // The form of NVIDIA's front end, which also names sources that are no files.
    rule(KernelCompile, Usual, &[
        r"\b\w{1,60}\(\d+\): error: (identifier|no instance|no operator|calling a|expected an?|name|more than one|argument)\b",
    ])
    .unless(&[r"\.(c|cc|cpp|cxx|h|hpp|cs|ts|java|py|rs|go)\("]),
    // No kernel for the operation.
    rule(UnsupportedOp, Names, &[
        r"\bno kernel image is available\b|\binvalid device function\b|\bnamed symbol not found\b|\b(CUDA_ERROR|cudaError|hipError)_?(NO_?BINARY_?FOR_?GPU|NO_?KERNEL_?IMAGE_?FOR_?DEVICE|NOT_?FOUND|INVALID_?DEVICE_?FUNCTION|SYMBOL_?NOT_?FOUND|SHARED_?OBJECT_?SYMBOL_?NOT_?FOUND|NOT_?SUPPORTED|INVALID_?CONFIGURATION|COOPERATIVE_LAUNCH_TOO_LARGE)\b|\bcuda runtime error \((8|48|98|209|9)\)|\bCUDA (failure|error) (209|98|500|9|801)\b|\bUnable to find code object for all current devices\b|\bNo compatible code objects found\b",
        r"\boperator '?[\w:.]+'? is not (currently )?(implemented|supported)\b|\bnot currently (implemented|supported) (for|on) the \w+ (device|backend)\b|\bCould not run '[\w:.]+' with arguments from the '(?:[A-LN-Z]|M[A-DF-Z])\w*' backend\b",
        r"\bno (cuda|metal|cpu|gpu|wgpu|vulkan|mps|hip) implementation\b|\bnot (yet )?implemented (for|on|in) (the )?(cuda|metal|cpu|gpu|mps|wgpu|vulkan|webgpu|this|rocm|xpu|dml|directml|current)\b( (backend|device|execution provider|ep))?|\bis not (yet |currently )?(implemented|supported|available) (for|on|by|in|with) (the )?(cuda|metal|cpu|gpu|mps|wgpu|vulkan|webgpu|rocm|xpu|this|current|tpu|dml|directml|coreml)\b( (backend|device|gpu|card|platform|execution provider|ep))?",
        r"\bUNIMPLEMENTED\b|\bUnimplementedVariant\b|\bUnsupported(Op|Operator|Node|Layer)(Error|Exception)\b|\bunable to find an engine\b|\bfailed to create function state object\b|\bNOT_IMPLEMENTED\b|\bCould not find an implementation for\b|\bNo (Op|op|operator|kernel) (registered|found|available)\b|\bis not a registered (function/)?op\b|\bop type not registered\b|\bNo OpKernel was registered\b|\bno (supported|registered|suitable|matching|valid) kernel\b|\bCould not satisfy explicit device specification\b|\bNo operator found for\b|\bNo available kernel\b|\bno kernel (is )?(found|available|registered)\b|\bUnsupported (op|operator|operation|ONNX op\w*|opset|layer|node|instruction|opcode)\b|\bunsupported operation `|\bEncountered unsupported operation\b|\bOperation not supported\b|\bop(eration|erator)?\b.{0,40}\bnot supported (on|by|for|in)\b",
        r"\bbackward is not (supported|implemented)\b|\bonly supports contiguous\b|\bRequiresContiguous\b|\bBackwardNotSupported\b|\bdoes not (yet )?(support|implement) (backward|double backward|autograd|gradient)|\bderivative for '?[\w:]+'? is not implemented\b|\bdoes not have a deterministic implementation\b",
        r"\bCubeCountTooLarge\b|\binvalid configuration argument\b|\bdispatch group size dimension\b|\bmaxComputeWorkgroupsPerDimension\b|\bmax_compute_workgroups_per_dimension\b|\b(cube|grid|block|workgroup) ?(count|size|dim\w*)\b.{0,40}\b(too large|exceeds?|greater|over)\b|\bdispatchWorkgroups\b.{0,60}\b(exceed|limit|larger)",
        r"\brequired feature is unavailable\b|\bDownlevel flags\b.{0,60}\brequired but not supported\b|\bFeatures .{0,120}\bare required but not enabled\b|\bunsupported instruction\b|\bcurrent IO operation is not supported\b|\bneeds a transport between devices\b",
        r"\bonly supports? (Ampere|Hopper|Turing|Volta|Ada|Blackwell|CUDA|NVIDIA|sm_?\d+|compute capability|gpus? with)\b|\brequires? (a )?(gpu|device|cuda)?( with)? ?(compute capability|cuda capability|sm_?\d\d)\b|\bCUDA capability sm_\d+ is not compatible\b|\bsm_\d+ is not compatible with\b|\btoo old to be supported\b|\bonly supports devices of CUDA Capability\b|\bminimum (cuda |compute )?capability\b|\bcompute capability\b.{0,60}\b(not supported|unsupported|too (old|low)|at least|or (higher|newer|above)|required|>=)\b|\bgfx\d+\b.{0,40}\b(not supported|unsupported)\b|\b(CUBLAS|CUDNN|HIPBLAS|MIOPEN|CUSPARSE|CUSOLVER|ROCBLAS)_(STATUS_)?(NOT_SUPPORTED|ARCH_MISMATCH|NOT_IMPLEMENTED)\w*\b|\bTensileLibrary\b.{0,80}\b(not|could|error|fail|cannot|illegal|no such)|\brocBLAS error: Cannot read\b",
        r"\bFunction '?\w+'? (does not exist|was not found|not found)\b|\bError while loading function\b|\bunable to load (function|kernel)\b|\bkernel '?\w+'? (was )?not found\b|\bfunction not found in (the )?(library|module)\b|\bno (such )?kernel\b.{0,30}\b(for|named)\b",
        r"\b(op|operator|operation|kernel|layer|node) (is )?not supported\b|\bunsupported (op|operator|operation|kernel|layer|node|instruction)\b|\bnot (supported|implemented) on the \w+\b|\bNot (implemented|supported) on (the )?(CPU|GPU|CUDA|MPS|XPU)\b|\bonly (implemented|supported|available|works?) (for|on|with) (the )?(cuda|gpu|cpu|nvidia|amd|intel)\b|\b(is|are) only (implemented|supported|available) (for|on) (the )?(cuda|gpu|cpu)\b",
        r"\bnot supported (at|on|by) the (MPS|Metal|CUDA|DirectML|CoreML|WebGPU) (device|backend)\b|\bMPS(Graph|Gaph)? (backend |device )?(does not|doesn't) support\b|\bMPS: Unsupported\b|\bUnsupported \w+ (padding )?mode\b|\bAdaptive pool MPS\b|\bon (the )?MPS( device| backend)? (is|are) not (supported|implemented)\b|\bMPS\b.{0,40}\bnot (currently |yet )?(implemented|supported)\b",
    ])
    .unless(&[
        r"\bnot implemented for '(torch\.(cuda\.)?)?(half|bfloat16|float|double|long|int|bool|byte|char|short|complex\w*|float8\w*)(tensor)?'",
        r"\b(dtype|data ?type|bfloat16|float64|float16|bf16|f16|f64|fp16|fp64|fp8|float8\w*|int64|int8|complex64|complex128|half precision)\b.{0,40}\b(not|unsupported|un)\b|\b(not|un)\w*( supported)?\b.{0,40}\b(dtype|data ?type)\b|\bUnsupported\w*dtype",
        r"\bhas no attribute\b|\bdeprecat",
        r"\bTypes lhs=",
        r"\bwith (int64|bool|float64|complex\w*|bfloat16|double|int8|uint8) (input|tensor|dtype)",
        r"\bSHADER_F(16|64)\b",
    ]),
    rule(UnsupportedOp, Overrides, &[r"\bUnimplementedVariant\b"]),
    // Kernels that were written for some sizes, cards or backends.
    rule(UnsupportedOp, Names, &[
        r"\b(only|does not|doesn't|do not|don't|cannot) (currently |yet )?supports?\b.{0,30}\bhead[ _]?(dim\w*|sizes?)\b|\bhead[ _]?(dim\w*|sizes?)\b.{0,60}\b(not supported|unsupported|only supports?|supported head)\b|\bunsupported head[ _]?(dim\w*|sizes?)\b",
        r"\bexpected\b.{0,40}\b(is_sm\w*|is_dc_\w*|is_gfx\w*|\w*compute_capability\w*|dprops\b\S*)\b.{0,80}\bto be true\b",
        r"\bno runners?\b.{0,12}\b(that|to|for|implement)\b|\blayerImpls\.empty\(\)|\bno (valid |usable |available )?tactics? (is |are |was |were )?(for|to|available|found)\b",
        r"\bexpected key in DispatchKeySet\b",
        r"\bnot supported until\b.{0,40}\b(backend|device|kernel|gpu)\b",
    ]),
    rule(UnsupportedOp, Names, &[
        r"\bcannot run the operation\b|\bno gradient defined for\b|\bimplementation (is )?missing\b|\bexporting the operator\b.{0,80}\bnot supported\b|\bGGML_ABORT\b.{0,40}\bnot implemented\b|\b[a-z]+NotSupported\b|\bStageNotSupported\b",
    ])
    .unless(&[r"\bdtype|\bbf16\b|\bfp8\b"]),
    rule(UnsupportedOp, Names, &[r"\bfailed to (legalize|lower) op\w*\b|\bexplicitly marked illegal\b"])
        .without(&[r"\bdata types? (is|are) not supported\b|\bunsupported (data|element) types?\b"])
        .cause("The graph compiler has no lowering of this operation for the device."),
    rule(UnsupportedOp, Usual, &[
        r"\bNotImplementedError\b.{0,80}\b(cuda|mps|metal|gpu|aten|backend|device|kernel|tensor)|\b(op|operator|kernel|layer|node)\b.{0,60}\b(not implemented|unimplemented|unsupported|has no implementation)\b|\b(not implemented|unimplemented|unsupported)\b.{0,40}\b(op|operator|kernel|layer type|node)\b|\bnot implemented\b.{0,40}\b(for|on) (this|the) (backend|device)\b",
        r"\bCUDA error: (operation not supported|feature is not|API call is not supported|operation not permitted)|\bunsupported (on|by) (this|the) (device|gpu|backend)\b|\bfalling back to (the )?cpu\b.{0,60}\b(not|un)supported|\b(not|un)supported\b.{0,60}\bfall(ing)? ?back to (the )?cpu\b",
        r"\bgrid_sampl\w+\b.{0,40}\bnot supported\b|\btodo: implement\b|\bnot yet implemented: ",
    ])
    .unless(&[
        r"\bnot implemented for '(torch\.(cuda\.)?)?(half|bfloat16|float|double|long|int|bool|byte|char|short|complex\w*|float8\w*)(tensor)?'",
        r"\b(dtype|data ?type|bfloat16|float64|bf16|fp16|float8\w*)\b",
    ]),
    rule(UnsupportedOp, Hints, &[r"\bnot implemented\b.{0,40}\b(cuda|metal|mps|gpu|wgpu)\b|\b(cuda|metal|mps|gpu|wgpu)\b.{0,60}\bnot implemented\b"]),
    // No kernel for the element type.
    rule(DtypeMismatch, Overrides, &[r"\bop operand #\d+ must be tensor of (\w+ )?(int|integer|index|bool)\b.{0,32}'tensor<[^>]*f\d+>"])
        .cause("A graph's operation that takes whole numbers, such as indices, was given fractions."),
    rule(UnsupportedDtype, Overrides, &[
        r"\bType '?tensor\(\w+\)'? of input parameter\b.{0,80}\bis invalid\b",
        r#"\bnot implemented for '?"?(torch\.(cuda\.)?)?(half|bfloat16|float|double|long|int|bool|byte|char|short|complex\w*|float8\w*|u?int\d+|float\d+|u8|u32|i64|i32|f16|bf16|f32|f64|f8\w*)(tensor)?\b"#,
        r"\bunsupported\w*\((b?f(loat)?\d+\w*|half|double|complex\w*|u?int\d+|i\d+|u\d+)\b",
        r"\bdoes not support\b.{0,40}\bfor (non-float\w*|non-floating\S*|integer|integral|int64|bool|complex|half|double) (inputs?|tensors?|types?)\b|\bcomplex(half|float|double) is not supported\b|\bdata ?type '?(bfloat16|float8\w*|bf16|fp8)'? not understood\b|\bwithout native (bf16|bfloat16|fp16|fp8|fp64)\b",
        r"\bInvalidTypeWidth\b|\b\w+ width \d+ is not supported\b|\b(Features|Capabilities|capability|feature)\b.{0,40}\bSHADER_F(LOAT)?(16|64)\b|\bSHADER_F(LOAT)?(16|64)\b.{0,60}\b(not|required|missing|unsupported|feature)|\b'?shader-f16'?\b.{0,60}\b(not|required|missing|unsupported|enable)|\bf16\b.{0,30}\bextension\b.{0,30}\bnot\b",
        r"\bop (operand|result) #\d+ must be\b.{0,160}\b(values?|types?)\b.{0,12}\bbut got '(tensor|memref)<",
        r"\b(fp8|float8|bf16|bfloat16|fp4|nvfp4|mxfp4|mxfp8|int4|fp16|float16|float64|fp64)\w*\b.{0,60}\b(only (supported|available|implemented|works?|runs?)|requires?|needs?)\b.{0,30}\b(gpus?\b|cuda ?>|(compute )?capability\b|sm_?\d|ampere|hopper|ada\b|blackwell|hardware\b)",
        r"\bUnsupportedDType\w*|\bUnsupportedDataType\b|\bto dtype \w+ - \w+",
    ])
    .unless(&[r"\bmust be tensor of (\w+ )?(int|integer|index|bool)\b.{0,32}'tensor<[^>]*f\d+>"]),
    rule(UnsupportedDtype, Names, &[
        r"\b(unknown|unsupported|unhandled|unrecogni[sz]ed) (numpy|xla|hlo|torch|dlpack|primitive|mlir|onnx|numba|tvm) (element |scalar |data )?(types?|dtypes?)\b",
        r"\bcould not find any supported formats?\b|\bsupported formats? consistent with\b",
        r"\bonly (floating[- ]point|floats?|integers?|integral|complex|real|half|double|boolean)\b.{0,16}\b(d?types?|tensors?|inputs?|data ?types?)\b.{0,16}\b(is|are) (currently |yet )?(supported|allowed|accepted)\b",
        r"\b(of|with) (d?type|data type) (u?int|b?float|fp|bf|half|double|bool|complex|string|long)\w*\b.{0,12}\bnot (currently |yet )?(supported|implemented)\b",
        r"\b(b?float|u?int|fp|bf)\d+\w* compute[ _]type\b.{0,80}\bnot support|\b(not|n't) support (the )?(given|requested|selected|this) compute[ _]type\b",
    ]),
    rule(UnsupportedDtype, Names, &[
        r"\bunsupported (safetensors? |scalar |tensor |element |input |output |source |target |index |cuda |metal )*(dtype|data ?type|type|precision|scalartype|element type)s?\b.{0,60}\b(b?f(loat)?\d+|bfloat16|half|double|u?int\d+|i\d+|u\d+|complex\w*|fp\d+|float|long|bool|dtype|for op|F8\w*|\{|for|on)",
        r"\bunsupported dtype\b|\bdtype\b.{0,40}\b(is )?(not|un)[ -]?(yet |currently )?supported\b|\bdata ?types?\b.{0,60}\b(is |are )?(not|un)[ -]?supported\b|\bdoes not (have )?support (for )?(that|the|this|requested)?( requested)? ?(dtype|data ?type)\b|\bnot have support for that dtype\b",
        r"\b(bfloat16|bf16|float64|fp64|f64|double( precision)?|float16|fp16|f16|half( precision)?|fp8|float8\w*|int8|int4|int64|u?int16|complex(64|128|32)?|tf32|fp4|mxfp4|nvfp4|quantized)\b( dtype| type| tensors?| data type| precision| computation| arithmetic)?.{0,20}\b(is|are|was) (only )?(not|un)[ -]?(yet |currently |natively )?(supported|available|implemented)\b",
        r"\b(bfloat16|bf16|fp8|float8\w*|float16|fp16|fp4|int4)\b.{0,20}\bis only supported\b|\b(device|gpu|card|backend|hardware|framework|platform|cpu|mps|it)\b.{0,30}\b(does not|doesn't|do not|don't|cannot|can't) support (\w+ )?(bfloat16|bf16|float64|fp64|f64|doubles?|float16|fp16|f16|half|fp8|float8\w*|int8|int64|complex\w*|tf32|int4|fp4)\b|\b(does not|doesn't|do not|don't) support (bfloat16|bf16|float64|fp64|f64|double|float16|fp16|f16|half|fp8|float8\w*|int8|int64|complex\w*|tf32)\b",
        r"\bCannot convert a MPS Tensor to float64\b|\bTrying to convert \w+ to the MPS backend\b|\bconvert\w* (\w+ )?(a |an )?.{0,20}\bto float64 dtype\b|\bMPS framework doesn't support\b",
        r"\b(fp8|fp16|bf16|fp4|fp64|f16|f64|int8|int4|bfloat16|float16|float64|float8)\w*\b.{0,12}\bnot supported\b|\bsupported (fp8 )?dtypes are\b|\bunsupported scalar ?type\b|\b(Half|BFloat16|Double|ComplexFloat|Float8\w*) is not supported\b",
        r"\bTypes lhs=.{0,160}\bnot supported\b|\bdoes not support the requested data type\b|\bEncountered unsupported type\b|\bUnsupported data conversion\b|\bunsupported (source |target |index )?dtype\b",
        r"\bunsupported ScalarType\b|\bGot unsupported ScalarType\b|\bTypeError: Got unsupported\b|\bUndefined type \w+|\bUndefined Tensor\b.{0,20}\btype\b|\bCUDA_R_\w+\b.{0,40}\bnot supported\b|\bType '?tensor\(\w+\)'? of input parameter\b.{0,80}\bis invalid\b|\bnot supported for (dtype|type|data type)\b|\bMPS (does not|doesn't) support \S+ (op )?with (int64|bool|float64|complex|bfloat16|double)\b",
        r"\b(Metal|CUDA|cuda|metal|wgpu)\b.{0,60}\b(BF16|F16|F64|U8|I64|U32|F8E4M3|F32)\b.{0,30}\bnot implemented\b",
        r"\b(requires?|need(s|ed)?) (a )?(gpu|device|card|hardware|cpu)s? (with|that|which) (\w+ )?(bf16|bfloat16|fp16|fp8|float16|fp64|float64)( support)?\b|\bno (native |hardware )?(bf16|bfloat16|fp16|fp8|fp64|float64|half|double) support\b|\b(bf16|fp16|fp8|fp64|bfloat16)\b.{0,40}\b(cannot|can't|could not) be used\b|\bYour (setup|device|gpu) doesn't support bf16\b|\bsetup doesn't support bf16\b",
    ])
    .unless(&[r"\bunsupported operand type|\bunhashable\b|\bdeprecat|\bmodel type\b|\bcontent[- ]type\b|\bmedia type\b|\bfile type\b"]),
    rule(UnsupportedOp, Names, &[
        r"\bThis class only supports\b|\bunsupported autocast device_type\b|\bGGML_ASSERT\b.{0,80}\bnot implemented\b",
    ]),
    rule(UnsupportedOp, Hints, &[
        r"\bMPS(NDArray|Graph|Matrix|CNN|Kernel)\w*\b.{0,160}\bfailed assertion\b",
    ])
    .unless(&[r"\b(columns?|rows?|shapes?|dim\w*|rank|axis|channels?|equal|match|mismatch|same|dtype|data ?type)\b"]),
    rule(UnsupportedOp, Hints, &[
        r"\bAssertion failed: .{0,240}, file \w+\.mm\b|\bAssertion failed: .{0,240}\bmps\w*",
    ]),
    rule(UnsupportedOp, Hints, &[
        r"\b(not|un)[ -]?supported\b.{0,60}\b(mps|cuda|metal|gpu|wgpu|vulkan|backend|device|kernel|tpu|rocm)\b|\b(mps|cuda|metal|gpu|wgpu|vulkan|backend|kernel|tpu|rocm)\b.{0,60}\b(not|un)[ -]?supported\b",
    ])
    .unless(&[r"\bdeprecat|\bversion\b|\bpython\b"]),
    rule(KernelCompile, Hints, &[
        r"\b(kernel|shader|ptx|msl|wgsl|spir-?v|pipeline|nvrtc|metallib)\b.{0,60}\b(compil\w*|build|link\w*|parse)\b.{0,40}\b(error|fail\w*|invalid)\b|\b(error|fail\w*)\b.{0,40}\bcompil\w*\b.{0,60}\b(kernel|shader|ptx|msl|wgsl|spir-?v|pipeline|nvrtc|metallib)\b",
    ]),
];
