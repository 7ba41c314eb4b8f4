//! `surefoot bench --torch`: the speed of the user's PyTorch, measured by it. The Python package does the work
//! (`surefoot._bench`); this prints what it measures.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Bench;
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::interpreter;
use crate::terminal::{Table, Terminal};

/// For all devices and precisions together.
const LIMIT: Duration = Duration::from_secs(3600);

/// A line that the package prints.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Measured(Measured),
    LeftOut { device: String, precision: String, left_out: String },
    Versions { python: String, torch: String, executable: String },
}

#[derive(Debug, Deserialize, Serialize)]
struct Measured {
    workload: String,
    device: String,
    precision: String,
    median_ms: f64,
    low_ms: f64,
    high_ms: f64,
    rate: f64,
    unit: String,
    samples: u32,
    /// Guarded over bare, for training steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    guarded_ratio: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
struct TorchReport {
    python: String,
    torch: String,
    executable: String,
    results: Vec<Measured>,
}

pub(super) fn run(bench: &Bench, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
    let python = interpreter::chosen(bench.python.as_deref());
    let precisions: Vec<&str> = bench.precision.iter().map(|dtype| dtype.as_str()).collect();
    let mut arguments = vec!["--device".to_owned(), bench.device.clone()];
    arguments.extend(["--precision".to_owned(), precisions.join(",")]);
    arguments.extend(bench.quick.then(|| "--quick".to_owned()));
    let mut report = TorchReport::default();
    interpreter::run_module(&python, "surefoot._bench", &arguments, LIMIT, |value| {
        match serde_json::from_value(value) {
            Ok(Line::Measured(measured)) => {
                let Measured { workload, device, precision, .. } = &measured;
                terminal.note(&format!("{workload} on {device} in {precision}"));
                report.results.push(measured);
            }
            Ok(Line::LeftOut { device, precision, left_out }) => {
                terminal.note(&format!("note: {device} in {precision} is left out: {left_out}"));
            }
            Ok(Line::Versions { python, torch, executable }) => {
                report = TorchReport { python, torch, executable, results: Vec::new() };
            }
            // Not a line of the package.
            Err(_) => {}
        }
    })?;
    if global.json {
        terminal.json(&report)?;
    } else {
        terminal.result(&text(&report))?;
    }
    Ok(if report.results.is_empty() { Exit::No } else { Exit::Done })
}

fn text(report: &TorchReport) -> String {
    let mut table = Table::new(["", "median", "95 % interval", "rate", "guarded / bare"]).numbers();
    for result in &report.results {
        table.row([
            format!("{}, {} {}", result.workload, result.device, result.precision),
            format!("{:.3} ms", result.median_ms),
            format!("{:.3} to {:.3}", result.low_ms, result.high_ms),
            format!("{} {}", rounded(result.rate), result.unit),
            result.guarded_ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
        ]);
    }
    format!("PyTorch {}, Python {} ({})\n\n{table}", report.torch, report.python, report.executable)
}

/// Three digits, as far as they are known.
fn rounded(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 1.0 => format!("{rate:.2}"),
        rate => format!("{rate:.4}"),
    }
}
