//! The results in words: whether a device is faster than the CPU, whether a lower precision is worth
//! it, and when the noise is too large to tell.

use surefoot::device::{DeviceKind, DeviceName};
use surefoot::place::Dtype;

use crate::report::{BenchReport, Measured, Ratio, Verdict};
use crate::statistics::{self, Pairing};

/// Ratios closer to 1 than this count as the same speed.
const SAME: f64 = 0.05;
/// An interval whose ends differ by more than this factor is too noisy.
const WIDE: f64 = 1.5;

/// What the interval of a ratio of speeds shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedDifference {
    /// Faster: the whole interval is above the threshold.
    Faster,
    /// Slower: the whole interval is below the threshold.
    Slower,
    /// The same speed, within the threshold.
    Same,
    /// The interval is too wide to tell.
    TooNoisy,
}

/// Judges a ratio of speeds by its interval.
pub fn judge(ratio: &Ratio) -> SpeedDifference {
    match (ratio.low, ratio.high) {
        (low, high) if !(low.is_finite() && high.is_finite()) => SpeedDifference::TooNoisy,
        (low, _) if low > 1.0 + SAME => SpeedDifference::Faster,
        (_, high) if high < 1.0 - SAME => SpeedDifference::Slower,
        (low, high) if low >= 1.0 - 2.0 * SAME && high <= 1.0 + 2.0 * SAME => SpeedDifference::Same,
        _ => SpeedDifference::TooNoisy,
    }
}

/// Every workload's verdict, in order.
pub fn all(report: &BenchReport) -> Vec<Verdict> {
    let mut names: Vec<&str> = Vec::new();
    for result in &report.results {
        if !names.contains(&result.workload.as_str()) {
            names.push(&result.workload);
        }
    }
    names.into_iter().map(|name| of_workload(report, name)).collect()
}

fn of_workload(report: &BenchReport, workload: &str) -> Verdict {
    let measured: Vec<&Measured> =
        report.of(workload).filter(|result| result.is_measured()).collect();
    let mut sentences = Vec::new();
    if measured.is_empty() {
        let why = report.of(workload).find_map(|result| result.why.clone());
        sentences.push(format!(
            "Not measured: {}.",
            why.unwrap_or_else(|| "no device supports it".into())
        ));
    }
    let mut devices: Vec<DeviceName> = Vec::new();
    for result in &measured {
        if !devices.contains(&result.device) {
            devices.push(result.device);
        }
    }
    for device in &devices {
        let on = |precision: Dtype| {
            measured.iter().copied().find(|r| (r.device, r.precision) == (*device, precision))
        };
        let Some(full) = on(Dtype::F32) else { continue };
        if *device != DeviceName::CPU
            && let Some(ratio) = &full.speed_to_cpu
        {
            sentences.push(against_cpu(full, ratio));
        }
        for half in [Dtype::F16, Dtype::BF16].into_iter().filter_map(on) {
            sentences.push(less_precision(report, full, half));
        }
    }
    let best = best(&measured);
    match best {
        Some(best) if measured.len() > 1 => sentences.insert(
            0,
            format!("Fastest: {} {}, {}.", best.device, best.precision, time(best.median_ns)),
        ),
        None if measured.len() > 1 => {
            sentences.insert(0, "Too noisy to say which is fastest.".to_owned());
        }
        _ => {}
    }
    if let [only] = measured[..] {
        sentences.push(format!("{} {}: {}.", only.device, only.precision, time(only.median_ns)));
    }
    Verdict {
        workload: workload.to_owned(),
        text: sentences.join(" "),
        best: best.map(|best| (best.device, best.precision)),
    }
}

