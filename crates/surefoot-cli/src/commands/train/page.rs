//! The page that a run leaves beside its checkpoints: the curves of every step, not of epochs alone.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use surefoot_report::{ClassRow, Epoch, Point, Training};
use surefoot_train::config::Config;
use surefoot_train::evaluate::Confusion;
use surefoot_train::{TrainEvent, TrainReport};

use super::show::rank_text;

/// A table of more classes can't be read.
const MOST_CLASSES: usize = 100;

/// A curve with more points shows no more.
const MOST_POINTS: usize = 4096;

/// The curves of a run, as it goes on.
pub(super) struct Page {
    points: Vec<Point>,
    /// Steps between two points.
    apart: u64,
}

impl Page {
    pub(super) fn new() -> Self {
        Self { points: Vec::new(), apart: 1 }
    }

    pub(super) fn tell(&mut self, news: &TrainEvent) {
        match news {
            TrainEvent::Step { step, loss, accuracy, samples_per_second, .. }
                if step.is_multiple_of(self.apart) =>
            {
                self.points.push(Point {
                    step: *step,
                    loss: *loss,
                    accuracy: *accuracy,
                    samples_per_second: *samples_per_second,
                });
                if self.points.len() > MOST_POINTS {
                    self.apart *= 2;
                    self.points.retain(|point| point.step.is_multiple_of(self.apart));
                }
            }
            // What was done after the step that it goes back to is done again.
            TrainEvent::Rewound { to } => self.points.retain(|point| point.step <= *to),
            _ => {}
        }
    }

    /// Writes the page into `folder`.
    pub(super) fn write(
        self,
        folder: &Path,
        title: String,
        report: &TrainReport,
        classes: &[String],
        config: &Config,
    ) -> io::Result<PathBuf> {
        let path = folder.join("report.html");
        let mut facts = vec![("parameters".to_owned(), report.parameters.to_string())];
        for fault in &report.fault_log {
            let way = fault.recovery.as_deref().unwrap_or("nothing");
            let rank = fault.rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
            let told = format!("{} at step {}{rank} → {way}", fault.kind, fault.step);
            facts.push(("fault".to_owned(), told));
        }
        for rank in &report.ranks {
            facts.push((format!("rank {}", rank.rank), rank_text(rank)));
        }
        facts.push(("checkpoint".to_owned(), report.checkpoint.display().to_string()));
        facts.push(("program".to_owned(), format!("surefoot {}", env!("CARGO_PKG_VERSION"))));
        // The whole configuration, so that the page tells how to get the same run.
        facts.extend(config.entries());
        let epochs = report.epochs.iter().map(|epoch| Epoch {
            epoch: epoch.epoch,
            step: epoch.step,
            train_loss: epoch.train_loss,
            train_accuracy: epoch.train_accuracy,
            test_loss: epoch.test_loss,
            test_accuracy: epoch.test_accuracy,
            samples_per_second: epoch.samples_per_second,
            memory: epoch.memory,
            device: epoch.device.clone(),
        });
        let accuracy = match report.test_accuracy.is_finite() {
            true => format!(", test accuracy {:.2} %", 100.0 * report.test_accuracy),
            false => String::new(),
        };
        let faults = match report.faults {
            0 => "no faults".to_owned(),
            1 => "1 fault".to_owned(),
            many => format!("{many} faults"),
        };
        let summary = format!(
            "{} steps in {:.1} s on {} in {}{accuracy}; {faults}.",
            report.steps, report.seconds, report.device, report.precision
        );
        let (points, epochs) = (self.points, epochs.collect());
        let best_step = report.best_step;
        let confusion = report.confusion.as_ref().filter(|_| classes.len() <= MOST_CLASSES);
        let confusion = confusion.map(|confusion| confusion_of(confusion, classes));
        let page = Training { title, summary, points, epochs, facts, best_step, confusion };
        let mut file = BufWriter::new(File::create(&path)?);
        page.write(&mut file)?;
        file.flush()?;
        Ok(path)
    }
}

/// The last test, class by class.
fn confusion_of(confusion: &Confusion, classes: &[String]) -> Vec<ClassRow> {
    let rows = classes.iter().zip(confusion.classes()).zip(&confusion.counts);
    rows.map(|((name, figures), counts)| ClassRow {
        name: name.clone(),
        samples: figures.samples,
        precision: figures.precision,
        recall: figures.recall,
        predicted: counts.clone(),
    })
    .collect()
}
