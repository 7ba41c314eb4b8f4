//! From Burn's and cubecl's errors and panics to a [`Fault`]: types first, text last.

use std::error::Error;

use burn::tensor::{DataError, DeviceError, ExecutionError, TensorReadError};
use safetensors::SafeTensorError;
use surefoot_core::fault::{classify, kind_of_std};
use surefoot_explain::kind_of_text as kind_said;

use super::{BoxError, Fault, FaultKind, PanicRecord, take_device_panics};

/// Classifies `error`: by the type of the deepest link of its chain that has a known one, else
/// by what the texts say. The error becomes the fault's source.
pub fn from_error(operation: &str, error: impl Into<BoxError>) -> Fault {
    let mut fault = classify(operation, error.into(), kind_of_type, kind_said);
    fault.chain = fault.chain.iter().flat_map(|text| causes(text)).collect();
    fault.chain.dedup();
    fault
}

/// The causes that Burn flattened into one text: a heading, then "Caused by:" and the next one
/// down. The last one says what really happened, such as an allocation that failed.
fn causes(text: &str) -> Vec<String> {
    let links = text.split("Caused by:").map(|link| link.trim().to_owned());
    links.filter(|link| !link.is_empty()).collect()
}

/// Classifies a caught panic. If a device's thread panicked just before, its message is the
/// cause and the caller's own (a closed channel) only the symptom.
pub fn from_panic(operation: &str, record: &PanicRecord) -> Fault {
    if let Some(fault) = record.fault() {
        return fault.clone();
    }
    let mut chain = vec![format!("panicked at {}: {}", record.place, record.message)];
    let own = kind_of_text(&chain[0]);
    // A mistake that the caller's own panic names is no symptom of a device's.
    if own == FaultKind::NotDeviceRelated || !own.is_callers() {
        let causes = take_device_panics().into_iter();
        chain.extend(causes.map(|c| format!("the device's thread panicked: {}", c.message)));
    }
    let kind = chain
        .iter()
        .rev()
        .map(|text| kind_of_text(text))
        .find(|kind| *kind != FaultKind::NotDeviceRelated)
        .unwrap_or(FaultKind::NotDeviceRelated);
    Fault::with_chain(kind, operation, chain.iter().flat_map(|text| causes(text)).collect())
}