fn against_cpu(full: &Measured, ratio: &Ratio) -> String {
    let who = format!("{} fp32", full.device);
    match judge(ratio) {
        SpeedDifference::Faster => format!("{who} is {} for this.", times(ratio, "cpu")),
        SpeedDifference::Slower => format!(
            "{who} is slower, {}{}.",
            times(ratio, "cpu"),
            match full.share_of_peak {
                Some(share) if share < 0.1 => {
                    format!(
                        ", because the work is too small for it: {} of its peak",
                        percent(share)
                    )
                }
                _ => String::new(),
            }
        ),
        SpeedDifference::Same => format!("{who} is as fast as cpu."),
        SpeedDifference::TooNoisy => format!("{who}: too noisy to say, {}.", times(ratio, "cpu")),
    }
}

fn less_precision(report: &BenchReport, full: &Measured, half: &Measured) -> String {
    let (value, low, high) = statistics::ratio(&full.times_ns, &half.times_ns, Pairing::Rounds);
    let ratio = Ratio { value, low, high };
    let (device, precision) = (half.device, half.precision);
    match judge(&ratio) {
        SpeedDifference::Faster => {
            format!("{precision} is worth it on {device}: {}.", times(&ratio, "fp32"))
        }
        SpeedDifference::TooNoisy if high / low > WIDE || value > 1.0 => {
            format!("{precision} on {device}: too noisy to say, {}.", times(&ratio, "fp32"))
        }
        _ => format!(
            "{precision} isn't worth it on {device}, {}, because {}.",
            times(&ratio, "fp32"),
            why_not_worth_it(report, full, half)
        ),
    }
}

fn why_not_worth_it(report: &BenchReport, full: &Measured, half: &Measured) -> String {
    let kind = report.machine.devices.iter().find(|d| d.name == half.device).map(|d| d.kind);
    if let Some(DeviceKind::Cpu | DeviceKind::SoftwareGpu) = kind {
        return format!("the CPU converts {} to fp32 and back", half.precision);
    }
    let flops = |precision| report.peak(half.device, precision).and_then(|peak| peak.flops);
    match (flops(half.precision), flops(Dtype::F32), full.share_of_peak) {
        (Some(half_peak), Some(full_peak), _) if half_peak < 1.1 * full_peak => {
            format!("this device multiplies no faster in {}", half.precision)
        }
        (_, _, Some(share)) if share < 0.2 => format!(
            "matrix products are only a small part of this work ({} of the peak) and the rest is not \
             faster",
            percent(share)
        ),
        _ => "conversions take as long as the products save".to_owned(),
    }
}

/// The fastest, if it is faster than every other beyond the noise.
fn best<'a>(measured: &[&'a Measured]) -> Option<&'a Measured> {
    let fastest = *measured.iter().min_by(|a, b| a.median_ns.total_cmp(&b.median_ns))?;
    let is_sure = measured.iter().filter(|other| other.key() != fastest.key()).all(|other| {
        let (_, low, _) = statistics::ratio(&other.times_ns, &fastest.times_ns, Pairing::Rounds);
        low > 1.0
    });
    is_sure.then_some(fastest)
}

/// A summary of the whole report in one or two sentences.
pub fn summary(report: &BenchReport) -> String {
    let compared: Vec<&Verdict> = report
        .verdicts
        .iter()
        .filter(|verdict| report.of(&verdict.workload).filter(|r| r.is_measured()).count() > 1)
        .collect();
    let mut wins: Vec<((DeviceName, Dtype), usize)> = Vec::new();
    for best in compared.iter().filter_map(|verdict| verdict.best) {
        match wins.iter_mut().find(|(who, _)| *who == best) {
            Some((_, count)) => *count += 1,
            None => wins.push((best, 1)),
        }
    }
    wins.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let Some(((device, precision), count)) = wins.first() else {
        return "No clear winner: too noisy, or there is only one variant.".to_owned();
    };
    let noisy = compared.iter().filter(|verdict| verdict.best.is_none()).count();
    let noisy = match noisy {
        0 => String::new(),
        1 => " One workload was too noisy to say.".to_owned(),
        more => format!(" {more} workloads were too noisy to say."),
    };
    format!(
        "--device {device} --precision {precision} is the fastest for {count} of {} workloads.\
         {noisy}",
        compared.len()
    )
}

