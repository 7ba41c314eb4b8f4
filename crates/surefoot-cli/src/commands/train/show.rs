//! What a person sees of a run, and what a machine reads.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use surefoot::Footing;
use surefoot::device::memory::Bytes;
use surefoot_train::config::{Config, Length};
use surefoot_train::loader::Loading;
use surefoot_train::ranks::RankReport;
use surefoot_train::report::EpochReport;
use surefoot_train::{TrainEvent, TrainReport};

use crate::args::Global;
use crate::exit::Failure;
use crate::terminal::Terminal;

/// Samples that were left out are named up to here, and counted beyond.
const NAMED_SAMPLES: usize = 10;

/// Ranks that are shown one by one at the end; --json has all.
const SHOWN_RANKS: usize = 16;

fn loading_text(loading: &Loading) -> String {
    let threads = match loading.workers {
        0 => "loading in the training thread".to_owned(),
        1 => "1 loading thread".to_owned(),
        n => format!("{n} loading threads"),
    };
    let staged = if loading.staging { ", the next batch brought to the device ahead" } else { "" };
    format!("{threads}{staged}")
}

/// Shows one run.
pub(super) struct Show<'a> {
    terminal: &'a Terminal,
    json: bool,
    bar: ProgressBar,
    hardware: String,
    steps: u64,
    from: u64,
    skipped_samples: usize,
    since: Instant,
    /// Whether numbers are predicted, not classes or tokens.
    regression: bool,
    /// Set when nobody reads the lines of JSON any more.
    unread: &'a AtomicBool,
}

impl<'a> Show<'a> {
    pub(super) fn new(
        terminal: &'a Terminal,
        global: &Global,
        footing: &Footing,
        regression: bool,
        unread: &'a AtomicBool,
    ) -> Self {
        let hidden = global.quiet || global.json;
        let target =
            if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        let style = ProgressStyle::with_template("  {bar:24} {pos}/{len}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let hardware = footing.device().map_or_else(
            |_| String::new(),
            |device| {
                let precision = footing.precision().map(|precision| precision.compute.to_string());
                let precision = precision.unwrap_or_default();
                let reason = footing.reason();
                format!("{} ({}) in {precision}: {reason}", device.name(), device.info.label)
            },
        );
        Self {
            terminal,
            json: global.json,
            bar,
            hardware,
            steps: 0,
            from: 0,
            skipped_samples: 0,
            since: Instant::now(),
            regression,
            unread,
        }
    }

