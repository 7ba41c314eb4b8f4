//! Measurements of this process that Python's standard library lacks.

use pyo3::prelude::*;
use surefoot_core::device::memory;

/// Bytes of this process that are in memory.
#[pyfunction]
fn resident() -> u64 {
    memory::resident()
}

/// The most bytes of this process that were in memory, where the system keeps that figure.
#[pyfunction]
fn peak_resident() -> Option<u64> {
    memory::peak_resident()
}

/// Makes `peak_resident` count from now on.
#[pyfunction]
fn forget_peak_resident() {
    memory::forget_peak_resident();
}

/// Adds the functions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(resident, module)?)?;
    module.add_function(wrap_pyfunction!(peak_resident, module)?)?;
    module.add_function(wrap_pyfunction!(forget_peak_resident, module)?)
}
