//! The device itself: lost, never there, or a submission that failed.

use super::FaultKind::{CommandBuffer, DeviceLost, DriverOrInit};
use super::Weight::{Hints, Names, Overrides, Usual};
use super::{TextRule, rule};

pub(super) const RULES: &[TextRule] = &[
    // Lost.
    rule(DeviceLost, Overrides, &[
        r"\bVK_ERROR_DEVICE_LOST\b|\bERROR_DEVICE_LOST\b|\bErrorDeviceLost\b|\bvk::DeviceLostError\b|\bVK_ERROR_SURFACE_LOST",
        r"\bkIOGPUCommandBufferCallbackErrorHang\b|\bCaused GPU Hang\b",
        r"\b(parent |the |logical |gpu |webgpu |wgpu )?device (is|was|has been|got) (lost|removed|poisoned|reset|hung)\b|\blost (VkDevice|(the )?(vulkan|gpu|metal|logical|graphics|cuda|webgpu|wgpu) device)\b|\bdevice was poisoned\b|\bDevicePoisoned\b",
    ])
    .without(&[r"kIOGPUCommandBufferCallbackErrorOutOfMemory", r"\bpoisoned\b(?s:.){0,200}\bout[ -]of[ -](device |host )?memory\b"])
    .unless(&[r"\b(mobile|phone|stolen|user's|bluetooth|usb)\b"]),
    rule(DeviceLost, Names, &[
        r"\b(CUDA_ERROR|cudaError|hipError|HIP_ERROR)_?(ILLEGAL_?ADDRESS|LAUNCH_?FAILED|LAUNCH_?FAILURE|LAUNCH_?TIMEOUT|ASSERT|HARDWARE_?STACK_?ERROR|ILLEGAL_?INSTRUCTION|MISALIGNED_?ADDRESS|INVALID_?ADDRESS_?SPACE|INVALID_?PC|ECC_?UNCORRECTABLE|CONTEXT_?IS_?DESTROYED|DEVICE_?UNAVAILABLE|NVLINK_?UNCORRECTABLE|CONTAINED|TENSOR_?MEMORY_?LEAK|EXTERNAL_?DEVICE|DEINITIALIZED)\b",
        r"\billegal (memory access|address|instruction)\b.{0,30}(was |were )?(encountered|executed|detected|in\b)",
        r"\b(CUDA|HIP|cuMem\w+|cuda\w*) ?(runtime |driver |kernel )?(error|failure|exception)\b.{0,40}\b(illegal|misaligned) (memory |address|instruction)",
        r"\bmisaligned address\b|\b(invalid|operation (on|not supported on) global/shared) (program counter|address space)\b|\binvalid program counter\b",
        r"\bunspecified launch failure\b|\blaunch timed out and was terminated\b|\bhardware stack error\b|\bWarp (Illegal|Out-of-range|Misaligned)\b|\bwarp exception\b",
        r"\bdevice[- ]side assert(ion)?( was)? (triggered|failed|failure)\b|\bdevice-side assert\b|\bTriggered (a )?device-side assert\b",
        r"\b\w+\.cu:\d+: .{0,160}\bblock: \[\d+,\d+,\d+\], thread: \[.{0,160}\bassertion\b",
        r"\bblock: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] assertion\b|\bAssertion `?(srcIndex|idx_dim|t >= 0|input_val|index >= -)",
        r"\bGPU process crashed\b|\bDevice lost\b|\bdevice (reset|lost)\b.{0,20}$|\bGPU hang detected\b|\bgpu (has )?stopped responding\b",
        r"\bcuda runtime error \((59|77|700|710|719|4|74|73|716)\)|\bCUDA (failure|error) (700|710|719|716|214|702)\b",
        r"\b(uncorrectable|double[- ]bit) (ECC|NVLink)\b|\bECC (error|page retirement)\b.{0,30}\b(uncorrect|encountered|detected)|\buncorrectable ECC\b",
        r"\bsq_intr: error\b|\bUnable to determine the device handle\b|\bfailed to launch on the GPU\b|\bfallen off the bus\b|\bGPU is lost\b|\bGPU (has )?(been )?(lost|crashed|died|hung|disappeared|reset)\b|\bGPU ?hang\b|\bGPU (reset|recovery|crash|hang|fault)\b.{0,30}\b(begin|detected|required|started|succeed|fail|occurred|error|in progress)",
        r"\bNVRM: Xid\b|\bXid( \([^)]*\))?[: ]+\d+|\bXid error",
        r"\bMemory access fault by GPU\b|\bHW Exception by GPU\b|\bHSA_STATUS_ERROR_(EXCEPTION|MEMORY_FAULT|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION|FATAL|INVALID_PACKET_FORMAT)\b|\bPage not present or supervisor privilege\b",
        r"\bDXGI_ERROR_DEVICE_(REMOVED|HUNG|RESET)\b|\bDXGI_ERROR_DRIVER_INTERNAL_ERROR\b|\b(0x)?887A000[567]\b|\b(0x)?887A0020\b|\bGetDeviceRemovedReason\b|\bGPU will not respond to more commands\b|\bGPU device instance has been (suspended|removed|reset)\b",
        r"\bCONTEXT_LOST_WEBGL\b|\bwebgl ?context ?(was )?lost\b|\bCLR? context (was )?lost\b|\bgpu process (was )?(crashed|lost|gone)\b|\bGPUDeviceLostInfo\b|\bExternal Instance reference no longer exists\b",
        r"\b(device|gpu|adapter|vkdevice|cuda context|gpu context|context)( \S{1,24})? (is |was |has been |been |got |gets |became |becomes )?(lost|poisoned|destroyed|corrupted|unrecoverable)\b",
        r"\bring \w+ timeout\b|\bamdgpu\b.{0,40}\b(reset|timeout|hang)|\bGCVM_L2_PROTECTION_FAULT\b|\bi915\b.{0,40}\b(hang|reset)",
        r"\bCU(BLAS|DNN|FFT|SPARSE|SOLVER)_(STATUS_)?(EXECUTION_FAILED|MAPPING_ERROR|EXEC_FAILED|INTERNAL_ERROR)\b|\b(hip|roc)blas_status_(execution_failed|internal_error)\b|\bmiopenStatus(InternalError|UnknownError)\b",
        r"\bDEVICE_(LOST|HUNG|REMOVED)\b|\b(gpu|nvidia|cuda|device)\b.{0,40}\b(uncorrectable|unrecoverable) (hardware )?error\b",
        r"\bThe device is poisoned\b|\bUnexpected error variant \(driver implementation is at fault\)",
    ])
    .unless(&[r"\b(device tree|translation)\b", r"\bcould not create cudnn handle\b|\bfailed to (create|initiali[sz]e)\b|\bcudnn failed to initialize\b|\bcreate\(|\bcublasCreate|\bcudnnCreate"])
    .cause("The device or its context is gone: nothing on it can be used any more in this process."),
    rule(DeviceLost, Usual, &[
        r"\bnccl\b.{0,60}\b(remote process exited|connection closed|watchdog)\b|\bWatchdog caught collective operation timeout\b",
        r"\b(driver|gpu|device) (stopped responding|crashed|timed out|not responding)\b|\bTDR\b.{0,30}\b(timeout|detected|recover)|\bdisplay driver\b.{0,40}\bstopped responding\b",
        r"\binvalid (resource handle|device context)\b|\bCUDA_ERROR_INVALID_(CONTEXT|HANDLE)\b|\bdriver shutting down\b|\bCL_INVALID_(COMMAND_QUEUE|CONTEXT)\b|\bCUDA_ERROR_MAP_FAILED\b",
    ]),
    rule(DeviceLost, Hints, &[
        r"\b(RuntimeError|Error|error): (CUDA|HIP) (driver |runtime )?error: \w",
        r"\b(CUDA|HIP) (kernel )?(failure|launch (failed|failure))\b|\bcuda kernel failed\b",
    ])
    .unless(&[r"\bout of memory\b|\bTORCH_USE|\bno kernel image\b|\binvalid device function\b"]),
    // Never there.
    rule(DriverOrInit, Overrides, &[
        r"\bno (CUDA|ROCm|HIP|Metal|Vulkan|OpenCL)[- ](capable|enabled|compatible) (device|gpu|card)s?\b|\bCUDA driver version is insufficient\b|\bdriver/library version mismatch\b",
    ])
    .cause("The device could not be found or brought up: a driver, a library or a build without it."),
    rule(DriverOrInit, Names, &[
        r"\b(CUDA_ERROR|cudaError|hipError|HIP_ERROR)_?(NO_?DEVICE|INVALID_?DEVICE|SYSTEM_?NOT_?READY|SYSTEM_?DRIVER_?MISMATCH|COMPAT_?NOT_?SUPPORTED_?ON_?DEVICE|NOT_?INITIALIZED|INITIALIZATION_?ERROR|INSUFFICIENT_?DRIVER|DEVICES_?UNAVAILABLE|DEVICE_?NOT_?LICENSED|STUB_?LIBRARY|UNKNOWN|OPERATING_?SYSTEM|MPS_\w+|CALL_?REQUIRES_?NEWER_?DRIVER|SHARED_?OBJECT_?INIT_?FAILED|STARTUP_?FAILURE)\b",
        r"\b(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|ROCBLAS|MIOPEN)_(STATUS_)?(NOT_INITIALIZED|RUNTIME_PREREQUISITE_MISSING|VERSION_MISMATCH|SUBLIBRARY_\w+|LICENSE_ERROR|SETUP_FAILED)\b",
        r"\bcudnn\b.{0,30}\bfailed to initialize\b|\b(could not|failed to) create (cudnn|cublas|cusolver|cublaslt|hipblas|miopen) handle\b|\bDNN library (initialization failed|is not found)\b|\b(cusolver|cublas|cudnn|cufft|cusparse|hipblas|miopen|nccl)\w*( library)? (has |was |is )?not (been )?initiali[sz]ed\b|\b(cusolver|cublas|cudnn|cufft|cusparse|hipblas|miopen)\w*create\w*(\([^)]*\))? failed\b|\bcould not create cudnn handle\b",
        r"\bfailed call to cuInit\b|\bcuInit\b.{0,30}\b(fail|error|returned)|\bCUDA initialization\b.{0,40}\b(error|fail|unexpected|unknown|driver)|\b(CUDA|HIP|GPU|Vulkan|Metal|OpenCL|WebGPU|ROCm|backend|cuda backend) (failed to initiali[sz]e|initiali[sz]ation (failed|error|failure))\b|\b(failed|unable|could not|cannot|couldn't) (to )?initiali[sz]e (the )?(\w+ )?(CUDA|HIP|GPU|Vulkan|NVML|Metal|OpenCL|WebGPU|ROCm|ROCr|backend '?(cuda|gpu|rocm|tpu|metal|METAL))",
        r"\bUnable to initiali[sz]e backend\b|\bNo visible (GPU|TPU) devices?\b|\bno supported devices found for platform\b|\bNo GPU/TPU found\b|\bbackend '?(cuda|gpu|rocm|tpu|metal)'? (is not in the list of known backends|failed to initialize)",
        r"\bFound no NVIDIA driver\b|\bCUDA driver version is insufficient\b|\bNVIDIA driver (on your system )?is too old\b|\bdriver (version )?(is )?(too old|outdated|insufficient)\b|\bdriver/library version mismatch\b|\bkernel version \S+ does not match DSO version\b|\bcouldn't communicate with the NVIDIA driver\b|\bforward compatibility was attempted\b",
        r"\bNVML\b.{0,40}\b(error|fail|uninitiali[sz]ed|not (found|loaded|initiali[sz]ed)|mismatch|unknown)|\bNVMLError(_\w+)?(:|$)|\bNvidia-smi has failed\b|\bnvidia-smi\b.{0,30}\b(not found|failed)",
        r"\bno (CUDA|HIP|ROCm|NVIDIA)[- ]?(capable|enabled|compatible)? ?(devices?|gpus?|hardware)\b( (is|are|was|were|available|detected|found))?|\bNo (GPUs?|accelerators?|Metal devices?|OpenCL (devices?|platforms?)|Vulkan( physical)? devices?|compute devices?|device) ?(is |are |was |were )?(available|found|detected|visible|present)\b|\bno (suitable|compatible|usable|possible|valid|available|matching)\b.{0,20}\b(adapters?|physical devices?)\b|\bno (suitable|compatible|usable|possible|valid|available) (graphics |gpu |vulkan |wgpu |webgpu )?(adapters?|devices?|gpus?)\b|\bNoSuitableAdapterFound\b|\bNo ?Adapter\w*\b.{0,20}\b(available|found)?|\bAdapterNotFound\b|\bNoCompatibleDevice\b",
        r"\brequest_?adapters?\b.{0,60}\b(none|null|notfound|fail|err)|\brequestAdapter\b.{0,40}\b(null|fail|undefined)|\bfailed to (find|get|request|create|acquire|obtain|open)( an?| any| the)? ?(appropriate |suitable |compatible |usable )?(gpu |wgpu |webgpu |vulkan |graphics |metal |cuda |opencl )*(adapter|device|physical device|context)\b|\bunable to (find|get|request|create|acquire|open)( an?| any| the)? ?(appropriate |suitable |compatible |usable )?(gpu |wgpu |webgpu |vulkan |graphics |metal |cuda )*(adapter|device|physical device|context)\b|\badapter\b.{0,20}\b(not found|unavailable)\b|\bNo adapter (available|found)\b",
        r"\brequestDevice\b|\bRequestDeviceError\b|\bUnable to request a wgpu device\b|\bLimit '?\w+'? value \d+ is better than allowed\b|\bRequired limit\b.{0,60}\bgreater than the supported limit\b|\bUnsupported features were requested\b",
        r"\binvalid device (ordinal|id)\b|\binvalid CUDA '?device(=|:)\S+|\binvalid device (index|number)\b|\bdevice (ordinal|index) .{0,20}\b(out of range|is invalid|not available)\b|\bInvalid device string\b|\bdevice type at start of device string\b|\bcuda runtime error \((3|10|30|35|36|38|46|71|100|101|804|999)\)|\bCUDA (failure|error) (35|38|100|101|999|804|802|803)\b",
        r"\b(all )?CUDA-capable devices? (is|are) busy or unavailable\b|\bCUDA (unknown|initiali[sz]ation) error\b|\bCUDA error: (unknown error|initialization error|system not yet initialized|OS call failed)|\bincorrectly set up environment\b",
        r"\b(not|n't|without|isn't|wasn't|never) (been )?(compiled|built|linked|installed|build) (with|for|using) (\w+ )?(cuda|rocm|hip|metal|mps|gpu|vulkan|cudnn|xpu|nccl)\b|\bwas not built with (cuda|gpu|rocm)|\bnot (linked|compiled) with support for mps\b|\bMPS (backend )?(is |device )?not (available|built|supported)\b|\bMPS backend is supported on\b|\bCUDA (is |was )?(not |un)available\b|\bcuda is not (available|enabled|supported)\b|\bCUDA (support )?not (available|enabled|found|detected|installed)\b|\bTorch is not able to use GPU\b|\bis_available(\(\))? ?(is|returned|returns|==|=|:|总是|返回|为)? ?false\b|\btype torch\.cuda\.\w+ not available\b|\bGPU is not (available|accessible|detected|supported)\b|\bGPU (device )?not found\b",
        r"\blib(cuda|cudart|cudnn|cublas|cublasLt|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|nvToolsExt|nvidia-ml|amdhip64|hip\w*|hsa-runtime64|rocblas|rocm\w*|MIOpen|vulkan|OpenCL|tensorrt|nvinfer|cupti|torch_cuda|c10_cuda|onnxruntime_providers_\w+|bitsandbytes_cuda\w*|cudnn_\w+)[\w.-]*\.(so|dylib)[\w.]*\b.{0,60}\b(cannot open|not found|no such file|failed|undefined symbol|could not|wrong)",
        r"\b(could not|unable to|cannot|can't|failed to|couldn't|error) (load|loading|open|find|locate|dlopen)\b.{0,60}\b(lib)?(cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse|nccl|nvcuda|amdhip|vulkan|nvml|nvidia-ml|OpenCL|nvrtc|onnxruntime_providers|zlibwapi|tensorrt|nvinfer)[\w-]*(\.so|\.dll|\.dylib|64_|\b library| dynamic library)?",
        r"\b(undefined symbol|symbol lookup)\b.{0,80}\b(cuda|cudnn|cublas|cusparse|nvJitLink|nccl|hip|cu[A-Z]\w+|libcu\w+|libnv\w+)|\b_?_?nvJitLink\w+\b",
        r"\b(LoadLibrary|dlopen|WinError (126|127|193|1114))\b.{0,120}\b(cuda|cudnn|cublas|nvcuda|cudart|onnxruntime_providers|torch_cuda|caffe2_nvrtc|c10_cuda|nvrtc|hip|vulkan|nvml|tensorrt|cufft|curand|cusparse|cusolver|nvToolsExt)",
        r"\bFailed to (create|load|initialize)\b.{0,40}\b(\w+ExecutionProvider|execution provider|CUDA provider|TensorRT provider)\b|\b\w+ExecutionProvider\b.{0,40}\b(is not (in|available|supported|enabled)|not found|failed|unavailable|was not)\b|\bEP Error\b|\bCUDA (execution )?provider\b.{0,40}\b(not|fail|unable)",
        r"\bVK_ERROR_(INCOMPATIBLE_DRIVER|INITIALIZATION_FAILED|LAYER_NOT_PRESENT|EXTENSION_NOT_PRESENT|FEATURE_NOT_PRESENT)\b|\bERROR_(INCOMPATIBLE_DRIVER|INITIALIZATION_FAILED)\b|\bvkCreate(Instance|Device)\b.{0,40}\b(fail|return|error)|\b(vulkan )?(loader|ICD)\b.{0,60}\b(not found|fail|missing|no (drivers?|icd)|could not|unable|cannot)|\bfailed to (load|find|open) (the )?vulkan\b|\bno vulkan (loader|drivers?|icd|layers?|implementation)\b|\b(ERROR|fatal)\b.{0,20}\bloader_\w+\b",
        r"\bcould not select device driver\b|\bnvidia-container-cli\b.{0,80}\b(error|fail)|\bunknown runtime specified nvidia\b|/dev/(kfd|nvidia\w*|dri\S*)\b.{0,60}\b(permission|no such|denied|unable|fail|not)|\b(unable|failed|cannot|can't) to open\b.{0,12}/dev/(kfd|nvidia|dri)|\bROCk module is NOT loaded\b|\bhsa api call failure\b|\bhsa_init\b.{0,30}\bfail|\brocminfo\b.{0,60}\b(fail|error)|\bno ROCm-capable device\b|\bHIP initialization\b",
        r"\bCUDA Setup failed\b|\bCUDA SETUP\b.{0,60}\b(fail|not found|error|required)|\bbitsandbytes\b.{0,80}\b(without GPU support|not compiled|no GPU)|\bcompiled without GPU support\b|\bCannot get memory available for CUDA device\b|\b(could not|cannot|failed to|unable to|couldn't|can't) (get|read|query|determine|detect|find)\b.{0,24}\bcompute[ _]cap\w*",
        r"\bre-initialize CUDA in forked subprocess\b",
        r"\bdetected CUDA version\b.{0,60}\bmismatches\b|\bmismatche?s? the version that was used to compile\b|\bCUDA_HOME environment variable is not set\b|\bCUDA (version )?mismatch\b|\bcompiled with different CUDA versions?\b|\b(incompatible|wrong|unsupported) (cuda|driver|cudnn|rocm) version\b|\bloaded runtime CuDNN library\b|\bcudnn version (incompatib|mismatch)|\bCuDNN library needs to have\b|\bcuDNN version\b.{0,30}\bincompatib",
        r"\bdynamically load the .{0,4}(cuda|nvcuda|nvrtc|cublas|cudnn|curand|nccl|vulkan|hip)\b|\b(CUDA|HIP|GPU|NVIDIA|Vulkan|Metal) driver (initiali[sz]ation|init|load(ing)?) (has )?(failed|failure|error)\b|\bmight not have a (cuda|gpu|nvidia)\b|\b(GPU|CUDA|accelerator|cuda device) (is|are) (required|needed|necessary)\b|\b(needs?|requires?) (a|an|at least one) (cuda|nvidia|gpu|amd)( gpu| device|-capable)?\b.{0,20}\b(to|but|for|none|no )|\bA GPU is needed\b|\bInvalid device id\b|\berror while loading shared libraries: lib(cu|nv|hip|roc|vulkan|amd)\w*",
        r"\bWebGPU is not (supported|available|enabled)\b|\b(backend|metal|mps|cuda|directml|rocm)\b.{0,24}\bonly (available|supported) (on|for) (macos|windows|linux|apple|ios)\b|\bnavigator\.gpu (is )?(undefined|null|not)|\bMetal is not (supported|available)\b|\bMTLCreateSystemDefaultDevice\b.{0,40}\b(nil|null|fail|return)|\bno (default )?metal device\b|\bggml_\w+: no devices found\b|\bno platforms that are instances of\b|\bUnknown backend:? '?(gpu|cuda|rocm|tpu|metal)\b|\bfailed to initialize ggml backend\b|\bggml_(cuda|metal|vulkan|backend)_init\w*\b.{0,40}\b(fail|error|no )|\bggml_backend_\w+: (failed|error)\b",
        r"\b(compiled|built|build) without (the )?(\w+ )?(cuda|rocm|hip|metal|gpu|vulkan|mps|xpu)\b|\bfailed to create (a |the )?command queue\b|\b(TPU|GPU|CUDA|Metal|ROCm) ?platform is not available\b|\bno \w+ devices? (was |were )?(found|available|detected)\b|\b(\w+_)?(tpu|cuda|gpu|hip|rocm|vulkan)_init\w* failed\b|\bdnn != nullptr\b|\bno (available|cuda|gpu|rocm|tpu|metal|vulkan) backends? (was |were |is )?(found|provided|registered|available)\b|\b(webgpu|wgpu|cuda|gpu|metal|vulkan|rocm|xpu|npu|tpu|directml|coreml)\b\W{0,3}(backend|provider) (was |is )?not (found|registered|available)\b|\b(unsupported|unknown|unrecogni[sz]ed|invalid) device:? [\x22'`]?\w+[\x22'`]?\W{1,3}(should|must|expected|choose|supported|available|valid)\b|\b'?(cuda|wgpu|webgpu|metal|vulkan|rocm|hip|tch)'? feature is not enabled\b|\bbackend \S{1,24} was not enabled on the instance\b|\bfailed to get convolution algorithm\b",
        r"\bGraphics API \S+ is unavailable in this build\b|\bInvalid wgpu configuration\b|\bUnable to register wgpu runtime\b|\bnot been built with (cuda|metal|mkl|accelerate) support\b|\bUnexpected error from cuda\w+\(\)|\bcudaGetDeviceCount\b.{0,60}\b(error|fail|return)|\bcuDevicePrimaryCtxRetain\b|\bno such device\b|\bgpuDeviceGetAttribute\b",
        r"\b(Torch|TensorFlow|JAX|this build|this binary|This version|package|wheel)\b.{0,40}\b(CPU[- ]only|does not (support|include) (cuda|gpu|rocm|metal))",
    ])
    .unless(&[
        r"\bdeprecat|\bhas no attribute\b|\bcannot import name\b|\bdeserialize object\b|\bnvrtc: error\b|\bnvrtc compilation\b",
        r"ALLOC_FAILED|OUT_OF_MEMORY|\bunable to allocate\b|\bfailed to allocate\b|\bnot enough (gpu |device )?memory\b",
        r"\bMTLLibraryError|\bprogram_source\b|\bpipeline error\b|\bcompiler error\b|\berror compiling\b",
    ])
    .cause("The device could not be found or brought up: a driver, a library or a build without it."),
    rule(DriverOrInit, Names, &[
        r"\bmissing (xla|xrt|pjrt|tpu|cuda|gpu) config(uration)?\b|\b(XRT_\w+|PJRT_DEVICE)\b.{0,40}\b(not set|unset|missing|must be set)\b",
        r"\b(client|context) (is |was )?already (created|registered|initiali[sz]ed) for device\b",
        r"\b(linked|compiled|built) against\b.{0,40}\b(cu(blas|dnn|da)\w*|tensorrt|nccl|hip\w*|rocm)\b.{0,40}\bbut loaded\b",
        r"\bTried to instantiate dummy base class\b",
        r"\bdid not contain\b.{0,40}\blib(cuda|cudart|cublas|cudnn|hip|roc)\w*",
        r"\bfailed to (infer|determine|detect|resolve) (the )?device( type)?\b",
        r"\binvalid (gpu|hip|opencl|vulkan|compute) (device|id|index)\b",
        r"\bnot (linked|compiled|built) with support for (\w+ devices?|xla|cuda|hip|xpu|vulkan|opencl|metal|hpu|npu|ipu)\b",
        r"\bno interface for \S{1,24} is available\b",
        r"\bcould not create an engine\b",
        r"\bProvider(Shared)?Library::\w+\b.{0,60}\bfail|\binit provider bridge failed\b|\b\w*AppendExecutionProvider_\w+\b.{0,40}\bfail",
        r"\bfail\w* to load (the )?(mlx|cuda|rocm|hip|vulkan|opencl|openvino|onednn|tensorrt|directml|npu) (dynamic |shared |native )?library\b|\bMLX (is )?not available\b",
        r"\berror loading .{0,240}\b(c10|torch)_(cuda|xpu|hip)\w*\.dll\b",
        r"\b(prediction|inference|execution|acceleration)\b.{0,24}\bis only (available|supported) on (macos|windows|linux|apple|ios)\b",
        r"\bVUID-VkDeviceCreateInfo|\bVUID-VkInstanceCreateInfo",
    ])
    .without(&[r"\bTensorRT\b.{0,80}\bengine\b"])
    .cause("The device could not be found or brought up: a driver, a library or a build without it."),
    // Python's loader says "module" of a library that one of the device's own is missing for.
    rule(DriverOrInit, Overrides, &[
        r"\bDLL load failed\b.{0,60}\b(torch_directml\w*|torch_cuda\w*|onnxruntime\w*|cupy\w*|tensorrt\w*|pycuda\w*|_driver|bitsandbytes\w*|pyopencl\w*|cuda\w*|nvidia\w*|jaxlib\w*|_pywrap_tensorflow\w*|pynvml)\b",
        r"\b(load|import|importing) (onnxruntime|tensorrt|cupy|pycuda|jaxlib|torch_directml|bitsandbytes)\b\S*.{0,40}\bDLL load failed\b",
    ])
    .cause("A library of the device's runtime, or one that it needs, could not be loaded."),
    // The list of Metal devices was empty, in a virtual machine or a session without a screen.
    rule(DriverOrInit, Usual, &[r"\bNSRangeException\b|\bbeyond bounds for empty (NS)?array\b|\bswap_remove index \(is 0\)|\bthe len is 0 but the index is 0\b"])
        .with(&[r"metal::device|MTLCopyAllDevices|MTLDevice|MetalDevice|CudaDevice|new_metal|new_cuda"]),
    // A device that is lost while it is asked for was never there.
    rule(DriverOrInit, Overrides, &[r"\brequest_device\b.{0,80}\b(lost|fail\w*|error)\b|\blost during initiali[sz]ation\b"])
        .cause("The device could not be found or brought up: a driver, a library or a build without it."),
    rule(DriverOrInit, Names, &[r"\bHSA_STATUS_ERROR_OUT_OF_RESOURCES\b"])
        .with(&[r"rocminfo|hsa api call failure|hsa_init|clinfo"])
        .cause("The ROCm runtime could not be brought up; the words about resources are its general answer."),
    rule(DriverOrInit, Usual, &[
        r"\berror: (CUDNN|CUBLAS)_STATUS_SUCCESS\b",
        r"\bCUDA error\b.{0,20}\b(no device|invalid device|driver version)|\bnccl\b.{0,60}\b(unhandled (system|cuda) error|internal error|invalid usage)|\bncclUnhandledCudaError\b|\bncclSystemError\b|\bncclInternalError\b",
        r"\b(GPU|CUDA|driver|accelerator)\b.{0,40}\b(not|isn't|wasn't) (properly )?(installed|detected|recogni[sz]ed|configured|set up)\b",
        r"\b(install|update|upgrade) (the |your )?(nvidia |gpu |graphics |cuda |amd )?drivers?\b",
        r"\bfailed to (open|initialize|start|bring up) (the )?(gpu|device|accelerator|driver)\b",
    ]),
    // A submission failed.
    rule(CommandBuffer, Names, &[
        r"\bkIOGPUCommandBufferCallbackError(Timeout|PageFault|SubmissionsIgnored|InnocentVictim|BlackListed|NotPermitted|InvalidResource|AccessRevoked|Memoryless|StackOverflow|Internal|Exclusive|\w+)\b|\bMTLCommandBufferError(Timeout|PageFault|AccessRevoked|Blacklisted|NotPermitted|InvalidResource|DeviceRemoved|StackOverflow|Internal|None|Memoryless)?\b",
        r"\bMTLCommandBufferErrorDomain\b|\b_MTLCommandBuffer\b|\bMTLCommandBufferStatus\S*Error\b",
        r"\bCaused GPU (Timeout|Address Fault|Page Fault)\b|\bImpacting Interactivity\b|\bvictim of GPU error/recovery\b|\bIgnored \(for causing prior\b|\bIOAF code \d+|\bInnocent Victim\b|\bDiscarded \(victim\b|\bInvalid Resource \(0*9:|\bGPU Timeout Error\b|\bGPU Address Fault\b",
        r"\b(execution of the )?command buffers?( execution)?\b.{0,60}\b(was |were |has )?(aborted|failed|exited with error|error|timed out|not completed|already committed|already been (submitted|committed)|is invalid|invalid|uncommitted|rejected|discarded|failure|timeout|fault)\b",
        r"\b(aborted|failed|error|cannot|can't|invalid|unable to)\b.{0,60}\bcommand (buffer|encoder)s?\b",
        r"\bcommand encoder\b.{0,60}\b(already|invalid|not|must|ended|locked|without)\b|\bencoder\b.{0,30}\b(is already encoding|already encoding|must not have ended|is invalid|is locked|has (already )?ended|not been ended)\b|\bEncoding must not have ended\b|\bEncoder is (invalid|locked)\b|\bParent encoder is invalid\b|\buncommitted encoder\b",
        r"\bcommit an already committed\b|\bCompleted handler provided after commit\b|\b\[\w*CommandBuffer \w+[^\]]*\]\S* failed assertion\b|\bfailed assertion\b.{0,60}\bcommand (buffer|encoder)|\baddCompletedHandler\b.{0,40}\bfail",
        r"\bMTLCommandBufferStatus\w+\b.{0,80}CommandBuffer\b|\bThis command buffer has already been submitted\b|\bCommandBuffer\b.{0,40}\b(is invalid|has been (destroyed|submitted|consumed))\b|\bcommand queue\b.{0,40}\b(full|exhausted|failed|error)\b|\bGPU page ?fault\b|\bpage fault\b.{0,40}\b(gpu|metal|command)|\bmetal\b.{0,40}\bpage fault\b",
        r"\bcommand buffers?\b.{0,40}\b(took too long|not committed|in the initial state)\b|\bpCommandBuffers\b|\b(metal|gpu) (gpu )?(command )?time(d )?out\b|\bwait for the given submission\b|\bpass has already (been )?ended\b",
        r"\bfence (wait )?(timed out|timeout)\b|\bvkWaitForFences\b.{0,30}\b(timeout|timed out|fail)|\bVK_TIMEOUT\b|\b(gpu|queue|command|work|kernel) submissions? (was |has been )?(ignored|rejected|failed)\b|\bin submit while (destroyed|mapped)\b|\bgpu (work|submission|command)s? (timed out|was aborted)\b",
    ])
    .unless(&[
        r"\bOutOfMemory\b|\bInsufficient Memory\b|\bout of memory\b|\bnot enough memory\b",
        r"\bErrorHang\b|\bGPU Hang\b|\bDEVICE_LOST\b|\bDeviceRemoved\b|\bdevice (is|was) lost\b",
        r"\bundefined symbol\b|\bhas no attribute\b",
    ])
    .cause("Work was submitted to the GPU and did not complete; the device may live on."),
    rule(DriverOrInit, Names, &[
        r"\b887A0004\b|\bfeature level is not supported on this system\b|\bDXGI_ERROR_(UNSUPPORTED|NOT_FOUND)\b",
        r"\bSymbol not found: \S+|\blib\w*(metal|cuda|cudnn|vulkan|hip|rocm|mps)\w*\.(dylib|so|dll)\b.{0,80}\b(not found|missing|image not found|could not|cannot)",
        r"\bggml_(metal|cuda|vulkan|backend)\w*_init\w*\(\) failed\b",
    ])
    .cause("The device could not be found or brought up: a driver, a library or a build without it."),
    rule(DriverOrInit, Hints, &[
        r"\b(driver|cuda|gpu|adapter|nvidia|rocm|vulkan|metal device|accelerator)\b.{0,40}\b(not found|missing|unavailable|not present|failed to (load|start|open|init\w*)|could not be (found|loaded|opened))\b",
        r"\b(could not|cannot|can't|unable to|failed to) (find|detect|see|access|use|reach)\b.{0,24}\b(gpus?|cuda|driver|nvidia|metal device|adapter|accelerator)\b",
    ])
    .unless(&[r"\bNo such file\b|\bkernel\b|\bfunction\b|\bsymbol\b"]),
    rule(CommandBuffer, Names, &[
        r"\bMetal Performance Shaders operations encoded on it may not have completed\b",
        r"\bUNASSIGNED-CoreValidation-(DrawState|CommandBuffer|CmdBuf|Queue|Image|MemTrack)\w*|\bVUID-vkCmd|\bVUID-vkQueue|\bVUID-vkBeginCommand|\bVUID-vkEndCommand|\bVUID-vkResetCommand|\bsubmitted command buffer expects\b",
        r"\b(required usage|usage flag|MTL(Texture|Buffer)Usage\w*|(Buffer|Texture)Usages\()\b|\b(buffer|texture)\b.{0,40}\b(is )?still mapped\b|\bis missing the `?\w+`? usage\b",
    ])
    .without(&[r"\bInsufficient Memory\b|OutOfMemory|ErrorHang"]),
    // API misuse that a validation layer caught.
    rule(CommandBuffer, Hints, &[
        r"\bIn a (CommandEncoder|ComputePass|RenderPass|pass parameter|set_bind_group command|set_pipeline command)\b|\bIn a CommandEncoder\b|\bQueue::submit\b|\bqueue\.submit\b.{0,60}\b(error|fail|invalid)",
        r"-\[(_?MTL|IOGPU|AGX|MTLDebug)\w* [^\]]*\].{0,24}\bfailed assertion\b",
    ]),
];