    /// Takes the progress line away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    pub(super) fn tell(&mut self, news: &TrainEvent) {
        match news {
            TrainEvent::Started { parameters, samples, steps, from, loading, folder } => {
                (self.steps, self.from, self.since) = (*steps, *from, Instant::now());
                self.bar.set_length(*steps);
                self.note(&format!(
                    "{} samples to train on, {} to test on; {} parameters; {} steps",
                    count(samples.0 as u64),
                    count(samples.1 as u64),
                    count(*parameters as u64),
                    count(*steps)
                ));
                self.note(&self.hardware);
                self.note(&format!(
                    "checkpoints go to {}; {}",
                    folder.display(),
                    loading_text(loading)
                ));
                if *from > 0 {
                    self.note(&format!("continuing from step {from}"));
                }
                self.line(json!({
                    "event": "started", "parameters": parameters, "train_samples": samples.0,
                    "test_samples": samples.1, "steps": steps, "from": from,
                    "folder": folder.display().to_string(),
                    "loading": loading, "batches_in_memory": loading.batches_in_memory(),
                }));
            }
            TrainEvent::Loading { loading, step_seconds } => {
                self.line(json!({
                    "event": "loading", "loading": loading, "step_seconds": step_seconds,
                    "batches_in_memory": loading.batches_in_memory(),
                }));
            }
            TrainEvent::Fitted { micro_batch, budget } => {
                self.note(&format!("{micro_batch} samples at once stay within {}", Bytes(*budget)));
                self.line(json!({"event": "fitted", "micro_batch": micro_batch, "budget": budget}));
            }
            TrainEvent::Step { step, loss, accuracy, samples_per_second, .. } => {
                self.bar.set_message(format!(
                    "loss {loss:.4}  {} {}  {} samples/s  {}",
                    metric_name(self.regression),
                    metric_text(*accuracy, self.regression, 1),
                    count(*samples_per_second as u64),
                    self.left(*step)
                ));
                self.bar.set_position(*step);
            }
            TrainEvent::Epoch(epoch) => {
                self.note(&self.epoch(epoch));
                self.event("epoch", epoch);
            }
            TrainEvent::Fault(fault) => {
                let first = fault.message.lines().next().unwrap_or_default();
                let rank = fault.rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
                self.note(&format!(
                    "step {}: {} on {}{rank}: {first}",
                    fault.step, fault.kind, fault.device
                ));
                self.event("fault", fault);
            }
            TrainEvent::Recovery { rung, device, parts } => {
                let parts_text =
                    if *parts > 1 { format!(" in {parts} parts") } else { String::new() };
                self.note(&format!("  recovering by {rung} on {device}{parts_text}"));
                self.line(
                    json!({"event": "recovery", "rung": rung, "device": device, "parts": parts}),
                );
            }
            TrainEvent::SkippedStep { step } => {
                self.note(&format!("step {step}: inf or NaN, left out"));
                self.line(json!({"event": "skipped_step", "step": step}));
            }
            TrainEvent::SkippedSample { what } => {
                self.skipped_samples += 1;
                match self.skipped_samples {
                    n if n <= NAMED_SAMPLES => self.note(&format!("left out: {what}")),
                    n if n == NAMED_SAMPLES + 1 => {
                        self.note("left out: more samples, which --json names");
                    }
                    _ => {}
                }
                self.line(json!({"event": "skipped_sample", "what": what}));
            }
            TrainEvent::SetAside { after, folder } => {
                let folder_text = folder.display();
                self.note(&format!("the checkpoints after step {after} are now in {folder_text}"));
                self.line(json!({"event": "set_aside", "after": after, "folder": folder_text.to_string()}));
            }
            TrainEvent::DiskFull { path, waited_seconds } => {
                let path_text = path.display().to_string();
                self.note(&format!(
                    "there is no room for {path_text}: waiting until there is ({} so far); Ctrl-C \
                     ends the run at its last checkpoint",
                    time(*waited_seconds as f64)
                ));
                self.line(json!({
                    "event": "disk_full", "path": path_text, "waited_seconds": waited_seconds,
                }));
            }
            TrainEvent::Checkpoint { path, best } => {
                let path = path.display().to_string();
                self.line(json!({"event": "checkpoint", "path": path, "best": best}));
            }
            TrainEvent::Ranks(ranks) => self.event("ranks", &json!({ "ranks": ranks })),
            TrainEvent::Restored { from } => {
                self.note(&format!("the weights went with their device: taken from rank {from}"));
                self.line(json!({"event": "restored", "from": from}));
            }
            TrainEvent::Rewound { to } => {
                self.note(&format!(
                    "the weights went with their device: doing again from step {to}"
                ));
                self.line(json!({"event": "rewound", "to": to}));
            }
            _ => {}
        }
    }

    /// How long it will take yet.
    fn left(&self, step: u64) -> String {
        let done = step.saturating_sub(self.from).max(1);
        let each = self.since.elapsed().as_secs_f64() / done as f64;
        let left = Duration::from_secs_f64(each * self.steps.saturating_sub(step) as f64);
        format!("{} left", time(left.as_secs_f64()))
    }

    fn epoch(&self, epoch: &EpochReport) -> String {
        let metric = metric_name(self.regression);
        format!(
            "epoch {:>3}  loss {:.4}  {metric} {:>6}  test loss {:.4}  test {metric} {:>7}  {} samples/s  {}  {}  {}",
            epoch.epoch,
            epoch.train_loss,
            metric_text(epoch.train_accuracy, self.regression, 1),
            epoch.test_loss,
            metric_text(epoch.test_accuracy, self.regression, 2),
            count(epoch.samples_per_second as u64),
            Bytes(epoch.memory),
            epoch.device,
            self.left(epoch.step),
        )
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| self.terminal.note(text));
    }

    fn event(&self, name: &str, news: &impl Serialize) {
        if let Ok(Value::Object(mut object)) = serde_json::to_value(news) {
            object.insert("event".to_owned(), name.into());
            self.line(Value::Object(object));
        }
    }

    fn line(&self, line: Value) {
        if self.json {
            // A reader that is gone ends the run, with a checkpoint; anything else shows at the report.
            if !self.terminal.json_line_is_read(&line) {
                self.unread.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The end: a table, or the last line of JSON.
    pub(super) fn report(
        &self,
        report: &TrainReport,
        config: &Config,
        page: Option<&Path>,
    ) -> Result<(), Failure> {
        if self.json {
            return match report.interrupted {
                true => {
                    self.line(serde_json::to_value(report).unwrap_or_default());
                    Ok(())
                }
                false => self.terminal.json_line(report),
            };
        }
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<16}{value}");
        };
        let ended = match (report.interrupted, config.length) {
            (true, _) => "interrupted".to_owned(),
            _ if report.stopped_early => "stopped early, as tests got no better".to_owned(),
            (false, Length::Epochs(1)) => "1 epoch".to_owned(),
            (false, Length::Epochs(epochs)) => format!("{epochs} epochs"),
            (false, Length::Steps(_)) => "complete".to_owned(),
        };
        row(
            "trained",
            format!(
                "{ended}, {} steps in {} on {} in {}",
                count(report.steps),
                time(report.seconds),
                report.device,
                report.precision
            ),
        );
        if report.test_accuracy.is_finite() {
            let best = match report.best_test_accuracy > report.test_accuracy {
                true => {
                    let best = metric_text(report.best_test_accuracy, self.regression, 2);
                    format!(" (best {best})")
                }
                false => String::new(),
            };
            let tested = metric_text(report.test_accuracy, self.regression, 2);
            row(&format!("test {}", metric_name(self.regression)), format!("{tested}{best}"));
            row("test loss", format!("{:.4}", report.test_loss));
        }
        row("faults", faults(report));
        if report.skipped_steps > 0 {
            row("left out", format!("{} steps with inf or NaN", report.skipped_steps));
        }
        if report.skipped_samples > 0 {
            let samples = match report.skipped_samples {
                1 => "1 sample".to_owned(),
                many => format!("{} samples", count(many)),
            };
            row("left out", format!("{samples} that can't be read"));
        }
        for rank in report.ranks.iter().take(SHOWN_RANKS) {
            row(&format!("rank {}", rank.rank), rank_text(rank));
        }
        if report.ranks.len() > SHOWN_RANKS {
            row("", format!("and {} more ranks", report.ranks.len() - SHOWN_RANKS));
        }
        row("checkpoint", report.checkpoint.display().to_string());
        if report.best_checkpoint != report.checkpoint {
            row("best checkpoint", report.best_checkpoint.display().to_string());
        }
        if let Some(curves) = &report.curves {
            row("curves", curves.display().to_string());
        }
        if let Some(page) = page {
            row("page", page.display().to_string());
        }
        self.terminal.result(&text)
    }
}

