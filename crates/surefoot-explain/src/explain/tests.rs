//! Disguises: texts that say one kind's words and mean another's.

use super::{explain_by_rules as explain, *};
use surefoot_core::fault::FaultKind::{self, *};

fn kind(text: &str) -> FaultKind {
    explain(text).kind
}

#[test]
fn memory_that_ran_out_is_known_by_any_name() {
    for text in [
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED",
        "Invalid buffer size: 18.5 GB",
        "what():  std::bad_alloc",
        "Unable to allocate 3.2 GiB for an array with shape (20000, 20000)",
        "Killed",
        "Buffer size 536870912 is greater than the maximum buffer size (268435456)",
        "[malloc_or_wait] Unable to allocate 8589934592 bytes.",
    ] {
        assert_eq!(kind(text), OutOfMemory, "{text}");
    }
}

#[test]
fn a_kernel_that_does_not_fit_is_no_lack_of_memory() {
    let text = "OutOfMemoryError: out of resource: shared memory, Required: 131072, Hardware limit: 101376";
    assert_eq!(kind(text), KernelCompile);
}

#[test]
fn a_full_disk_is_no_device_but_a_full_shm_is_the_loader() {
    assert_eq!(kind("OSError: [Errno 28] No space left on device"), NotDeviceRelated);
    assert_eq!(
        kind("unable to write to file </torch_29919_264>: No space left on device (28)"),
        DataLoading
    );
}

#[test]
fn oom_inside_other_words_and_in_advice_is_nothing() {
    for text in [
        "Loading bloom-7b1 for the zoom room",
        "OOM killer is disabled",
        "converted to channels_last memory_format",
        "Tip: lower the batch size to avoid running out of memory.",
        "This release fixes an out of memory bug.",
    ] {
        assert_eq!(kind(text), NotDeviceRelated, "{text}");
    }
}

#[test]
fn two_type_names_clash_by_device_or_by_element() {
    let pair = |a: &str, b: &str| {
        kind(&format!("RuntimeError: Input type ({a}) and weight type ({b}) should be the same"))
    };
    assert_eq!(pair("torch.cuda.FloatTensor", "torch.FloatTensor"), DeviceMismatch);
    assert_eq!(pair("torch.cuda.HalfTensor", "torch.cuda.FloatTensor"), DtypeMismatch);
    assert_eq!(pair("MPSHalfType", "MPSFloatType"), DtypeMismatch);
    assert_eq!(pair("MPSFloatType", "torch.FloatTensor"), DeviceMismatch);
}

#[test]
fn a_graph_abort_is_named_for_its_element_types() {
    let abort = |a: &str, b: &str| {
        kind(&format!(
            "error: input types '{a}' and '{b}' are not broadcast compatible\nLLVM ERROR: Failed to infer result type(s)."
        ))
    };
    assert_eq!(abort("tensor<1x4xf32>", "tensor<4xf16>"), DtypeMismatch);
    assert_eq!(abort("tensor<1x4xf32>", "tensor<5xf32>"), ShapeMismatch);
}

#[test]
fn a_status_code_is_read_by_its_naming_scheme() {
    for (text, expected) in [
        ("UR_RESULT_ERROR_DEVICE_LOST", DeviceLost),
        ("call failed: XYZ_STATUS_ERROR_DEVICE_REMOVED", DeviceLost),
        ("vk::createInstance: ErrorIncompatibleDriver", DriverOrInit),
        ("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", OutOfMemory),
        ("UR_RESULT_ERROR_PROGRAM_BUILD_FAILURE", KernelCompile),
        ("ZE_RESULT_ERROR_UNSUPPORTED_FEATURE", UnsupportedOp),
        ("CUDA failure 719 in worker", DeviceLost),
        ("cuBLAS error 3 at gemm.cu:12", OutOfMemory),
    ] {
        assert_eq!(kind(text), expected, "{text}");
    }
}

#[test]
fn a_turn_of_phrase_counts_only_where_no_rule_names_the_fault() {
    let found = explain("ValueError: the ranks of both matrices must be identical");
    assert_eq!((found.kind, found.confidence), (ShapeMismatch, 0.5));
    let found = explain("CUDA out of memory; the ranks of both matrices must be identical");
    assert_eq!((found.kind, found.confidence), (OutOfMemory, 0.95));
    for text in [
        "io.UnsupportedOperation: not readable",
        "ValueError: optimizer got an empty parameter list",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available (--gres=gpu:8)",
        "CCompilerError: Cygwin gcc cannot be used with --compiler=mingw32",
        "device, lost property office",
    ] {
        assert_eq!(kind(text), NotDeviceRelated, "{text}");
    }
}

#[test]
fn boilerplate_about_assertions_is_no_assertion() {
    let text = "RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.";
    assert_eq!(kind(text), OutOfMemory);
    assert_eq!(kind("CUDA error: device-side assert triggered"), DeviceLost);
}

