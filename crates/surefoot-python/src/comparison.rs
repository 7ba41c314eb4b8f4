//! Verdicts over PyTorch modules' activations, by the statistics of `surefoot-stats`, with the program's error rates.
//!
//! Python runs the models and hands over numbers: for each pass the samples of each batch, site by site. A sample is
//! one challenge; sites are numbered in Python by their depth.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use surefoot_stats::StatsError;
use surefoot_stats::capture::{Captures, Recorder};
use surefoot_stats::comparison::{Comparison, Side, compare};
use surefoot_stats::decision::DecisionRule;
use surefoot_stats::noise::{Deviations, Noise, NoiseClass, RunVariant};
use surefoot_stats::site::Site;

/// The bits of a sketch. Verdicts rest on the projections that are kept as numbers, whose number is the same for all.
const BITS: usize = 1024;

fn wrong(error: StatsError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// What one pass of a model over all samples left behind.
#[pyclass(name = "Sketches", frozen, module = "surefoot._native")]
pub(crate) struct PySketches(Mutex<Captures>);

impl PySketches {
    fn captures(&self) -> MutexGuard<'_, Captures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PySketches {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Adds the samples of one batch: for each site its float32 numbers, sample after sample.
    fn add(&self, py: Python<'_>, samples: usize, sites: Vec<Vec<u8>>) -> PyResult<()> {
        let recorded = py.detach(|| {
            let mut recorder = Recorder::new(BITS, &vec![1; samples])?;
            for (number, bytes) in sites.iter().enumerate() {
                let (words, _) = bytes.as_chunks::<4>();
                let numbers: Vec<f32> =
                    words.iter().map(|word| f32::from_le_bytes(*word)).collect();
                recorder.record(Site::Block(number), &numbers, numbers.len() / samples.max(1))?;
            }
            Ok(recorder.finish())
        });
        let batch = recorded.map_err(wrong)?;
        let mut all = self.captures();
        if all.sketches.is_empty() {
            all.sites = batch.sites;
        } else if all.sites != batch.sites {
            return Err(PyValueError::new_err("the batches have different sites"));
        }
        all.sketches.extend(batch.sketches);
        Ok(())
    }
}

/// Compares two passes. `noise` has, for each variant of the reference, its name, whether it also rounds, and its runs.
#[pyfunction]
#[pyo3(signature = (reference, candidate, noise, *, rounding, alpha, beta, delta))]
#[allow(clippy::too_many_arguments, reason = "called with keywords by one Python function")]
fn compare_sketches<'py>(
    py: Python<'py>,
    reference: &Bound<'py, PySketches>,
    candidate: &Bound<'py, PySketches>,
    noise: Vec<(String, bool, Vec<Py<PySketches>>)>,
    rounding: bool,
    alpha: f64,
    beta: f64,
    delta: f64,
) -> PyResult<Bound<'py, PyDict>> {
    let class = |rounding| if rounding { NoiseClass::Rounding } else { NoiseClass::Arithmetic };
    let (ours, theirs) = (reference.get().captures(), candidate.get().captures());
    let variants = noise
        .into_iter()
        .map(|(name, rounds, runs)| {
            let runs = runs.iter().map(|run| Deviations::between(&ours, &run.get().captures()));
            RunVariant { name: name.into(), class: class(rounds), runs: runs.collect() }
        })
        .collect();
    let rule = DecisionRule { alpha, beta, delta, ..DecisionRule::default() };
    let found = compare(
        Side { sites: &ours.sites, sketches: &ours.sketches },
        &Noise { variants },
        class(rounding),
        Side { sites: &theirs.sites, sketches: &theirs.sketches },
        &rule,
    )
    .map_err(wrong)?;
    told(py, &found)
}

fn told<'py>(py: Python<'py>, found: &Comparison) -> PyResult<Bound<'py, PyDict>> {
    let ten = |ln: f64| ln / std::f64::consts::LN_10;
    let decision = &found.decision;
    let number = |site: Site| match site {
        Site::Block(number) => number,
        _ => usize::MAX,
    };
    let curve = decision.curve.iter().map(|e| (ten(e.ln_e_different), ten(e.ln_e_same)));
    let sites = found.sites.iter().map(|site| {
        let apart = &site.distance;
        (
            number(site.site),
            apart.fine.max(apart.profile),
            site.tolerance,
            site.excess,
            apart.hamming,
        )
    });
    let told = PyDict::new(py);
    told.set_item("verdict", decision.verdict.to_string())?;
    told.set_item("samples_used", decision.challenges_used)?;
    told.set_item("first", decision.first_diverging.map(number))?;
    told.set_item("curve", curve.collect::<Vec<_>>())?;
    told.set_item("sites", sites.collect::<Vec<_>>())?;
    Ok(told)
}

/// Adds the class and the function to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySketches>()?;
    module.add_function(wrap_pyfunction!(compare_sketches, module)?)
}