/// A ratio with its interval, as text.
pub fn times(ratio: &Ratio, of: &str) -> String {
    format!("{}× {of} ({} to {})", three(ratio.value), three(ratio.low), three(ratio.high))
}

fn three(value: f64) -> String {
    match value {
        value if !value.is_finite() => "?".to_owned(),
        value if value < 0.995 => format!("{value:.2}"),
        value if value < 9.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        small if small < 0.1 => "less than 0.1 %".to_owned(),
        small if small < 10.0 => format!("{small:.1} %"),
        more => format!("{more:.0} %"),
    }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{measured, report};

    const GPU: DeviceName = DeviceName { backend: surefoot::device::Backend::Gpu, index: 0 };

    fn text(results: Vec<Measured>) -> (String, String) {
        let mut report = report(results);
        report.verdicts = all(&report);
        (report.verdicts[0].text.clone(), summary(&report))
    }

    #[test]
    fn a_ratio_is_judged_by_its_whole_interval() {
        let of = |low, high| judge(&Ratio { value: 1.0, low, high });
        assert_eq!(of(1.2, 2.0), SpeedDifference::Faster);
        assert_eq!(of(0.3, 0.9), SpeedDifference::Slower);
        assert_eq!(of(0.98, 1.03), SpeedDifference::Same);
        assert_eq!(of(0.8, 1.4), SpeedDifference::TooNoisy);
        assert_eq!(of(1.01, 1.6), SpeedDifference::TooNoisy);
        assert_eq!(of(0.0, f64::INFINITY), SpeedDifference::TooNoisy);
    }

    #[test]
    fn a_faster_device_is_named_with_its_ratio_and_a_useless_precision_with_the_reason() {
        let (text, summary) = text(vec![
            measured("matmul", DeviceName::CPU, Dtype::F32, &[10.0; 9]),
            measured("matmul", DeviceName::CPU, Dtype::F16, &[20.0; 9]),
            measured("matmul", GPU, Dtype::F32, &[5.0; 9]),
            measured("matmul", GPU, Dtype::F16, &[2.5; 9]),
        ]);
        assert!(text.starts_with("Fastest: gpu fp16"), "{text}");
        assert!(text.contains("gpu fp32 is 2.0× cpu (2.0 to 2.0) for this."), "{text}");
        assert!(text.contains("fp16 is worth it on gpu: 2.0× fp32"), "{text}");
        let useless = "fp16 isn't worth it on cpu, 0.50× fp32 (0.50 to 0.50), because the CPU";
        assert!(text.contains(useless), "{text}");
        assert!(
            summary.contains("--device gpu --precision fp16 is the fastest for 1 of 1"),
            "{summary}"
        );
    }

    #[test]
    fn a_difference_within_the_noise_is_reported_as_too_noisy() {
        let noise = [8.0, 14.0, 9.0, 15.0, 7.0, 13.0, 10.0, 12.0, 11.0];
        let other = [9.0, 8.0, 16.0, 7.0, 14.0, 9.5, 12.0, 8.5, 15.0];
        let (text, summary) = text(vec![
            measured("matmul", DeviceName::CPU, Dtype::F32, &noise),
            measured("matmul", GPU, Dtype::F32, &other),
        ]);
        assert!(text.starts_with("Too noisy to say which is fastest."), "{text}");
        assert!(text.contains("gpu fp32: too noisy to say"), "{text}");
        assert!(summary.starts_with("No clear winner"), "{summary}");
    }

    #[test]
    fn a_workload_that_no_device_supports_says_why() {
        let mut copy = measured("copy", DeviceName::CPU, Dtype::F32, &[]);
        (copy.status, copy.why) = (crate::Status::Skipped, Some("nothing is copied".into()));
        assert_eq!(text(vec![copy]).0, "Not measured: nothing is copied.");
    }
}
