//! What an error means, for `surefoot.explain` and `surefoot.install`: the answer of `surefoot explain`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use surefoot_core::FaultKind;
use surefoot_explain::{answer, answer_of_kind};

/// What a message means, as the dict that `surefoot explain --json` prints. With a `kind`, which the error's type has
/// decided already, the text is asked only for the rest.
#[pyfunction]
#[pyo3(signature = (text, kind=None))]
fn explain<'py>(py: Python<'py>, text: &str, kind: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    let kind: Option<FaultKind> = match kind.map(str::parse) {
        Some(Ok(kind)) => Some(kind),
        Some(Err(_)) => {
            let named = kind.unwrap_or_default();
            return Err(PyValueError::new_err(format!("'{named}' is not a kind of fault")));
        }
        None => None,
    };
    let found = py.detach(|| match kind {
        Some(kind) => answer_of_kind(text, kind),
        None => answer(text),
    });
    let told = serde_json::to_string(&found).map_err(|e| PyValueError::new_err(e.to_string()))?;
    py.import("json")?.call_method1("loads", (told,))
}

/// Adds the function to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(explain, module)?)
}
