//! `surefoot bench`: how fast each device and precision is here, and what that means.

mod table;

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
use surefoot_bench::workload::{Own, Workload};
use surefoot_bench::{Progress, Report, Settings, run};
use surefoot_report::BenchPage;

use crate::args::Global;
use crate::commands::devices;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// Measure every device and precision on real work, and say what it means
#[derive(Debug, Args)]
#[command(after_help = "\
Variants take turns in rounds, so that a busy machine slows all alike. A sample ends when a value
that depends on the work was read. Medians come with a 95 % interval; ratios are told only beyond
it. `peak` is the share of the best rate that the device showed in this run: large products, or
memory read and written. A CPU takes about a minute, a GPU about as much again; with --quick some
10 seconds.

With --compare the exit code is 1 if something got slower by more than the noise and 5 %.

Examples:
  surefoot bench                              everything that this machine has
  surefoot bench --quick --device cpu
  surefoot bench --workload configs/digits.yaml
                                              one step of your own training instead
  surefoot bench --json > before.json
  surefoot bench --compare before.json        what got slower since?
  surefoot bench --html bench.html            a page to read and pass on")]
pub(crate) struct Bench {
    /// The devices: auto for all that are there, or names: cpu,gpu
    #[arg(long, value_name = "NAMES", default_value = "auto", value_parser = select)]
    device: Selector,
    /// The precisions: fp32, fp16, bf16
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = precision, default_values = ["fp32", "fp16", "bf16"])]
    precision: Vec<Dtype>,
    /// Measure one step of this training configuration instead of the usual work
    #[arg(long, value_name = "CONFIG")]
    workload: Option<PathBuf>,
    /// A short look: the same work, fewer rounds, more noise
    #[arg(long)]
    quick: bool,
    /// Also write a page for a browser to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Compare with an older run's --json
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
}

/// A report, with the comparison if there is one.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a Report,
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
        // What can be wrong is found before minutes are spent.
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
            terminal.note(&format!("note: the page is in {}", path.display()));
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
            let own = Own::read(path).map_err(|error| {
                Failure::usage(format!("{} can't be measured", path.display()))
                    .because(error.to_string())
                    .hint("--workload takes a configuration as `surefoot train` does; see configs/")
            })?;
            settings.workloads = vec![Workload::Own(Arc::new(own))];
        }
        Ok(settings)
    }

    /// Opens the devices that were asked for; of `auto`, those that are there.
    fn devices(&self, terminal: &Terminal) -> Result<Vec<Arc<OpenDevice>>, Failure> {
        if let Selector::Chain(names) = &self.device {
            return names.iter().map(|name| open(*name).map_err(Failure::from)).collect();
        }
        let mut opened = Vec::new();
        for found in devices::find() {
            match &found.unavailable {
                Some(why) => terminal.note(&format!("note: {} is passed over: {why}", found.name)),
                // As everywhere, `auto` has no use for an imitation of a GPU on the processor.
                None if !found.is_worth_choosing() => terminal.note(&format!(
                    "note: {0} is passed over: its driver computes on the processor, far more slowly \
                     than cpu; measure it with --device {0}",
                    found.name
                )),
                None => opened.push(open(found.name).map_err(Failure::from)?),
            }
        }
        Ok(opened)
    }
}

fn exit(report: &Report, comparison: Option<&Comparison>, terminal: &Terminal) -> Exit {
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
            "note: the other file is from another machine, so nothing is judged: {}",
            comparison.other_machine.join("; ")
        ));
        return Exit::Done;
    }
    if comparison.lines.is_empty() {
        terminal.note("note: the other file has no work in common with this run");
    }
    if comparison.regressions().next().is_some() { Exit::No } else { Exit::Done }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("the page {} can't be written", path.display())).caused_by(error)
}

fn read_report(path: &Path) -> Result<Report, Failure> {
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
