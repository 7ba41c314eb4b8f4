//! Probing a device for real: storage, arithmetic, dtypes, limits, threads, copies, recovery.
//!
//! Every result is compared with one computed on the host in plain loops and fp64, so that the
//! CPU backend is checked as well. A driver can crash the process that probes it: programs run
//! this in a child (see [`run_probe`](super::supervisor::run_probe)).

mod arithmetic;
mod drills;
mod reference;
mod settings;
mod speed;
mod storage;
mod threads;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::OpenDevice;
use crate::fault::{Fault, catch, from_panic};
use crate::place::{Dtype, DtypeSupport, probe_dtype};

pub use settings::Settings;

/// What one check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// Whether the device passed.
    pub passed: bool,
    /// The figures, or what went wrong.
    pub detail: String,
    /// How long it took.
    pub seconds: f64,
}

/// Everything that a probe found about a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The checks in the order they were made.
    pub checks: Vec<Check>,
    /// What the device does with each dtype.
    pub dtypes: Vec<(Dtype, DtypeSupport)>,
    /// Settings to use, with reasons.
    pub settings: Settings,
}

/// What a probe says while it works, one at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// A check starts: if nothing follows, it took the process down.
    Starting(String),
    /// A check is done.
    Checked(Check),
    /// What the device does with a dtype.
    Dtype(Dtype, DtypeSupport),
    /// The probe is done.
    Settings(Settings),
}

/// A check by its name.
type Named = (&'static str, fn(&OpenDevice) -> Result<String, Fault>);

/// First use by many threads comes first: only then is it the first use.
const CHECKS: [Named; 11] = [
    ("first use by 8 threads at once", threads::cold),
    ("the same, warm", threads::warm),
    ("write and read back", storage::round_trip),
    ("matmul", arithmetic::matmul),
    ("convolution", arithmetic::convolution),
    ("attention", arithmetic::attention),
    ("training step", arithmetic::training_step),
    ("a read of unwritten storage is refused", storage::unwritten),
    ("an allocation over the limit is refused", storage::over_limit),
    ("copies", speed::copies),
    ("recovery from every kind of fault", drills::recover_from_all),
];

/// Probes `device`, telling each finding as it is made.
pub fn probe(device: &OpenDevice, mut report: impl FnMut(Finding)) -> ProbeReport {
    let mut checks = Vec::new();
    for (name, check) in CHECKS {
        report(Finding::Starting(name.to_owned()));
        let check = timed(name, || check(device));
        report(Finding::Checked(check.clone()));
        checks.push(check);
    }
    let dtypes: Vec<_> = Dtype::ALL
        .into_iter()
        .map(|dtype| {
            report(Finding::Starting(format!("{dtype}")));
            let support = probe_dtype(device, dtype);
            report(Finding::Dtype(dtype, support));
            (dtype, support)
        })
        .collect();
    report(Finding::Starting("batch size".to_owned()));
    let settings = settings::suggest(device);
    report(Finding::Settings(settings.clone()));
    ProbeReport { checks, dtypes, settings }
}

fn timed(name: &str, check: impl FnOnce() -> Result<String, Fault>) -> Check {
    let started = Instant::now();
    let result = catch(check).unwrap_or_else(|record| Err(from_panic(name, &record)));
    let seconds = Duration::as_secs_f64(&started.elapsed());
    match result {
        Ok(detail) => Check { name: name.to_owned(), passed: true, detail, seconds },
        Err(fault) => {
            Check { name: name.to_owned(), passed: false, detail: fault.to_string(), seconds }
        }
    }
}

impl ProbeReport {
    /// Whether every check passed and fp32 works.
    pub fn is_healthy(&self) -> bool {
        self.checks.len() == CHECKS.len()
            && self.checks.iter().all(|check| check.passed)
            && self.dtypes.contains(&(Dtype::F32, DtypeSupport::Works))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceName, open};

    #[test]
    fn a_check_that_panics_is_a_check_that_failed() {
        let check = timed("odd", || panic!("boom"));
        assert!(!check.passed && check.detail.contains("boom"), "{check:?}");
    }

    #[test]
    fn the_cpu_passes_and_the_findings_come_one_by_one() {
        let cpu = open(DeviceName::CPU).unwrap();
        let mut findings = Vec::new();
        let report = probe(&cpu, |finding| findings.push(finding));
        assert!(report.is_healthy(), "{report:#?}");
        assert!(matches!(findings[0], Finding::Starting(_)));
        assert!(matches!(findings.last(), Some(Finding::Settings(_))));
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ProbeReport>(&text).unwrap().checks.len(), CHECKS.len());
    }

    #[test]
    fn a_report_that_stops_early_is_not_healthy() {
        let cpu = open(DeviceName::CPU).unwrap();
        let mut report = probe(&cpu, |_| ());
        report.checks.pop();
        assert!(!report.is_healthy());
    }
}