fn kind_of_type(error: &(dyn Error + 'static)) -> Option<FaultKind> {
    if let Some(error) = error.downcast_ref::<ExecutionError>() {
        return Some(match error {
            ExecutionError::DevicePoisoned { .. } => FaultKind::DeviceLost,
            other => kind_of_text(other.reason()),
        });
    }
    if let Some(error) = error.downcast_ref::<DataError>() {
        return Some(kind_of_data_error(error));
    }
    if let Some(error) = error.downcast_ref::<TensorReadError>() {
        return Some(match error {
            TensorReadError::Execution(error) => return kind_of_type(error),
            TensorReadError::Data(error) => kind_of_data_error(error),
            TensorReadError::InvalidShape { .. } => FaultKind::ShapeMismatch,
        });
    }
    if let Some(error) = error.downcast_ref::<DeviceError>() {
        return Some(match error {
            DeviceError::UnsupportedDType { .. } => FaultKind::UnsupportedDtype,
            DeviceError::AlreadyInitialized { .. } => FaultKind::DriverOrInit,
        });
    }
    if let Some(error) = error.downcast_ref::<SafeTensorError>() {
        return Some(match error {
            SafeTensorError::IoError(error) => return kind_of_type(error),
            _ => FaultKind::ModelLoading,
        });
    }
    #[cfg(any(feature = "gpu", feature = "cuda", target_os = "macos"))]
    if let Some(kind) = cube::kind_of_type(error) {
        return Some(kind);
    }
    kind_of_std(error)
}

fn kind_of_data_error(error: &DataError) -> FaultKind {
    match error {
        DataError::DTypeMismatch { .. } => FaultKind::DtypeMismatch,
        DataError::UnsupportedConversion { .. } => FaultKind::UnsupportedDtype,
        DataError::ElementCountMismatch { .. } | DataError::InvalidByteLength { .. } => {
            FaultKind::ShapeMismatch
        }
        other => kind_said(&other.to_string()),
    }
}

/// What cubecl's own error types say, where they reach us as types.
#[cfg(any(feature = "gpu", feature = "cuda", target_os = "macos"))]
mod cube {
    use std::error::Error;

    use burn::cubecl::CompilationError;
    use burn::cubecl::server::{IoError, LaunchError, ServerError};

    use super::super::FaultKind;
    use super::kind_said;

    pub(super) fn kind_of_type(error: &(dyn Error + 'static)) -> Option<FaultKind> {
        if let Some(error) = error.downcast_ref::<ServerError>() {
            return Some(server(error));
        }
        if let Some(error) = error.downcast_ref::<LaunchError>() {
            return Some(launch(error));
        }
        if let Some(error) = error.downcast_ref::<CompilationError>() {
            return Some(compilation(error));
        }
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        if error.is::<burn::tensor::wgpu::WgpuInitError>() {
            return Some(FaultKind::DriverOrInit);
        }
        error.downcast_ref::<IoError>().map(memory)
    }

    fn server(error: &ServerError) -> FaultKind {
        match error {
            ServerError::DevicePoisoned(_) => FaultKind::DeviceLost,
            ServerError::Launch(error) => launch(error),
            ServerError::Io(error) => memory(error),
            ServerError::ForeignHandle { .. } | ServerError::ServiceMismatch { .. } => {
                FaultKind::DeviceMismatch
            }
            ServerError::NoDeviceTransport { .. } => FaultKind::UnsupportedOp,
            ServerError::TornDown | ServerError::Skipped => FaultKind::CommandBuffer,
            // The buffer asked about is only downstream: the root is what failed.
            ServerError::Unwritten { root, .. } => server(root),
            ServerError::Several { errors, .. } => {
                errors.first().map_or(FaultKind::CommandBuffer, server)
            }
            ServerError::Validation { message, .. } => kind_said(message),
            ServerError::Generic { reason, .. } => kind_said(reason),
        }
    }

    fn launch(error: &LaunchError) -> FaultKind {
        match error {
            LaunchError::CompilationError(error) => compilation(error),
            LaunchError::OutOfMemory { .. } => FaultKind::OutOfMemory,
            LaunchError::TooManyResources(_) => FaultKind::KernelCompile,
            LaunchError::DevicePoisoned(_) => FaultKind::DeviceLost,
            LaunchError::Unknown { reason, .. } => kind_said(reason),
        }
    }

    fn compilation(error: &CompilationError) -> FaultKind {
        match error {
            CompilationError::UnsupportedInstruction { .. } => FaultKind::UnsupportedOp,
            CompilationError::DevicePoisoned(_) => FaultKind::DeviceLost,
            _ => FaultKind::KernelCompile,
        }
    }

    fn memory(error: &IoError) -> FaultKind {
        match error {
            IoError::BufferTooBig { .. }
            | IoError::OutOfMemory { .. }
            | IoError::PageSizesExhausted { .. }
            | IoError::StorageMappingFailed { .. } => FaultKind::OutOfMemory,
            IoError::UnsupportedStrides { .. } => FaultKind::UnsupportedOp,
            IoError::NotFound { .. } | IoError::StorageHandleNotFound { .. } => {
                FaultKind::PlaceholderStorage
            }
            other => kind_said(&other.to_string()),
        }
    }
}

/// Burn flattens cubecl's errors to text of a fixed form: headings, each followed by
/// "Caused by:" and the next one down. The lowest cause decides; a tainted buffer's report
/// ("never written") only names who asked.
fn kind_of_text(text: &str) -> FaultKind {
    const FLATTENED: [(&str, FaultKind); 16] = [
        ("device is poisoned", FaultKind::DeviceLost),
        ("device was poisoned", FaultKind::DeviceLost),
        ("out of device memory allocating", FaultKind::OutOfMemory),
        ("can't allocate buffer of size", FaultKind::OutOfMemory),
        ("every page size the memory tracks", FaultKind::OutOfMemory),
        ("couldn't map storage for a deferred allocation", FaultKind::OutOfMemory),
        ("An out-of-memory error happened during launch", FaultKind::OutOfMemory),
        ("An unsupported instruction caused the compilation", FaultKind::UnsupportedOp),
        ("caused the compilation to fail", FaultKind::KernelCompile),
        ("Too many resources were requested during launch", FaultKind::KernelCompile),
        ("the provided strides are not supported", FaultKind::UnsupportedOp),
        ("needs a transport between devices", FaultKind::UnsupportedOp),
        ("The bytes were never written", FaultKind::PlaceholderStorage),
        ("couldn't find resource for that handle", FaultKind::PlaceholderStorage),
        ("=== Tensor Operation Error ===", FaultKind::ShapeMismatch),
        ("are on different backends", FaultKind::DeviceMismatch),
    ];
    FLATTENED
        .into_iter()
        .find(|(phrase, _)| text.contains(phrase))
        .map_or_else(|| kind_said(text), |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    fn classified(error: impl Error + Send + Sync + 'static) -> FaultKind {
        from_error("op", error).kind
    }

    #[test]
    fn types_decide_before_texts() {
        assert_eq!(classified(SafeTensorError::HeaderTooLarge), FaultKind::ModelLoading);
        assert_eq!(classified(ExecutionError::device_poisoned("x")), FaultKind::DeviceLost);
    }

    #[test]
    fn a_tainted_buffer_is_classified_by_its_root() {
        let text = "The bytes were never written (failure #3, still claiming 2 buffer(s))\n  \
                    skipped: matmul\nCaused by:\n  An IO error happened\nCaused by:\n  \
                    out of device memory allocating 4294967296 bytes";
        let fault = from_error("op", ExecutionError::with_context(text));
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
        assert_eq!(fault.root_cause(), "out of device memory allocating 4294967296 bytes");
        let bare = "The bytes were never written (failure #3, still claiming 1 buffer(s))";
        assert_eq!(classified(ExecutionError::with_context(bare)), FaultKind::PlaceholderStorage);
    }

    #[test]
    fn an_error_inside_an_error_is_found() {
        #[derive(Debug)]
        struct Outer(ExecutionError);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the batch could not be read")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let fault = from_error("read", Outer(ExecutionError::device_poisoned("gone")));
        assert_eq!(fault.kind, FaultKind::DeviceLost);
        let chain = ["the batch could not be read", "The device is poisoned", "gone"];
        assert_eq!(fault.chain, chain);
        let source = fault.source().and_then(|source| source.downcast_ref::<Outer>());
        assert!(source.is_some(), "the typed error is kept");
    }

    #[test]
    fn burns_own_panics_are_classified() {
        let device = Device::flex();
        let a = Tensor::<2>::ones([2, 3], &device);
        let b = Tensor::<2>::ones([2, 3], &device);
        let record = crate::fault::catch(|| a.matmul(b)).unwrap_err();
        let fault = from_panic("matmul", &record);
        assert_eq!(fault.kind, FaultKind::ShapeMismatch, "{fault}");
        assert!(!fault.retryable);
    }

    #[test]
    fn an_ordinary_panic_is_no_device_fault() {
        let record = crate::fault::catch::<()>(|| panic!("the room is booked")).unwrap_err();
        assert_eq!(from_panic("op", &record).kind, FaultKind::NotDeviceRelated);
    }
}
