//! Where samples come from.
//!
//! A [`Source`] gives one sample at a time, by number, from any thread. What was read is checked
//! when it enters: a file that is too short or a label that is not a class is an error that names it.

mod augment;
mod cifar;
mod class_weights;
mod csv_lines;
mod description;
mod digits;
mod folder;
mod gzip;
mod idx;
mod image;
mod jsonl;
mod open;
mod pixels;
mod pretrained_text;
mod sequences;
mod subset;
mod table;
mod text;
mod text_table;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use augment::{Augment, Transform};
pub use class_weights::class_weights;
pub use description::{DataDescription, Normalisation};
pub use folder::Folder;
pub(crate) use folder::{image_files, read_image as read_image_file};
pub(crate) use image::decode_to as decode_image;
pub use open::{DataSet, open, open_as};
pub use pixels::Pixels;
pub use sequences::{Example, Sequences};
pub use subset::{Subset, split};
pub use table::{Table, TableOptions};
pub use text::{Text, Vocabulary};

/// What a source's samples look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Numbers in channels, rows and columns, each sample with one class or number to predict.
    Dense {
        /// Channels: 1 for grey, 3 for colour, the number of features for a table.
        channels: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// What is predicted.
        target: Target,
    },
    /// Tokens of a text, each to be predicted from those before it.
    Text {
        /// How many different tokens there are.
        vocabulary: usize,
        /// Tokens in a sample.
        length: usize,
    },
    /// Rows of tokens for a pretrained model, in which several sequences may be packed.
    Sequences {
        /// How many different tokens there are.
        vocabulary: usize,
        /// Tokens in a row at most.
        length: usize,
        /// The classes of which one is predicted for each row; none if tokens are predicted.
        classes: Option<usize>,
    },
}

/// What is predicted for a sample of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One of so many classes.
    Classes(usize),
    /// A number (regression).
    Number,
}

impl Target {
    /// The number of outputs that a model needs for it.
    pub fn outputs(self) -> usize {
        match self {
            Self::Classes(count) => count,
            Self::Number => 1,
        }
    }
}

impl Form {
    /// Numbers in one sample.
    pub fn size(&self) -> usize {
        match *self {
            Self::Dense { channels, height, width, .. } => channels * height * width,
            Self::Text { length, .. } | Self::Sequences { length, .. } => length,
        }
    }

    /// Predictions for one sample: one class or number, or each token. Of packed sequences the most that
    /// there can be.
    pub fn items(&self) -> usize {
        match *self {
            Self::Dense { .. } => 1,
            Self::Sequences { classes: Some(_), .. } => 1,
            Self::Text { length, .. } | Self::Sequences { length, .. } => length,
        }
    }

    /// The number of outputs of a model for it: classes, tokens, or one number.
    pub fn outputs(&self) -> usize {
        match *self {
            Self::Dense { target, .. } => target.outputs(),
            Self::Sequences { classes: Some(classes), .. } => classes,
            Self::Text { vocabulary, .. } | Self::Sequences { vocabulary, .. } => vocabulary,
        }
    }

    /// The classes of which one is predicted for each sample; none if tokens or numbers are.
    pub fn classes(&self) -> Option<usize> {
        match *self {
            Self::Dense { target: Target::Classes(classes), .. } => Some(classes),
            Self::Sequences { classes, .. } => classes,
            Self::Dense { .. } | Self::Text { .. } => None,
        }
    }

    /// Whether numbers are predicted, not classes or tokens.
    pub fn is_regression(&self) -> bool {
        matches!(self, Self::Dense { target: Target::Number, .. })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense { channels, height: 1, width: 1, target } => {
                write!(f, "{channels} numbers for {target}")
            }
            Self::Dense { channels, height, width, target } => {
                write!(f, "{channels}×{height}×{width} pixels for {target}")
            }
            Self::Text { vocabulary, length } => {
                write!(f, "pieces of {length} tokens out of {vocabulary}")
            }
            Self::Sequences { vocabulary, length, classes: None } => {
                write!(f, "rows of up to {length} tokens out of {vocabulary}")
            }
            Self::Sequences { length, classes: Some(classes), .. } => {
                write!(f, "texts of up to {length} tokens for {classes} classes")
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes(count) => write!(f, "{count} classes"),
            Self::Number => f.write_str("a number"),
        }
    }
}

/// What is right for a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Label {
    /// Its class.
    Class(usize),
    /// Its number, in regression.
    Number(f32),
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Numbers and what is right for them.
    Dense {
        /// The numbers, channel by channel, row by row.
        values: Vec<f32>,
        /// The class or number to predict.
        label: Label,
    },
    /// One token more than the form's length: each but the last is read, each but the first
    /// predicted.
    Tokens(Vec<u32>),
    /// A row of sequences.
    Sequences {
        /// The tokens, at most as many as the form's length.
        tokens: Vec<u32>,
        /// The segment of each token: a position sees only its own segment.
        segments: Vec<u32>,
        /// The token to predict at each position, [`NOT_PREDICTED`] where none is; or one class for the row.
        targets: Vec<i32>,
    },
}

/// The target of a position whose next token is not predicted.
pub const NOT_PREDICTED: i32 = -1;
/// The segment of padding.
pub const PADDING: u32 = u32::MAX;

/// Samples, by number.
pub trait Source: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they look like.
    fn form(&self) -> Form;

    /// Reads one; or says what is wrong with it.
    fn read(&self, at: usize) -> Result<Sample, String>;

    /// What is right for a sample, without reading the rest of it where that is possible.
    fn label(&self, at: usize) -> Option<Label> {
        match self.read(at) {
            Ok(Sample::Dense { label, .. }) => Some(label),
            _ => None,
        }
    }

    /// What a person would call a sample: its file or line.
    fn name(&self, at: usize) -> String;
}

/// Reads a sample; one that its decoder panics on is one that can't be read.
pub(crate) fn read_caught(source: &dyn Source, at: usize) -> Result<Sample, String> {
    catch_unwind(AssertUnwindSafe(|| source.read(at)))
        .unwrap_or_else(|_| Err("reading it panicked".to_owned()))
}

/// Data that can't be used: which, where and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct DataError {
    /// The file or folder.
    pub place: String,
    /// What is wrong with it.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl DataError {
    pub(crate) fn new(place: &Path, why: impl Into<String>) -> Self {
        Self { place: place.display().to_string(), why: why.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    std::fs::read(path).map_err(|error| DataError::new(path, error.to_string()))
}

/// The first of several names for a file that is there.
fn first_of(folder: &Path, names: &[&str]) -> Result<PathBuf, DataError> {
    names.iter().map(|name| folder.join(name)).find(|path| path.is_file()).ok_or_else(|| {
        DataError::new(folder, format!("there is no {} in this folder", names.join(" or ")))
    })
}