/// A rank in one line.
pub(super) fn rank_text(rank: &RankReport) -> String {
    let faults = match rank.faults {
        0 => "no faults".to_owned(),
        1 => "1 fault".to_owned(),
        many => format!("{many} faults"),
    };
    format!("{} on {}, {} at most, {faults}", rank.host, rank.device, Bytes(rank.peak_memory))
}

fn faults(report: &TrainReport) -> String {
    if report.fault_log.is_empty() {
        return "none".to_owned();
    }
    let told: Vec<String> = report
        .fault_log
        .iter()
        .take(5)
        .map(|fault| {
            let way = fault.recovery.as_deref().unwrap_or("nothing");
            let rank = fault.rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
            format!("{} at step {}{rank} → {way}", fault.kind, fault.step)
        })
        .collect();
    let more = report.fault_log.len().saturating_sub(told.len());
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}: {}{more}", report.faults, told.join(", "))
}

/// What a test is measured by besides its loss.
pub(super) fn metric_name(regression: bool) -> &'static str {
    if regression { "R²" } else { "accuracy" }
}

/// A share of right answers, or of the variance that is explained.
pub(super) fn metric_text(value: f64, regression: bool, digits: usize) -> String {
    match regression {
        true => format!("{value:.3}"),
        false => format!("{:.digits$} %", 100.0 * value),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A whole number with its thousands apart.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
