//! `Footing` and `Outcome` as Python sees them.

use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use surefoot_core::device::memory::Bytes;
use surefoot_core::device::{Backend, DeviceName, Selector};
use surefoot_core::engine::Candidate;
use surefoot_core::journal::{Event, EventKind, Journal, Level};
use surefoot_core::precision::Precision;
use surefoot_core::recover::{Drill, Outcome, Policy, Rung};
use surefoot_core::{BoxError, Footing};

use crate::attempt::PyAttempt;
use crate::engine::{PyValue, TorchEngine};
use crate::error::exception_of;

/// How many events are kept in memory for `Footing.events`.
const RECENT: usize = 1024;

/// What PyTorch code stands on; wrapped by `surefoot.Footing`.
#[pyclass(name = "Footing", frozen, module = "surefoot._native")]
pub(crate) struct PyFooting {
    footing: Arc<Footing<TorchEngine>>,
    devices: Py<PyAny>,
}

/// What happened in guarded work, and its value.
#[pyclass(name = "Outcome", frozen, get_all, module = "surefoot._native")]
pub(crate) struct PyOutcome {
    /// What the callable returned.
    value: Py<PyAny>,
    /// The faults that were recovered from, oldest first.
    faults: Vec<String>,
    /// The rungs that were taken, in order.
    rungs: Vec<&'static str>,
    /// The device that the value was computed on.
    device: String,
    /// How often the work was tried.
    attempts: u32,
    /// In how many parts the batch was run in the end.
    parts: usize,
    /// Seconds from the start of the first try to the end of the last.
    seconds: f64,
}

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A device by its name. PyTorch knows `cpu:0`, and a second CPU device lets tests have a chain of two.
fn device_name(text: &str) -> PyResult<DeviceName> {
    match text.trim().strip_prefix("cpu:").map(str::parse) {
        Some(Ok(index)) => Ok(DeviceName { backend: Backend::Cpu, index }),
        _ => text.trim().parse().map_err(wrong),
    }
}

fn selector(text: &str) -> PyResult<Selector> {
    match text.parse() {
        Ok(Selector::Auto) => Ok(Selector::Auto),
        _ => Ok(Selector::Chain(text.split(',').map(device_name).collect::<PyResult<_>>()?)),
    }
}

fn rungs(names: &[String]) -> PyResult<Vec<Rung>> {
    names.iter().map(|name| name.parse().map_err(wrong)).collect()
}

#[pymethods]
impl PyFooting {
    #[new]
    #[pyo3(signature = (*, engine, device, candidates, memory, journal, precision, allow, forbid, fail, drill))]
    #[allow(clippy::too_many_arguments, reason = "called with keywords by one Python constructor")]
    fn new(
        py: Python<'_>,
        engine: Py<PyAny>,
        device: &str,
        candidates: Vec<(String, Option<String>)>,
        memory: Option<&str>,
        journal: Option<&str>,
        precision: &str,
        allow: Vec<String>,
        forbid: Vec<String>,
        fail: bool,
        drill: Option<&str>,
    ) -> PyResult<Self> {
        let selector = selector(device)?;
        let candidates = candidates
            .into_iter()
            .map(|(name, passed_over)| {
                Ok(Candidate { name: name.parse().map_err(wrong)?, passed_over })
            })
            .collect::<PyResult<Vec<_>>>()?;
        let mut policy = if fail { Policy::fail() } else { Policy::default() };
        for rung in rungs(&allow)? {
            policy = match rung {
                Rung::Precision => policy.allow_lower_precision(),
                other => {
                    return Err(wrong(format!(
                        "'{other}' is allowed already: only 'precision' has to be"
                    )));
                }
            };
        }
        for rung in rungs(&forbid)? {
            policy = policy.forbid(rung);
        }
        let mut events = Journal::builder().ring(RECENT);
        if let Some(path) = journal {
            events = events.file(path).map_err(|error| PyOSError::new_err(error.to_string()))?;
        }
        let precision: Precision = precision.parse().map_err(wrong)?;
        let devices = engine.clone_ref(py);
        let mut builder = Footing::builder_with(TorchEngine::new(engine, candidates))
            .devices(selector)
            .precision(precision)
            .policy(policy)
            .journal(events.build());
        if let Some(drill) = drill {
            builder = builder.drill(drill.parse::<Drill>().map_err(wrong)?);
        }
        if let Some(memory) = memory {
            builder = builder.memory(memory.parse::<Bytes>().map_err(wrong)?.0);
        }
        let footing = py.detach(|| builder.build()).map_err(|fault| exception_of(py, &fault))?;
        Ok(Self { footing: Arc::new(footing), devices })
    }

