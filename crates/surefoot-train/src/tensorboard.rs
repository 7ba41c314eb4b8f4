//! TensorBoard event files: a run's curves as `tensorboard --logdir DIR` shows them.
//!
//! An event file is a list of records, each with its length and masked CRC-32C checksums, whose
//! contents are protocol buffers. A resumed run writes a second file into the same folder, which
//! TensorBoard joins with the first.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::report::TrainEvent;

/// Points of the loss of steps are this far apart: more would not be seen.
const APART: Duration = Duration::from_millis(100);

/// The messages, with the field numbers of TensorFlow's `event.proto` and `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// Writes a run's curves. Scalars: `step/loss`, `step/samples_per_second`, and for each epoch
/// `train/loss`, `train/accuracy`, `test/loss`, `test/accuracy` (in regression `r2`).
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
    metric: &'static str,
    written: Option<Instant>,
}

impl EventFile {
    /// Starts a new file in `folder`, which is made if it is not there.
    pub fn create(folder: &Path, is_regression: bool) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let start = seconds_since_epoch();
        let name = format!("events.out.tfevents.{:010.0}.{}.surefoot", start, std::process::id());
        let path = folder.join(name);
        let file = File::create(&path)?;
        let metric = if is_regression { "r2" } else { "accuracy" };
        let mut events = Self { file, path, metric, written: None };
        // TensorBoard expects this version in the first record.
        events.write(0, What::FileVersion("brain.Event:2".to_owned()))?;
        Ok(events)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds what an event tells, if it has numbers for a curve.
    pub fn tell(&mut self, event: &TrainEvent) -> io::Result<()> {
        match event {
            TrainEvent::Step { step, of, loss, samples_per_second, .. } => {
                let due = self.written.is_none_or(|then| then.elapsed() >= APART) || step == of;
                if !due {
                    return Ok(());
                }
                self.written = Some(Instant::now());
                let scalars = [
                    ("step/loss".to_owned(), *loss),
                    ("step/samples_per_second".to_owned(), *samples_per_second),
                ];
                self.scalars(*step, scalars)
            }
            TrainEvent::Epoch(epoch) => {
                let metric = self.metric;
                let scalars = [
                    ("train/loss".to_owned(), epoch.train_loss),
                    (format!("train/{metric}"), epoch.train_accuracy),
                    ("test/loss".to_owned(), epoch.test_loss),
                    (format!("test/{metric}"), epoch.test_accuracy),
                ];
                self.scalars(epoch.step, scalars)
            }
            _ => Ok(()),
        }
    }

    fn scalars<const N: usize>(
        &mut self,
        step: u64,
        scalars: [(String, f64); N],
    ) -> io::Result<()> {
        let value = scalars.map(|(tag, number)| Value { tag, simple_value: number as f32 });
        self.write(step, What::Summary(Summary { value: value.into() }))
    }

    /// One record, written whole: a run that is killed leaves a file that can be read.
    fn write(&mut self, step: u64, what: What) -> io::Result<()> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let event = Event { wall_time: seconds_since_epoch(), step, what: Some(what) };
        self.file.write_all(&record(&event.encode_to_vec()))
    }
}

/// A record: length, its checksum, the content, its checksum.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(content);
    record.extend(masked_checksum(content).to_le_bytes());
    record
}

/// The mask of the format keeps checksums of data that holds checksums apart.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_length_and_checksums() {
        // The checksums were computed bit by bit in Python; benches/peers/export.py reads whole
        // files with TensorBoard itself.
        let length = [8, 0, 0, 0, 0, 0, 0, 0, 255, 134, 36, 15];
        let content = *b"surefoot";
        let checksum = [60, 85, 92, 39];
        assert_eq!(record(b"surefoot"), [&length[..], &content, &checksum].concat());
    }

    #[test]
    fn points_of_steps_are_thinned_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(&folder.path().join("new"), false).unwrap();
        for step in 1..=1000 {
            let loss = 1.0;
            let (accuracy, samples_per_second) = (0.5, 10.0);
            events
                .tell(&TrainEvent::Step { step, of: 1000, loss, accuracy, samples_per_second })
                .unwrap();
        }
        let bytes = std::fs::read(events.path()).unwrap();
        let tag = b"step/loss";
        let points = bytes.windows(tag.len()).filter(|window| *window == tag).count();
        // The first, the last, and one for each tenth of a second between them.
        assert!((2..500).contains(&points), "{points} points of 1000 steps");
    }
}
