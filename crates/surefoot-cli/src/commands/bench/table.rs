//! The report of a benchmark as text.

use std::fmt::Write;

use surefoot::device::memory::Bytes;
use surefoot_bench::compare::{Change, Comparison};
use surefoot_bench::verdict::times;
use surefoot_bench::{BenchReport, Measured, Status};

use crate::terminal::Table;

pub(super) fn text(report: &BenchReport, comparison: Option<&Comparison>) -> String {
    let mut out = String::new();
    for device in &report.machine.devices {
        let _ = writeln!(out, "{}: {}{}", device.name, device.label, peaks(report, device.name));
    }
    for verdict in &report.verdicts {
        let results: Vec<&Measured> = report.of(&verdict.workload).collect();
        let what = results.iter().map(|result| &*result.what).find(|what| !what.is_empty());
        let _ = match what {
            Some(what) => writeln!(out, "\n{}: {what}", verdict.workload),
            None => writeln!(out, "\n{}", verdict.workload),
        };
        if results.iter().any(|result| result.is_measured()) {
            rows(&mut out, &results);
        }
        let _ = writeln!(out, "  {}", wrapped(&verdict.text));
    }
    let seconds = report.seconds;
    let quick = if report.quick { "; --quick, so the intervals are wide" } else { "" };
    let _ = writeln!(out, "\n{} ({seconds:.0} s{quick})", report.summary);
    if let Some(comparison) = comparison {
        compared(&mut out, comparison);
    }
    out
}

fn peaks(report: &BenchReport, device: surefoot::device::DeviceName) -> String {
    let mut parts = Vec::new();
    for peak in report.peaks.iter().filter(|peak| peak.device == device) {
        if let Some(flops) = peak.flops {
            parts.push(format!("{} {}", peak.precision, rate(flops, "FLOP/s")));
        }
    }
    let memory = report.peaks.iter().filter(|peak| peak.device == device);
    let memory = memory.filter_map(|peak| peak.bandwidth).fold(0.0, f64::max);
    if memory > 0.0 {
        parts.push(format!("memory {}", rate(memory, "B/s")));
    }
    if parts.is_empty() { String::new() } else { format!("; peak {}", parts.join(", ")) }
}

const HEADINGS: [&str; 9] =
    ["", "median", "95 % interval", "p95", "rate", "peak", "memory", "× cpu", "warm-up"];

fn rows(out: &mut String, results: &[&Measured]) {
    let mut table = Table::new(HEADINGS).numbers();
    for result in results.iter().filter(|result| result.status != Status::Skipped) {
        let name = format!("{} {}", result.device, result.precision);
        if result.status == Status::Failed {
            let mut cells = [const { String::new() }; 9];
            (cells[0], cells[1]) = (name, "failed".to_owned());
            table.row(cells);
            continue;
        }
        table.row([
            name,
            time(result.median_ns),
            format!("{} to {}", time(result.interval.low), time(result.interval.high)),
            time(result.p95_ns),
            rate(result.throughput.value, &result.throughput.unit),
            result
                .share_of_peak
                .map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share)),
            Bytes(result.memory).to_string(),
            result.speed_to_cpu.map_or_else(String::new, |ratio| format!("{:.2}", ratio.value)),
            format!("{} first", time(result.warm_up.first_ns)),
        ]);
    }
    for line in table.to_string().lines() {
        let _ = writeln!(out, "  {line}");
    }
}

fn compared(out: &mut String, comparison: &Comparison) {
    let _ = writeln!(out, "\nCompared with the older run:");
    let mut same = 0;
    for line in &comparison.lines {
        let ratio = line.slowdown.map(|ratio| times(&ratio, "the time")).unwrap_or_default();
        let name = format!("{} on {} in {}", line.workload, line.device, line.precision);
        let (old, new) = (time(line.old_ns), time(line.new_ns));
        let _ = match line.change {
            Change::Same => {
                same += 1;
                continue;
            }
            Change::Slower => writeln!(out, "  slower     {name}: {old} → {new}, {ratio}"),
            Change::Faster => writeln!(out, "  faster     {name}: {old} → {new}, {ratio}"),
            Change::TooNoisy => {
                writeln!(out, "  too noisy  {name}: {old} → {new}, {ratio}")
            }
            Change::Broken => writeln!(out, "  failed     {name}: took {old}, fails now"),
        };
    }
    let _ = writeln!(out, "  {same} of {} unchanged", comparison.lines.len());
    if comparison.only_in_one > 0 {
        let _ = writeln!(out, "  {} are in one of the two runs only", comparison.only_in_one);
    }
    if let Some(note) = &comparison.note {
        let _ = writeln!(out, "  {note}");
    }
}

/// The text in lines of at most 98 characters, with the following lines indented.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + length > 96 {
            out.push_str("\n  ");
            width = 0;
        } else if width > 0 {
            out.push(' ');
        }
        out.push_str(word);
        width += length + 1;
    }
    out
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => scaled(ns / 1e3, "µs"),
        ns if ns < 1e9 => scaled(ns / 1e6, "ms"),
        ns => scaled(ns / 1e9, "s"),
    }
}

/// A rate with the prefix that leaves one to three digits before the point.
fn rate(value: f64, unit: &str) -> String {
    if !matches!(unit, "FLOP/s" | "B/s") {
        return match value {
            value if value < 100.0 => format!("{value:.1} {unit}"),
            value => format!("{} {unit}", grouped(value as u64)),
        };
    }
    let prefixes = [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)];
    let (prefix, factor) =
        prefixes.into_iter().find(|(_, factor)| value >= *factor).unwrap_or(("", 1.0));
    scaled(value / factor, &format!("{prefix}{unit}"))
}

fn grouped(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

fn scaled(value: f64, unit: &str) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_have_three_digits() {
        assert_eq!(rate(151.23e9, "FLOP/s"), "151 GFLOP/s");
        assert_eq!(rate(9.1e9, "B/s"), "9.10 GB/s");
        assert_eq!(rate(12.345, "tokens/s"), "12.3 tokens/s");
        assert_eq!(rate(15_151.0, "samples/s"), "15,151 samples/s");
        assert_eq!([999.0, 14_200_000.0].map(time), ["999 ns", "14.2 ms"]);
    }

    #[test]
    fn long_verdicts_are_wrapped() {
        let text = wrapped(&"word ".repeat(60));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(text.split_whitespace().count(), 60);
    }
}
