//! The HTML page of a training run: curves, epochs and faults.

use std::io::{self, Write};

use serde::Serialize;

use crate::page::{self, Connect, Kind};

/// The data of a training run's page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Training {
    /// The title.
    pub title: String,
    /// The result, in one sentence.
    pub summary: String,
    /// Metrics by step, in order.
    pub points: Vec<Point>,
    /// Every epoch.
    pub epochs: Vec<Epoch>,
    /// The step of the checkpoint that tested best.
    pub best_step: Option<u64>,
    /// The last test of a classifier, a row for each class in order.
    pub confusion: Option<Vec<ClassRow>>,
    /// Further facts as name and value.
    pub facts: Vec<(String, String)>,
}

/// How the test samples of one class were predicted.
#[derive(Clone, Debug, Serialize)]
pub struct ClassRow {
    /// The name of the class.
    pub name: String,
    /// Test samples of the class.
    pub samples: u64,
    /// Precision: the share of the predictions of this class that are correct.
    pub precision: Option<f64>,
    /// Recall: the share of its samples that are predicted as this class.
    pub recall: Option<f64>,
    /// How many of its samples were predicted as each class.
    pub predicted: Vec<u64>,
}

/// The metrics at one step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Steps done.
    pub step: u64,
    /// The loss.
    pub loss: f64,
    /// The share of correct predictions.
    pub accuracy: f64,
    /// Samples per second.
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
    /// The share of correct predictions while training.
    pub train_accuracy: f64,
    /// The mean loss on the test samples.
    pub test_loss: f64,
    /// The share of correct predictions on the test samples.
    pub test_accuracy: f64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Bytes of memory in use.
    pub memory: u64,
    /// The device.
    pub device: String,
}

impl Training {
    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        page::write(out, Kind::Training, Connect::Nowhere, &self.title, self)
    }
}