    /// The device that work starts on.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        let device =
            py.detach(|| self.footing.device()).map_err(|fault| exception_of(py, &fault))?;
        Ok(surefoot_core::Engine::name(self.footing.engine(), &device).to_string())
    }

    /// Why it was chosen.
    #[getter]
    fn reason(&self) -> &str {
        self.footing.reason()
    }

    /// The memory budget in bytes.
    #[getter]
    fn budget(&self) -> Option<u64> {
        self.footing.budget()
    }

    /// Each device of the chain with its health.
    fn health(&self) -> Vec<(String, String)> {
        let told =
            |health| serde_json::to_value(health).ok().and_then(|v| v.as_str().map(str::to_owned));
        let health = self.footing.health().into_iter();
        health.map(|(name, health)| (name.to_string(), told(health).unwrap_or_default())).collect()
    }

    /// Bytes that could still be allocated on a device, if that is known.
    fn available(&self, py: Python<'_>, device: &str) -> Option<u64> {
        py.detach(|| self.footing.engine().available(device))
    }

    /// Returns unused memory of all opened devices.
    fn clean_up(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.footing.reclaim())
    }

    /// Runs `work(attempt)` as guarded work until it succeeds or no rung is left.
    #[pyo3(signature = (name, work, samples=None, rungs=Vec::new(), start=None))]
    fn run(
        &self,
        py: Python<'_>,
        name: String,
        work: Py<PyAny>,
        samples: Option<usize>,
        rungs: Vec<String>,
        start: Option<&str>,
    ) -> PyResult<PyOutcome> {
        let mut task = self.footing.task(name);
        for rung in self::rungs(&rungs)? {
            task = task.can(rung);
        }
        if let Some(start) = start {
            task = task.starting_on(device_name(start)?);
        }
        let whole = samples.unwrap_or(1);
        let outcome = py.detach(|| {
            let once = |step: &surefoot_core::recover::Step<'_, TorchEngine>| {
                Python::attach(|py| {
                    let attempt = PyAttempt::new(Arc::clone(&self.footing), step, whole);
                    let object =
                        work.call1(py, (attempt,)).map_err(|error| Box::new(error) as BoxError)?;
                    Ok(PyValue {
                        object,
                        device: step.device_name(),
                        devices: self.devices.clone_ref(py),
                    })
                })
            };
            match samples {
                Some(samples) if rungs.iter().any(|rung| rung == Rung::Split.as_str()) => {
                    task.run_in_parts(samples, once)
                }
                _ => task.run(once),
            }
        });
        outcome.map(PyOutcome::from).map_err(|fault| exception_of(py, &fault))
    }

    /// Records a remark.
    fn note(&self, operation: String, text: String) {
        self.footing.journal().with(|| {
            Event::new(EventKind::Note, operation).level(Level::Warn).context("note", text)
        });
    }

    /// The latest events as dicts, oldest first.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let loads = py.import("json")?.getattr("loads")?;
        let recent = self.footing.journal().recent();
        recent
            .iter()
            .map(|event| loads.call1((serde_json::to_string(event).map_err(wrong)?,)))
            .collect()
    }
}

impl From<Outcome<PyValue>> for PyOutcome {
    fn from(outcome: Outcome<PyValue>) -> Self {
        Self {
            faults: outcome.faults.iter().map(ToString::to_string).collect(),
            rungs: outcome.rungs.iter().map(|rung| rung.as_str()).collect(),
            device: outcome.device.to_string(),
            attempts: outcome.attempts,
            parts: outcome.parts,
            seconds: outcome.elapsed.as_secs_f64(),
            value: outcome.value.object,
        }
    }
}

#[pymethods]
impl PyOutcome {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let told = PyDict::new(py);
        told.set_item("device", &self.device)?;
        told.set_item("attempts", self.attempts)?;
        told.set_item("parts", self.parts)?;
        told.set_item("rungs", &self.rungs)?;
        Ok(format!("Outcome({})", told.repr()?))
    }
}
