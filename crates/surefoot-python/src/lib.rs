//! The native module `surefoot._native`: what the Python package takes from Rust.
//!
//! Nothing here imports torch. PyTorch is an engine of `surefoot-core` (module `engine`) whose answers come from the
//! Python module `surefoot._devices`; guarded work is a Python callable that the core calls for each attempt
//! (modules `footing` and `attempt`). Policy, ladder, drills, health and journal are the core's own.

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod attempt;
mod comparison;
mod engine;
mod error;
mod explanation;
mod footing;
mod measure;
mod page;

use pyo3::prelude::*;

/// What the Python package `surefoot` takes from Rust. Private: use `surefoot`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<footing::PyFooting>()?;
    module.add_class::<footing::PyOutcome>()?;
    module.add_class::<attempt::PyAttempt>()?;
    module.add_function(wrap_pyfunction!(error::kind_of_text, module)?)?;
    comparison::add_to(module)?;
    explanation::add_to(module)?;
    page::add_to(module)?;
    measure::add_to(module)
}
