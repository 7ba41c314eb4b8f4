//! Status codes, by their naming schemes. Every vendor has an enumeration of its own
//! (`CUDA_ERROR_…`, `hipError…`, `VK_ERROR_…`, `UR_RESULT_ERROR_…`, `CL_…`, `HSA_STATUS_…`), and all
//! end in the same few words, in capitals or run together.

use super::FaultKind::{
    DeviceLost, DriverOrInit, KernelCompile, OutOfMemory, ShapeMismatch, UnsupportedDtype,
    UnsupportedOp,
};
use super::Weight::{Names, Overrides};
use super::{TextRule, rule};

/// A CUDA or HIP error by its number. One pattern for each, so that each is only tried where its
/// own digits are.
macro_rules! cuda {
    ($($number:literal),+) => {
        &[$(concat!(
            r"\b(cuda|hip)\w* ?(runtime |driver |api )?(error|failure|failed with error|status|error code)( code)?[ :=#(!]{1,3}",
            $number,
            r"\b",
        )),+]
    };
}

/// The same numbers as older PyTorch prints them: after the file and the line.
macro_rules! thc {
    ($($number:literal),+) => {
        &[$(concat!(r"\bTHCudaCheck FAIL\b.{0,240}\berror=", $number, r"\b")),+]
    };
}

/// And as Caffe does: beside what was hoped for.
macro_rules! caffe {
    ($($number:literal),+) => {
        &[$(concat!(r"== cudaSuccess \(", $number, r" vs\.? 0\)")),+]
    };
}

/// A cuBLAS status by its number.
macro_rules! cublas {
    ($($number:literal),+) => {
        &[$(concat!(r"\bcublas\w* (error|failure|status) ?[:=(]? ?", $number, r"\b")),+]
    };
}

/// A Vulkan result by its number, after the call that returned it.
macro_rules! vulkan {
    ($($number:literal),+) => {
        &[$(concat!(r"\b(vkqueue\w+|vkwait\w+|vkdevice\w+|vkcreate\w+|vkalloc\w+|vkmap\w+|vkresult|vulkan (error|result|status|failure))\b.{0,40}[ :=(]", $number, r"\b")),+]
    };
}

/// An OpenCL status by its number, after the call that returned it.
macro_rules! opencl {
    ($($number:literal),+) => {
        &[$(concat!(r"\b(clget\w+|clcreate\w+|clenqueue\w+|clwait\w+|clfinish)\b.{0,40}[ :=(]", $number, r"\b")),+]
    };
}

