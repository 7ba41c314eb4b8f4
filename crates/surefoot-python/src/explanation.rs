//! What an error means, for `surefoot.install`: the rules of `surefoot explain`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use surefoot_core::FaultKind;
use surefoot_explain::Explanation;

/// What a message means, as a dict: kind, confidence, evidence, cause, advice, framework. With a `kind`, which the
/// error's type has decided already, the words are asked only for what belongs to that kind.
#[pyfunction]
#[pyo3(signature = (text, kind=None))]
fn explain<'py>(py: Python<'py>, text: &str, kind: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
    let mut found: Explanation = surefoot_explain::explain(text);
    if let Some(kind) = kind {
        let kind: FaultKind = kind
            .parse()
            .map_err(|_| PyValueError::new_err(format!("'{kind}' is no kind of fault")))?;
        if found.kind != kind {
            found = surefoot_explain::explain_kind(kind);
        }
    }
    let told = PyDict::new(py);
    told.set_item("kind", found.kind.as_str())?;
    told.set_item("confidence", found.confidence)?;
    told.set_item("evidence", &found.evidence)?;
    told.set_item("cause", found.cause)?;
    told.set_item("advice", &found.advice)?;
    told.set_item("framework", found.framework)?;
    Ok(told)
}

/// Adds the function to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(explain, module)?)
}
