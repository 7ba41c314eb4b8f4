//! `surefoot bench`: measures each device and precision, prints a table and a verdict.

mod table;
mod torch;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use surefoot::device::{OpenDevice, Selector, open, select};
use surefoot::place::Dtype;
use surefoot_bench::compare::{Comparison, compare};
use surefoot_bench::workload::{TrainingSetup, Workload};
use surefoot_bench::{BenchReport, Progress, Settings, run};
use surefoot_report::BenchPage;

use crate::args::Global;
use crate::commands::devices;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Measure the speed of every device and precision on typical workloads
#[derive(Debug, Args)]
#[command(after_help = "\
Variants are measured in turns, so that other load on the machine affects all of them alike. A
sample ends when a value that depends on the work was read. Medians have a 95 % confidence
interval; a difference within it is reported as too noisy. `peak` is the share of the best rate
that the device reached in this run, for large matrix products or for memory. A CPU takes about a
minute, a GPU another minute; with --quick about 10 seconds.

With --compare the exit code is 1 if a workload got slower by more than its noise and 5 %.

Examples:
  surefoot bench                              all devices of this machine
  surefoot bench --quick --device cpu
  surefoot bench --workload configs/digits.yaml
                                              one step of your own training
  surefoot bench --json > before.json
  surefoot bench --compare before.json        what got slower since then
  surefoot bench --html bench.html            also write an HTML page
  surefoot bench --torch --quick              your PyTorch, and what guarding costs")]
pub(crate) struct Bench {
    /// Devices to measure, separated by commas: cpu,gpu; auto for all that are found
    #[arg(long, value_name = "NAMES", default_value = "auto")]
    device: String,
    /// Precisions to measure, separated by commas: fp32, fp16, bf16
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = precision, default_values = ["fp32", "fp16", "bf16"])]
    precision: Vec<Dtype>,
    /// Measure one step of this training configuration instead of the built-in workloads
    #[arg(long, value_name = "CONFIG")]
    workload: Option<PathBuf>,
    /// Measure fewer rounds: faster, but with more noise
    #[arg(long)]
    quick: bool,
    /// Also write an HTML page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Measure the user's PyTorch instead, and what guarding its training steps costs
    #[arg(long, conflicts_with_all = ["workload", "html", "compare"])]
    torch: bool,
    /// The interpreter for --torch; by default that of the active virtual environment, else the one beside this program, else python3
    #[arg(long, value_name = "PATH", requires = "torch")]
    python: Option<PathBuf>,
    /// Compare with an older run, written with --json
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
}

/// A report, with the comparison if there is one.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a BenchReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
}

fn precision(text: &str) -> Result<Dtype, String> {
    [Dtype::F32, Dtype::F16, Dtype::BF16]
        .into_iter()
        .find(|dtype| dtype.as_str() == text.to_ascii_lowercase())
        .ok_or_else(|| "the precisions are fp32, fp16 and bf16".to_owned())
}

impl Bench {
    pub(crate) fn run(self, global: &Global, terminal: &Terminal) -> Result<Exit, Failure> {
        if self.torch {
            return torch::run(&self, global, terminal);
        }
        // Bad input is found before minutes are spent on measuring.
        let old = self.compare.as_deref().map(read_report).transpose()?;
        let page = self.html.as_deref().map(create).transpose()?;
        let settings = self.settings(terminal)?;
        let shown = Shown::new(terminal, global);
        let report = run(&settings, &mut |progress| shown.tell(progress));
        shown.bar.finish_and_clear();
        let comparison = old.as_ref().map(|old| compare(&report, old));
        let document = Document { report: &report, comparison: comparison.as_ref() };
        if let (Some(file), Some(path)) = (page, &self.html) {
            let page = BenchPage { title: self.title(), report: &document };
            page.write(BufWriter::new(file)).map_err(|error| unwritable(path, &error))?;
            terminal.note(&format!("note: wrote the page {}", path.display()));
        }
        if global.json {
            terminal.json(&document)?;
        } else {
            terminal.result(&table::text(&report, comparison.as_ref()))?;
        }
        Ok(exit(&report, comparison.as_ref(), terminal))
    }

