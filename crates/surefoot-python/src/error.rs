//! Between Python's exceptions and the core's faults.
//!
//! An exception of guarded work is classified by `surefoot._errors.kind_of` (by type, then by text). If recovery may
//! answer it, the frames of its traceback are cleared before the core goes on: they hold the attempt's tensors, which
//! could not be freed otherwise.

use std::error::Error as _;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use surefoot_core::{BoxError, Fault, FaultKind};

/// The kind that recovery may act on, by the words of an error.
#[pyfunction]
pub(crate) fn kind_of_text(text: &str) -> &'static str {
    surefoot_explain::kind_of_text(text).as_str()
}

/// The fault that an exception is. A caller's own mistake keeps its traceback as it is.
pub(crate) fn fault_of(py: Python<'_>, operation: &str, error: PyErr) -> Fault {
    let errors = match py.import("surefoot._errors") {
        Ok(errors) => errors,
        Err(missing) => {
            return Fault::new(FaultKind::NotDeviceRelated, operation, missing.to_string());
        }
    };
    let value = error.value(py);
    let kind = errors
        .call_method1("kind_of", (value,))
        .and_then(|kind| kind.extract::<String>())
        .ok()
        .and_then(|kind| kind.parse().ok())
        .unwrap_or(FaultKind::NotDeviceRelated);
    // A fault of our own was raised by a drill or the budget, inside the work.
    let own = errors
        .getattr("Fault")
        .and_then(|class| value.is_instance(&class))
        .unwrap_or(false)
        .then(|| value.getattr("reason").and_then(|reason| reason.extract::<String>()).ok())
        .flatten();
    let fault = Fault::new(kind, operation, own.unwrap_or_else(|| error.to_string()));
    if fault.retryable && errors.call_method1("let_go", (value,)).is_err() {
        // Then memory stays in use for longer; recovery goes on without it.
        return fault;
    }
    let cause: BoxError = Box::new(error);
    fault.caused_by(cause)
}

/// The exception to raise for a fault: the original one where it is the caller's own mistake, else
/// `surefoot.Fault` with the original one as its cause.
pub(crate) fn exception_of(py: Python<'_>, fault: &Fault) -> PyErr {
    let original = fault.source().and_then(|source| source.downcast_ref::<PyErr>());
    if let Some(original) = original.filter(|_| fault.kind.is_callers()) {
        return original.clone_ref(py);
    }
    match surefoot_fault(py, fault) {
        Ok(error) => {
            error.set_cause(py, original.map(|original| original.clone_ref(py)));
            error
        }
        Err(_) => PyRuntimeError::new_err(fault.to_string()),
    }
}

fn surefoot_fault(py: Python<'_>, fault: &Fault) -> PyResult<PyErr> {
    let mut message = fault.to_string();
    if let Some(tried) = fault.tried() {
        message = format!("{message} ({tried})");
    }
    if let Some(advice) = fault.advice.first() {
        message = format!("{message}. {advice}");
    }
    let arguments = PyDict::new(py);
    arguments.set_item("message", message)?;
    arguments.set_item("kind", fault.kind.as_str())?;
    arguments.set_item("operation", &fault.operation)?;
    arguments.set_item("device", &fault.device)?;
    arguments.set_item("advice", &fault.advice)?;
    let earlier: Vec<String> = fault.earlier.iter().map(ToString::to_string).collect();
    arguments.set_item("earlier", earlier)?;
    arguments.set_item("reason", fault.root_cause())?;
    let class = py.import("surefoot._errors")?.getattr("Fault")?;
    Ok(PyErr::from_value(class.call((), Some(&arguments))?))
}
