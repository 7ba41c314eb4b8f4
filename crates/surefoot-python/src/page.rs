//! The page of an audit or a comparison, in the style of the program's pages.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use surefoot_report::{Challenge, Evidence, Site, Verdict};

/// The page as HTML. `curve` has the decimal logarithms of both e-values after each sample, `sites` a name, the
/// distance, what noise explains, the share of bits that differ, and whether it is the first to diverge.
#[pyfunction]
#[pyo3(signature = (*, title, verdict, summary, alpha, beta, curve, used, sites, facts))]
#[allow(clippy::too_many_arguments, reason = "called with keywords by one Python function")]
fn evidence_page(
    title: String,
    verdict: &str,
    summary: String,
    alpha: f64,
    beta: f64,
    curve: Vec<(f64, f64)>,
    used: usize,
    sites: Vec<(String, f64, f64, f64, bool)>,
    facts: Vec<(String, String)>,
) -> PyResult<String> {
    let verdict = match verdict {
        "SAME" => Verdict::Same,
        "DIFFERENT" => Verdict::Different,
        "UNDECIDED" => Verdict::Undecided,
        other => return Err(PyValueError::new_err(format!("'{other}' is not a verdict"))),
    };
    let challenge =
        |(against_same, against_different)| Challenge { against_same, against_different };
    let site = |(name, distance, tolerance, bits, first_to_diverge)| Site {
        name,
        distance,
        tolerance,
        bits,
        first_to_diverge,
    };
    let page = Evidence {
        title,
        verdict,
        summary,
        alpha,
        beta,
        challenges: curve.into_iter().map(challenge).collect(),
        challenges_used: used,
        sites: sites.into_iter().map(site).collect(),
        facts,
    };
    let mut html = Vec::new();
    page.write(&mut html).map_err(|error| PyOSError::new_err(error.to_string()))?;
    String::from_utf8(html).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Adds the function to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(evidence_page, module)?)
}
