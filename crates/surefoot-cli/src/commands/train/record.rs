//! The run of a run in the journal: where it began, its progress, its epochs. The journal's
//! page draws its curves and its memory from these events.

use std::time::{Duration, Instant};

use surefoot::Footing;
use surefoot::journal::{Event, EventKind, Level};
use surefoot_train::TrainEvent;

/// Points closer together than this would tell no more and cost more.
const APART: Duration = Duration::from_millis(50);

/// Passes a run's news on to the journal.
pub(super) struct Record<'a> {
    footing: &'a Footing,
    budget: Option<u64>,
    told: Option<Instant>,
}

impl<'a> Record<'a> {
    pub(super) fn new(footing: &'a Footing, budget: Option<u64>) -> Self {
        Self { footing, budget, told: None }
    }

    pub(super) fn tell(&mut self, news: &TrainEvent) {
        if !self.footing.journal().is_on() {
            return;
        }
        match news {
            TrainEvent::Started { parameters, samples, steps, from, .. } => {
                self.note("train", |event| {
                    event
                        .level(Level::Info)
                        .context("parameters", *parameters)
                        .context("train_samples", samples.0)
                        .context("test_samples", samples.1)
                        .context("steps", *steps)
                        .context("from", *from)
                })
            }
            TrainEvent::Step { step, of, loss, accuracy, samples_per_second } => {
                let due = self.told.is_none_or(|told| told.elapsed() >= APART) || step == of;
                if due {
                    self.told = Some(Instant::now());
                    self.note("progress", |event| {
                        event
                            .context("step", *step)
                            .context("loss", *loss)
                            .context("accuracy", *accuracy)
                            .context("samples_per_second", *samples_per_second)
                    });
                }
            }
            TrainEvent::Epoch(epoch) => self.note("epoch", |event| {
                event
                    .level(Level::Info)
                    .context("epoch", epoch.epoch)
                    .context("step", epoch.step)
                    .context("train_loss", epoch.train_loss)
                    .context("train_accuracy", epoch.train_accuracy)
                    .context("test_loss", epoch.test_loss)
                    .context("test_accuracy", epoch.test_accuracy)
                    .context("samples_per_second", epoch.samples_per_second)
            }),
            TrainEvent::Checkpoint { path, best } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.note("checkpoint", |event| event.context("file", name).context("best", *best));
            }
            TrainEvent::Ranks(ranks) => {
                for rank in ranks {
                    self.note("rank", |event| {
                        event
                            .level(Level::Info)
                            .context("rank", rank.rank)
                            .context("host", rank.host.clone())
                            .context("rank_device", rank.device.clone())
                            .context("peak_memory", rank.peak_memory)
                            .context("faults", rank.faults)
                            .context("computing_seconds", rank.computing_seconds)
                            .context("agreeing_seconds", rank.agreeing_seconds)
                            .context("summing_seconds", rank.summing_seconds)
                            .context("updating_seconds", rank.updating_seconds)
                    });
                }
            }
            TrainEvent::Restored { from } => {
                self.note("restored", |event| event.context("from_rank", *from));
            }
            TrainEvent::Rewound { to } => self.note("rewound", |event| event.context("to", *to)),
            _ => {}
        }
    }

    /// Records a note with what the device holds now.
    fn note(&self, op: &'static str, fill: impl FnOnce(Event) -> Event) {
        let Ok(device) = self.footing.device() else { return };
        let mut event = Event::new(EventKind::Note, op)
            .level(Level::Debug)
            .device(device.name().to_string())
            .context("in_use", device.memory_in_use());
        if let Some(budget) = self.budget {
            event = event.context("budget", budget);
        }
        self.footing.journal().record(fill(event));
    }
}