    fn title(&self) -> String {
        match self.workload.as_deref().and_then(Path::file_name) {
            Some(name) => format!("Benchmark of {}", name.to_string_lossy()),
            None => "Benchmark".to_owned(),
        }
    }

    fn settings(&self, terminal: &Terminal) -> Result<Settings, Failure> {
        let mut settings = Settings::new(self.devices(terminal)?);
        if self.quick {
            settings = settings.quick();
        }
        settings.precisions.clone_from(&self.precision);
        settings.precisions.dedup();
        if let Some(path) = &self.workload {
            let own = TrainingSetup::read(path).map_err(|error| {
                Failure::usage(format!("{} can't be measured", path.display()))
                    .because(error.to_string())
                    .hint("--workload takes a configuration as `surefoot train` does; see configs/")
            })?;
            settings.workloads = vec![Workload::Configured(Arc::new(own))];
        }
        Ok(settings)
    }

    /// Opens the devices that were named; for `auto`, those that are found.
    fn devices(&self, terminal: &Terminal) -> Result<Vec<Arc<OpenDevice>>, Failure> {
        let selector = select(&self.device).map_err(|error| {
            Failure::usage(format!("--device {} can't be measured", self.device)).caused_by(&error)
        })?;
        if let Selector::Chain(names) | Selector::Together { names, .. } = &selector {
            return names.iter().map(|name| open(*name).map_err(Failure::from)).collect();
        }
        let mut opened = Vec::new();
        for found in devices::find() {
            match &found.unavailable {
                Some(why) => terminal.note(&format!("note: {} is left out: {why}", found.name)),
                // As everywhere, `auto` does not choose a software GPU.
                None if !found.is_worth_choosing() => terminal.note(&format!(
                    "note: {0} is left out: its driver computes on the CPU, far more slowly than cpu; \
                     measure it with --device {0}",
                    found.name
                )),
                None => opened.push(open(found.name).map_err(Failure::from)?),
            }
        }
        Ok(opened)
    }
}

fn exit(report: &BenchReport, comparison: Option<&Comparison>, terminal: &Terminal) -> Exit {
    for result in
        report.results.iter().filter(|result| result.status == surefoot_bench::Status::Failed)
    {
        let why = result.why.as_deref().unwrap_or_default();
        terminal.note(&format!(
            "note: {} on {} in {} failed: {why}",
            result.workload, result.device, result.precision
        ));
    }
    let Some(comparison) = comparison else { return Exit::Done };
    if !comparison.other_machine.is_empty() {
        terminal.note(&format!(
            "note: the older run is from another machine, so regressions are not judged: {}",
            comparison.other_machine.join("; ")
        ));
        return Exit::Done;
    }
    if comparison.lines.is_empty() {
        terminal.note("note: the older run has no workload in common with this one");
    }
    if comparison.regressions().next().is_some() { Exit::No } else { Exit::Done }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("the page {} can't be written", path.display())).caused_by(error)
}

fn read_report(path: &Path) -> Result<BenchReport, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::usage(format!("{} can't be compared with", path.display()))
            .caused_by(error)
            .hint("give --compare a file that `surefoot bench --json` wrote")
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

/// Progress on stderr: a bar on a terminal, a line for each workload elsewhere.
struct Shown<'a> {
    terminal: &'a Terminal,
    bar: ProgressBar,
}

impl<'a> Shown<'a> {
    fn new(terminal: &'a Terminal, global: &Global) -> Self {
        let target =
            if global.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(100), target);
        let style = ProgressStyle::with_template("  {bar:24} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { terminal, bar }
    }

    fn tell(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Peak { device, precision } => {
                self.bar.set_message(format!("measuring the peak of {device} in {precision}"));
            }
            Progress::Begun { workload, number, of } => {
                self.bar.set_position(0);
                self.bar.set_message(format!("{workload} ({number} of {of})"));
                if self.bar.is_hidden() {
                    self.terminal.note(&format!("{workload} ({number} of {of})"));
                }
            }
            Progress::WarmingUp { workload, device, precision } => {
                self.bar.set_message(format!("{workload}: warming up {device} in {precision}"));
            }
            Progress::Round { workload, share } => {
                self.bar.set_message((*workload).to_owned());
                self.bar.set_position((100.0 * share) as u64);
            }
            Progress::Done(_) => {}
        }
    }
}
