//! The native module `surefoot._native`: what the Python package takes from Rust.
//!
//! Nothing here imports torch. Values of Python go through as opaque objects; what is done with
//! them is decided by the core and carried out by callbacks into `python/surefoot`.

use pyo3::prelude::*;

/// What the Python package `surefoot` takes from Rust. Private: use `surefoot`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
