//! One attempt at guarded work, as the Python callable sees it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use surefoot_core::Footing;
use surefoot_core::device::memory::Reservation;
use surefoot_core::fault::catch;
use surefoot_core::recover::drill::Handle;
use surefoot_core::recover::{Point, Step};

use crate::engine::TorchEngine;
use crate::error::exception_of;

type Ranges = Box<dyn Iterator<Item = Range<usize>> + Send>;

/// Where and how an attempt runs. Valid while the callable runs.
#[pyclass(name = "Attempt", frozen, module = "surefoot._native")]
pub(crate) struct PyAttempt {
    footing: Arc<Footing<TorchEngine>>,
    operation: String,
    /// The device to compute on.
    #[pyo3(get)]
    device: String,
    /// Which attempt this is, from 1.
    #[pyo3(get)]
    attempt: u32,
    /// In how many parts the batch is run.
    #[pyo3(get)]
    parts: usize,
    /// The dtype of heavy operations.
    #[pyo3(get)]
    compute: &'static str,
    /// Whether activations are recomputed in the backward pass.
    #[pyo3(get)]
    checkpointing: bool,
    ranges: Mutex<Ranges>,
}

impl PyAttempt {
    pub(crate) fn new(
        footing: Arc<Footing<TorchEngine>>,
        step: &Step<'_, TorchEngine>,
        samples: usize,
    ) -> Self {
        Self {
            footing,
            operation: step.operation().to_owned(),
            device: step.device_name().to_string(),
            attempt: step.attempt(),
            parts: step.parts(),
            compute: step.compute().as_str(),
            checkpointing: step.is_checkpointing(),
            ranges: Mutex::new(Box::new(step.ranges(samples))),
        }
    }
}

#[pymethods]
impl PyAttempt {
    /// The ranges of samples to run one after the other. A drill may strike between two of them.
    #[getter]
    fn ranges(slf: Py<Self>) -> PyRanges {
        PyRanges(slf)
    }

    /// Whether a drill may strike.
    #[getter]
    fn is_drilled(&self) -> bool {
        !self.footing.drill().is_empty()
    }

    /// Marks an operation, an allocation or a read: a drill may strike here.
    fn point(&self, py: Python<'_>, kind: &str) -> PyResult<()> {
        let point = match kind {
            "operation" => Point::Operation,
            "allocation" => Point::Allocation,
            "read" => Point::Read,
            other => {
                return Err(PyValueError::new_err(format!("'{other}' is not a point of a drill")));
            }
        };
        Handle::current().check(point).map_err(|fault| exception_of(py, &fault))
    }

    /// Promises bytes before they are allocated, until the context ends; raises a fault if they don't fit.
    fn admit(&self, py: Python<'_>, bytes: u64) -> PyResult<PyReservation> {
        let reserved = self.footing.reserve(&self.operation, bytes);
        let reserved = reserved.map_err(|fault| exception_of(py, &fault))?;
        Ok(PyReservation(Mutex::new(Some(reserved))))
    }
}

/// The ranges of one attempt, as an iterator of `(start, stop)`.
#[pyclass(name = "Ranges", frozen, module = "surefoot._native")]
pub(crate) struct PyRanges(Py<PyAttempt>);

#[pymethods]
impl PyRanges {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(usize, usize)>> {
        let attempt = self.0.get();
        let mut ranges = attempt.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        // A drill between two parts strikes as a panic, as tensor libraries of Rust report their faults.
        match catch(|| ranges.next()) {
            Ok(range) => Ok(range.map(|range| (range.start, range.end))),
            Err(record) => Err(match record.fault() {
                Some(fault) => exception_of(py, fault),
                None => PyRuntimeError::new_err(record.message),
            }),
        }
    }
}

/// Bytes promised to an attempt while the context is open.
#[pyclass(name = "Reservation", frozen, module = "surefoot._native")]
pub(crate) struct PyReservation(Mutex<Option<Reservation>>);

#[pymethods]
impl PyReservation {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, _kind: Py<PyAny>, _error: Py<PyAny>, _traceback: Py<PyAny>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