#[test]
fn the_root_below_a_tainted_buffer_decides() {
    let text = "The bytes were never written (failure #3, still claiming 2 buffer(s))\nCaused by:\n  An IO error happened\nCaused by:\n  out of device memory allocating 4294967296 bytes";
    assert_eq!(kind(text), OutOfMemory);
    assert_eq!(kind("The bytes were never written (failure #3)"), PlaceholderStorage);
}

#[test]
fn warnings_and_frames_do_not_beat_the_last_error() {
    let text = "UserWarning: CUDA out of memory once\nTraceback (most recent call last):\n  File \"/oom/cuda_out_of_memory.py\", line 3, in oom\n    raise OutOfMemoryError('CUDA out of memory')\nAttributeError: 'T' object has no attribute 'x'\n";
    assert_eq!(kind(text), NotDeviceRelated);
}

#[test]
fn an_error_raised_while_a_fault_was_handled_is_its_echo() {
    let text = "RuntimeError: CUDA error: out of memory\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"a.py\", line 9, in f\n    g(state['x'])\nKeyError: 'x'\n";
    let found = explain(text);
    assert_eq!(found.kind, OutOfMemory);
    assert_eq!(found.evidence, "CUDA error: out of memory");
}

#[test]
fn colours_and_wrapping_hide_nothing() {
    assert_eq!(kind("\x1b[31mCUDA\x1b[0m out of memory"), OutOfMemory);
    assert_eq!(
        kind(
            "\u{2502} RuntimeError: expected scalar  \u{2502}\n\u{2502} type Half but found Float \u{2502}"
        ),
        DtypeMismatch
    );
}

#[test]
fn a_remark_never_decides_where_an_error_says_anything() {
    let log = |error: &str| {
        format!("FutureWarning: `torch.cuda.amp` is deprecated.\n12:01 INFO step 3\n{error}")
    };
    assert_eq!(
        kind(&log("failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED")),
        DriverOrInit
    );
    assert_eq!(
        kind(&log("ValueError: the ranks of both matrices must be identical")),
        ShapeMismatch
    );
    assert_eq!(kind(&log("| WARNING: overflow detected, setting loss scale to: 0.0001")), Numeric);
    assert_eq!(kind(&log("done")), NotDeviceRelated);
}

#[test]
fn the_end_of_a_program_is_only_the_echo_of_what_killed_it() {
    for echo in [
        "Aborted (core dumped)",
        "subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.",
        "RuntimeError: Engine loop is not running. Inspect the stacktrace to find the original error.",
    ] {
        let text = format!("WARNING: overflow detected, setting loss scale to: 0.5\n{echo}");
        assert_eq!(kind(&text), Numeric, "{text}");
    }
}

#[test]
fn what_a_logger_puts_before_each_line_is_taken_away() {
    let message =
        ["Traceback (most recent call last):", "  File \"a.py\", line 3, in f", "MemoryError"];
    let logged =
        message.map(|line| format!("(Worker pid=7) ERROR 04-24 core.py:157] {line}")).join("\n");
    let found = explain(&logged);
    assert_eq!((found.kind, found.evidence.as_str()), (OutOfMemory, "MemoryError"));
    assert_eq!(without_prefix("worker: a\nworker: b").as_deref(), Some(" a\n b"));
    assert_eq!(without_prefix("one line: only"), None);
    assert_eq!(without_prefix("é: x\né: y"), None);
}

#[test]
fn line_breaks_that_were_logged_as_two_characters_break_lines_but_not_paths() {
    assert_eq!(with_lines(r"Error: bad\nNo adapter".into()), "Error: bad\nNo adapter");
    assert_eq!(with_lines(r"open C:\new\name.pt failed".into()), r"open C:\new\name.pt failed");
    let panic = r"panicked at C:\Users\x\runtime.rs:420:14:\nNo possible adapter available";
    assert_eq!(kind(panic), DriverOrInit);
}

#[test]
fn a_subject_alone_is_a_weak_finding_that_recovery_does_not_act_on() {
    for (text, expected) in [
        ("vkEndCommandBuffer failed", CommandBuffer),
        ("SPIRV-Cross threw an exception", KernelCompile),
        ("UntypedStorage has no data: resize_(0)", PlaceholderStorage),
        ("tokenizer.json is malformed", ModelLoading),
    ] {
        let found = explain(text);
        assert_eq!((found.kind, found.confidence), (expected, 0.3), "{text}");
        assert_eq!(kind_of_text(text), NotDeviceRelated, "{text}");
    }
    assert_eq!(kind_of_text("CUDA out of memory"), OutOfMemory);
}

#[test]
fn the_end_of_a_huge_log_is_what_counts() {
    let log =
        "step 1 ok\n".repeat(400_000) + "RuntimeError: CUDA error: device-side assert triggered\n";
    assert!(log.len() > 3 * MAX_TEXT);
    assert_eq!(kind(&log), DeviceLost);
}

#[test]
fn nothing_known_is_said_plainly_and_with_low_confidence() {
    let found = explain("the quick brown fox");
    assert_eq!(found.kind, NotDeviceRelated);
    assert!(!found.recognised() && found.confidence < 0.2);
    assert!(!found.advice.is_empty());
}
