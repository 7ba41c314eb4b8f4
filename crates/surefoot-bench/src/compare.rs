//! Compares this run with an older one: which workloads got slower by more than the noise.

use serde::Serialize;
use surefoot::device::DeviceName;
use surefoot::place::Dtype;

use crate::report::{BenchReport, Measured, Ratio};
use crate::statistics::{self, Pairing};

/// A smaller change is not reported: two runs of the same program on one machine differ as much.
const NOTABLE: f64 = 0.05;
/// An interval whose ends differ by more than this factor is too noisy.
const WIDE: f64 = 1.5;

/// How one variant changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Slower by more than the noise and 5 %.
    Slower,
    /// Faster by more than the noise and 5 %.
    Faster,
    /// No notable change.
    Same,
    /// The noise is larger than the change.
    TooNoisy,
    /// It worked in the older run and fails in this one.
    Broken,
}

/// One variant in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The workload.
    pub workload: String,
    /// The device.
    pub device: DeviceName,
    /// The precision.
    pub precision: Dtype,
    /// The median of the older run.
    pub old_ns: f64,
    /// The median of this run.
    pub new_ns: f64,
    /// The time of this run divided by that of the older one.
    pub slowdown: Option<Ratio>,
    /// What that ratio means.
    pub change: Change,
}

/// The comparison of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// In what the machines of the two runs differ; empty if they are the same.
    pub other_machine: Vec<String>,
    /// The variants that are in both runs.
    pub lines: Vec<Line>,
    /// How many variants are in one of the runs only.
    pub only_in_one: usize,
    /// A remark if nearly all variants changed by the same factor.
    pub note: Option<String>,
}

impl Comparison {
    /// The variants that got slower or fail now.
    pub fn regressions(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| matches!(line.change, Change::Slower | Change::Broken))
    }
}

/// Compares two reports.
pub fn compare(new: &BenchReport, old: &BenchReport) -> Comparison {
    let mut lines = Vec::new();
    let mut only_in_one = 0;
    for result in &new.results {
        match old.results.iter().find(|other| is_same_work(other, result)) {
            Some(other) if other.is_measured() => lines.push(line(result, other)),
            Some(_) => {}
            None => only_in_one += 1,
        }
    }
    only_in_one += old
        .results
        .iter()
        .filter(|other| !new.results.iter().any(|result| is_same_work(other, result)))
        .count();
    let note = drift(&lines);
    Comparison { other_machine: new.machine.differences(&old.machine), lines, only_in_one, note }
}

/// Whether both are the same work of the same size on the same device in the same precision. The
/// size of a variant that failed is unknown.
fn is_same_work(a: &Measured, b: &Measured) -> bool {
    a.key() == b.key() && (a.what == b.what || a.what.is_empty() || b.what.is_empty())
}

fn line(new: &Measured, old: &Measured) -> Line {
    let slowdown = new.is_measured().then(|| {
        let (value, low, high) = statistics::ratio(&new.times_ns, &old.times_ns, Pairing::None);
        Ratio { value, low, high }
    });
    Line {
        workload: new.workload.clone(),
        device: new.device,
        precision: new.precision,
        old_ns: old.median_ns,
        new_ns: new.median_ns,
        change: slowdown.as_ref().map_or(Change::Broken, judge),
        slowdown,
    }
}

fn judge(slowdown: &Ratio) -> Change {
    match (slowdown.low, slowdown.high) {
        (low, high) if !(low.is_finite() && high.is_finite()) => Change::TooNoisy,
        (low, _) if low > 1.0 + NOTABLE => Change::Slower,
        (_, high) if high < 1.0 / (1.0 + NOTABLE) => Change::Faster,
        (low, high) if high / low > WIDE => Change::TooNoisy,
        _ => Change::Same,
    }
}

/// If everything is slower by about the same factor, the machine is the likely cause.
fn drift(lines: &[Line]) -> Option<String> {
    let ratios: Vec<f64> =
        lines.iter().filter_map(|line| line.slowdown.map(|ratio| ratio.value)).collect();
    if ratios.len() < 4 {
        return None;
    }
    let middle = statistics::median(&ratios);
    let alike = ratios.iter().filter(|ratio| (*ratio / middle - 1.0).abs() < 0.15).count();
    (middle > 1.1 && 10 * alike >= 8 * ratios.len()).then(|| {
        format!(
            "nearly everything takes {middle:.2}× as long: the machine may be busy, hot or \
             throttled rather than the program slower"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{measured, report};

    fn run(times: &[(&str, f64)]) -> BenchReport {
        let jitter = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.015];
        let result = |(name, time): &(&str, f64)| {
            measured(name, DeviceName::CPU, Dtype::F32, &jitter.map(|j| j * time))
        };
        report(times.iter().map(result).collect())
    }

    #[test]
    fn only_what_is_slower_beyond_noise_and_five_percent_is_a_regression() {
        let old = run(&[("a", 10.0), ("b", 10.0), ("c", 10.0), ("gone", 1.0)]);
        let new = run(&[("a", 10.3), ("b", 13.0), ("c", 5.0), ("new", 1.0)]);
        let found = compare(&new, &old);
        let changes: Vec<_> = found.lines.iter().map(|line| line.change).collect();
        assert_eq!(changes, [Change::Same, Change::Slower, Change::Faster]);
        assert_eq!(found.regressions().count(), 1);
        assert_eq!(found.only_in_one, 2);
        assert!(found.other_machine.is_empty() && found.note.is_none());
    }

    #[test]
    fn noise_is_no_regression() {
        let times = [8.0, 30.0, 9.0, 10.0, 45.0, 11.0, 20.0];
        let noisy = report(vec![measured("a", DeviceName::CPU, Dtype::F32, &times)]);
        let found = compare(&noisy, &run(&[("a", 10.0)]));
        assert_eq!(found.lines[0].change, Change::TooNoisy);
    }

    #[test]
    fn work_that_fails_now_is_broken_and_work_of_another_size_is_not_compared() {
        let old = run(&[("a", 10.0), ("b", 10.0)]);
        let mut new = run(&[("a", 10.0), ("b", 10.0)]);
        new.results[0].status = crate::Status::Failed;
        new.results[0].what = String::new();
        new.results[1].what = "twice as large".into();
        let found = compare(&new, &old);
        assert_eq!(found.lines.len(), 1);
        assert_eq!(found.lines[0].change, Change::Broken);
        assert_eq!((found.regressions().count(), found.only_in_one), (1, 2));
    }

    #[test]
    fn if_everything_is_slower_the_machine_is_named() {
        let names = ["a", "b", "c", "d"];
        let old = run(&names.map(|name| (name, 10.0)));
        let new = run(&names.map(|name| (name, 13.0)));
        assert!(compare(&new, &old).note.is_some_and(|note| note.contains("1.30×")));
    }
}
