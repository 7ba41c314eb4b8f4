//! What a pass over a batch is asked for ([`Want`]) and what it gives ([`Output`]).

use surefoot::{Fault, FaultKind};

use crate::error::ModelError;

/// Which logits a pass should give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None.
    None,
    /// Of the last position of each sequence.
    Last,
    /// Of every position.
    All,
}

/// What a pass should give.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The logits.
    pub logits: Logits,
    /// The hidden state behind the embeddings and behind each block; the last one is the one
    /// behind the final norm.
    pub hidden: bool,
    /// The last hidden state.
    pub last_hidden: bool,
}

/// Numbers in rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The numbers of a row.
    pub cols: usize,
    /// Row after row.
    pub numbers: Vec<f32>,
}

impl Rows {
    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.cols..(row + 1) * self.cols]
    }

    /// How many of the numbers are infinite or NaN.
    pub fn not_finite(&self) -> usize {
        self.numbers.iter().filter(|number| !number.is_finite()).count()
    }

    /// Refuses numbers that mean nothing: what is made of them would look like an answer.
    pub(crate) fn checked(self, what: &str) -> Result<Self, ModelError> {
        match self.not_finite() {
            0 => Ok(self),
            count => {
                let message = format!(
                    "{count} of {} numbers of the {what} are NaN or infinite: the weights are \
                     damaged, or their numbers are too large for this precision",
                    self.numbers.len()
                );
                let fault = Fault::new(FaultKind::Numeric, what.to_owned(), message);
                Err(ModelError::Fault(Box::new(fault)))
            }
        }
    }
}

/// What a decoding step gives of each sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutput {
    /// The logits.
    Logits(Rows),
    /// The most likely token, where only that was asked for and the device has found it. All logits are finite.
    MostLikely(Vec<u32>),
}

/// What a pass gave. Rows are sequence after sequence, padding included.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Logits, if they were asked for.
    pub logits: Option<Rows>,
    /// Hidden states, if they were asked for.
    pub hidden: Vec<Rows>,
    /// The last hidden state, if it was asked for.
    pub last_hidden: Option<Rows>,
}
