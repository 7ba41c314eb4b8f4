//! The page of a training run: its curves, epochs and faults.

use std::io::{self, Write};

use serde::Serialize;

use crate::page::{self, Connect, Kind};

/// A training run, as its report tells it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Training {
    /// What the reader knows the run by.
    pub title: String,
    /// What it came to, in a sentence.
    pub summary: String,
    /// Points along the way, in order of their steps.
    pub points: Vec<Point>,
    /// Every epoch.
    pub epochs: Vec<Epoch>,
    /// The step of the checkpoint that tested best.
    pub best_step: Option<u64>,
    /// The last test of a classifier, a row for each class in order.
    pub confusion: Option<Vec<ClassRow>>,
    /// Anything else worth a line: a name and its value.
    pub facts: Vec<(String, String)>,
}

/// How the test samples of one class were predicted.
#[derive(Clone, Debug, Serialize)]
pub struct ClassRow {
    /// What the class is called.
    pub name: String,
    /// Test samples of the class.
    pub samples: u64,
    /// The share of those predicted as this class that are of it.
    pub precision: Option<f64>,
    /// The share of its samples that are predicted as it.
    pub recall: Option<f64>,
    /// How many of its samples were predicted as each class.
    pub predicted: Vec<u64>,
}

/// Where a run was at one step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Steps done.
    pub step: u64,
    /// The loss.
    pub loss: f64,
    /// The share of right answers.
    pub accuracy: f64,
    /// Samples trained on in a second.
    pub samples_per_second: f64,
}

/// One epoch.
#[derive(Clone, Debug, Serialize)]
pub struct Epoch {
    /// From 1.
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// The mean loss while training.
    pub train_loss: f64,
    /// The share of right answers while training.
    pub train_accuracy: f64,
    /// The mean loss on the test samples.
    pub test_loss: f64,
    /// The share of right answers on the test samples.
    pub test_accuracy: f64,
    /// Samples trained on in a second.
    pub samples_per_second: f64,
    /// Bytes in use.
    pub memory: u64,
    /// Where it ran.
    pub device: String,
}

impl Training {
    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        page::write(out, Kind::Training, Connect::Nowhere, &self.title, self)
    }
}
