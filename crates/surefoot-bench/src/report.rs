//! The result of a benchmark run, as `--json` prints it and `--compare` reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use surefoot::device::DeviceName;
use surefoot::place::Dtype;

use crate::machine::Machine;

/// The version of the format that this build writes.
pub(crate) const VERSION: u32 = 1;

/// The result of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// The version of this format.
    pub surefoot_bench: u32,
    /// The program and version that measured.
    pub program: String,
    /// When it started: seconds since 1970.
    pub time: u64,
    /// How long it took.
    pub seconds: f64,
    /// Whether it was a short measurement (`--quick`).
    pub quick: bool,
    /// The machine.
    pub machine: Machine,
    /// The confidence level of all intervals.
    pub confidence: f64,
    /// The best rates of each device.
    pub peaks: Vec<Peak>,
    /// Every variant of every workload.
    pub results: Vec<Measured>,
    /// The verdict on each workload.
    pub verdicts: Vec<Verdict>,
    /// The verdicts in one or two sentences.
    pub summary: String,
}

/// The best rates that a device reached in this run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peak {
    /// The device.
    pub device: DeviceName,
    /// The precision.
    pub precision: Dtype,
    /// Matrix products: floating-point operations per second.
    pub flops: Option<f64>,
    /// The size of the square matrices that reached it.
    pub size: usize,
    /// Memory: bytes read and written per second.
    pub bandwidth: Option<f64>,
}

/// One workload on one device in one precision.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The workload's name.
    pub workload: String,
    /// A description of what is run.
    pub what: String,
    /// The device.
    pub device: DeviceName,
    /// The precision.
    pub precision: Dtype,
    /// Whether it was measured.
    pub status: Status,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The first runs, which compile and allocate.
    pub warm_up: WarmUp,
    /// How often the work is repeated in one sample.
    pub repeats: u32,
    /// Nanoseconds of one run in each round.
    pub times_ns: Vec<f64>,
    /// The median of the samples.
    pub median_ns: f64,
    /// The confidence interval of the median.
    pub interval: Interval,
    /// The 95th percentile of the samples.
    pub p95_ns: f64,
    /// Work per second.
    pub throughput: Throughput,
    /// The share of the device's measured peak.
    pub share_of_peak: Option<f64>,
    /// Bytes of device memory that the workload uses.
    pub memory: u64,
    /// How often one run launches each kernel of the device; empty on the CPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub launches: BTreeMap<String, u64>,
    /// Speed relative to the CPU in fp32.
    pub speed_to_cpu: Option<Ratio>,
}

/// Whether a variant was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It was measured.
    Measured,
    /// The device doesn't support it, or it is too slow to measure.
    Skipped,
    /// It failed.
    Failed,
}

/// The runs before the samples.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WarmUp {
    /// The first run.
    pub first_ns: f64,
    /// All of them, including the creation of the input data.
    pub total_ns: f64,
    /// The number of runs.
    pub runs: u32,
}

/// A confidence interval.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Interval {
    /// The low end.
    pub low: f64,
    /// The high end.
    pub high: f64,
}

/// A ratio with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The ratio of the medians.
    pub value: f64,
    /// The low end.
    pub low: f64,
    /// The high end.
    pub high: f64,
}

/// Work per second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Throughput {
    /// The amount.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// The verdict on one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The workload.
    pub workload: String,
    /// The verdict as text.
    pub text: String,
    /// The fastest variant, unless the results are too noisy to tell.
    pub best: Option<(DeviceName, Dtype)>,
}

impl Measured {
    /// Half the width of the interval, as a share of the median.
    pub fn noise(&self) -> f64 {
        (self.interval.high - self.interval.low) / 2.0 / self.median_ns
    }

    /// What identifies this variant.
    pub fn key(&self) -> (&str, DeviceName, Dtype) {
        (&self.workload, self.device, self.precision)
    }

    /// Whether it was measured.
    pub fn is_measured(&self) -> bool {
        self.status == Status::Measured
    }
}

impl BenchReport {
    /// The results of one workload, in order.
    pub fn of<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.results.iter().filter(move |result| result.workload == workload)
    }

    /// The peak of a device in a precision.
    pub fn peak(&self, device: DeviceName, precision: Dtype) -> Option<&Peak> {
        self.peaks.iter().find(|peak| (peak.device, peak.precision) == (device, precision))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::Device;
    use crate::statistics::{self, Pairing};
    use surefoot::device::DeviceKind;

    /// A result with these times in ms.
    pub(crate) fn measured(
        workload: &str,
        device: DeviceName,
        precision: Dtype,
        times: &[f64],
    ) -> Measured {
        let times_ns: Vec<f64> = times.iter().map(|ms| ms * 1e6).collect();
        let (low, high) = statistics::median_interval(&times_ns);
        Measured {
            workload: workload.to_owned(),
            what: "one".to_owned(),
            device,
            precision,
            status: Status::Measured,
            why: None,
            warm_up: WarmUp::default(),
            repeats: 1,
            median_ns: statistics::median(&times_ns),
            interval: Interval { low, high },
            p95_ns: statistics::quantile(&times_ns, 0.95),
            throughput: Throughput::default(),
            share_of_peak: None,
            memory: 0,
            launches: BTreeMap::new(),
            speed_to_cpu: None,
            times_ns,
        }
    }

    /// A report on a machine with a CPU and a GPU.
    pub(crate) fn report(mut results: Vec<Measured>) -> BenchReport {
        let cpu =
            |result: &&Measured| (result.device, result.precision) == (DeviceName::CPU, Dtype::F32);
        let reference = results.iter().find(cpu).map(|result| result.times_ns.clone());
        for result in &mut results {
            result.speed_to_cpu = reference.as_ref().map(|cpu| {
                let (value, low, high) = statistics::ratio(cpu, &result.times_ns, Pairing::Rounds);
                Ratio { value, low, high }
            });
        }
        let device = |name, kind| Device { name, label: "x".into(), kind, driver: "y".into() };
        let gpu = DeviceName { backend: surefoot::device::Backend::Gpu, index: 0 };
        let devices =
            vec![device(gpu, DeviceKind::DiscreteGpu), device(DeviceName::CPU, DeviceKind::Cpu)];
        BenchReport {
            surefoot_bench: VERSION,
            program: "surefoot".into(),
            time: 0,
            seconds: 1.0,
            quick: false,
            machine: Machine { os: "o".into(), arch: "a".into(), cores: 2, memory: 1, devices },
            confidence: statistics::CONFIDENCE,
            peaks: Vec::new(),
            results,
            verdicts: Vec::new(),
            summary: String::new(),
        }
    }
}