pub(super) const RULES: &[TextRule] = &[
    rule(OutOfMemory, Overrides, vulkan!["-1", "-2"]),
    rule(DeviceLost, Overrides, vulkan!["-4"]),
    rule(OutOfMemory, Names, opencl!["-4", "-6", "-61"]),
    rule(DriverOrInit, Names, opencl!["-1", "-2", "-1001"]),
    // Their numbers, where only they are printed.
    rule(OutOfMemory, Names, cublas![3]),
    rule(OutOfMemory, Names, thc![2]),
    rule(DeviceLost, Names, thc![4, 59, 73, 74, 77, 700, 710, 716, 719]),
    rule(DriverOrInit, Names, thc![3, 10, 30, 35, 38, 46, 71, 100, 101, 804, 999]),
    rule(UnsupportedOp, Names, thc![8, 9, 48, 98, 209]),
    rule(KernelCompile, Names, thc![7, 701]),
    rule(OutOfMemory, Names, caffe![2]),
    rule(DeviceLost, Names, caffe![4, 6, 59, 73, 74, 77, 700, 702, 710, 716, 719]),
    rule(DriverOrInit, Names, caffe![3, 10, 30, 35, 38, 46, 71, 100, 101, 804, 999]),
    rule(UnsupportedOp, Names, caffe![8, 9, 48, 98, 209]),
    rule(KernelCompile, Names, caffe![7, 701]),
    rule(DeviceLost, Names, cuda![214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719]),
    rule(DeviceLost, Names, cublas![11, 13, 14]),
    rule(DriverOrInit, Names, cuda![100, 101, 102, 201, 303, 304, 802, 803, 804, 805, 999]),
    rule(DriverOrInit, Names, cublas![1]),
    rule(KernelCompile, Names, cuda![200, 218, 220, 221, 222, 223, 300, 701]),
    rule(UnsupportedOp, Names, cuda![209, 500, 801]),
    rule(UnsupportedOp, Names, cublas![8, 15]),
    rule(ShapeMismatch, Names, cublas![7]),
    // Their names.
    rule(OutOfMemory, Names, &[
        r"(out_of_|outof)(device|host|pool|gpu|video)_?memory|\w(out_of_memory|outofmemory)\b",
        r"\b\w*(status|error|result|failure)\w*_?alloc(ation)?_?(fail\w*|error)\b|\b\w+_alloc(ation)?_fail\w*",
        r"\b(MEM_OBJECT|MEMORY|BUFFER|TEXTURE|HEAP)_?ALLOC(ATION)?_?FAIL\w*|\b\w*(error|status)_?(memory_?alloc\w*|not_?enough_?memory|no_?memory|insufficient_?memory|fragment\w*)\b",
        r"\bcuda runtime error \((2|0x2)\)|\bCUDA (failure|error|status)[:! ]+2\b|\b(cuda|hip)\w* (failed|failure|error)( with)?( error| code| status)? ?[:=(]? ?2\b|\b8007000E\b|\bcode ?[=:] ?-?2: VK_",
    ]),
    rule(DeviceLost, Names, &[
        r"\b\w*(error|result|status|err)\w*_?device_?(lost|removed|hung|reset|unavailable_?lost)\b|\bDevice(Lost|Removed|Hung|Reset)\w*|\bDEVICE_REMOVAL_\w+",
        r"\b\w*(error|status|result)_?(context_?lost|gpu_?lost|gpu_?hang|illegal_?address|illegal_?instruction|launch_?fail\w*|launch_?timeout|memory_?fault|hardware_?fault|execution_?failed|exec_?failed|mapping_?error|unrecoverable\w*|fatal)\b",
        r"\bNVML_ERROR_(GPU_IS_LOST|RESET_REQUIRED)\b|\bNVMLError_(GpuIsLost|ResetRequired)\b|\bRESET_REQUIRED\b",
    ])
    .unless(&[r"\bout[ _-]?of[ _-]?memory\b|\bInsufficient Memory\b"]),
    rule(DriverOrInit, Names, &[
        r"\b\w*(error|err|status|result|vk|cl|nvml)\w*_?(incompatible_?driver|initiali[sz]ation_?(failed|error)|not_?initiali[sz]ed|uninitiali[sz]ed|driver_?(mismatch|version\w*|not_?loaded|not_?found|not_?available)|version_?mismatch|(no_device|nodevice)s?|(device_not_|devicenot)(found|available)|devices?_?(unavailable|not_?licensed)|invalid_?device(_?(id|index|type|ordinal|string))?|insufficient_?driver|library_?(not_?found|version\w*)|lib_?rm_?version_?mismatch|no_?permission|platform_?not_?found\w*|invalid_?platform|adapter_?not_?found|(feature|extension|layer)_?not_?present|dependency_?unavailable|system_?not_?ready|unknown_?driver)\b",
    ])
    .unless(&[r"\bout[ _-]?of[ _-]?memory\b|\bcompil\w*|\bmodel\b|\bcheckpoint\b"]),
    rule(KernelCompile, Names, &[
        r"\b\w*(build_?program_?failure|compile_?program_?failure|link_?program_?failure|module_?(build|link)_?failure|program_?(build|link)_?failure|invalid_?kernel(_?(image|name|definition|args|attribute_value))?|invalid_?(shader\w*|module|program\w*|spirv|spir_v|native_?binary|binary))\b",
        r"\b\w*compil(e|ation|er)_?(error|fail\w*)\b|\bair version set to\b|\b(LoadLibraryError|CreatePipelineError|PipelineCreation\w*|ShaderError|CreateShaderModuleError|CreateComputePipelineError|InvalidShaderModule)\b",
    ])
    .unless(&[r"\bInvalidTypeWidth\b|\bunsupported_?d?type|\bout of memory\b|\bdevice is lost\b|\bSHADER_F(16|64)\b|\buses-fp64|\bcython\b|\bdistutils|\bgcc\b|\bbyte-?compil"]),
    rule(UnsupportedOp, Names, &[
        r"\b\w*(error|status|result|err)\w*_?(unsupported(_?feature|_?op\w*|_?operation)?|not_?supported|feature_?not_?supported|not_?implemented|unimplemented|arch_?mismatch|no_?binary\w*|no_?kernel_?image\w*|unsupported_?limit)\b",
    ])
    .unless(&[r"\bdtype|\bdata_?type|\bfp64\b|\bbf16\b|\bbfloat16\b|\bunsupported_?ptx"]),
    rule(UnsupportedDtype, Overrides, &[
        r"\b\w*unsupported_?(d_?type|data_?type|element_?type|scalar_?type|precision|tensor_?type)\w*|\buses-fp64-math\b|\b(aspect|extension|feature|capability|capabilities) ?\(?:? ?'?(cl_khr_)?(fp64|fp16|f64|bfloat16|shader-?f16)\b",
    ]),
    rule(ShapeMismatch, Names, &[
        r"\b(Incompatible|Invalid|Unexpected|Mismatched|Wrong)(Shapes?|Dims?|Dimensions?|Ranks?|Strides?|Axis)\w*|\b(Shape|Rank|Dim|Dimension|Stride|Axis)s?(Mismatch|Error|Incompatible|OutOfRange|OutOfBounds)\w*",
    ])
    .unless(&[r"\bcheckpoint\b|\bstate_dict\b|\bin loading\b|\bfor parameter\b"]),
];
