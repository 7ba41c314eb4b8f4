//! Sequences of different lengths as one rectangle: shorter ones are padded at their start, so
//! that all end together.

use crate::error::ModelError;

/// Token ids of a batch, `width` of each sequence.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) ids: Vec<u32>,
    /// How many ids at the start of each sequence are padding.
    pub(crate) pads: Vec<usize>,
    pub(crate) width: usize,
}

impl Batch {
    /// Puts sequences together. Each id must be in a vocabulary of `vocab`, and no sequence empty.
    pub fn new(sequences: &[Vec<u32>], vocab: usize) -> Result<Self, ModelError> {
        let width = sequences.iter().map(Vec::len).max().unwrap_or(0);
        if width == 0 || sequences.iter().any(Vec::is_empty) {
            return Err(ModelError::request("there are no tokens to run"));
        }
        let mut ids = Vec::with_capacity(width * sequences.len());
        let mut pads = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            if let Some(id) = sequence.iter().find(|&&id| id as usize >= vocab) {
                return Err(ModelError::request(format!(
                    "token {id} is not in the vocabulary, which has {vocab} tokens (0 to {})",
                    vocab - 1
                )));
            }
            let pad = width - sequence.len();
            ids.extend(std::iter::repeat_n(0, pad));
            ids.extend_from_slice(sequence);
            pads.push(pad);
        }
        Ok(Self { ids, pads, width })
    }

    /// The same sequences with more padding, to a width that was used before.
    #[must_use]
    pub fn widened(self, width: usize) -> Self {
        let Some(more) = width.checked_sub(self.width).filter(|more| *more > 0) else {
            return self;
        };
        let mut ids = Vec::with_capacity(width * self.pads.len());
        for row in self.ids.chunks_exact(self.width) {
            ids.extend(std::iter::repeat_n(0, more));
            ids.extend_from_slice(row);
        }
        Self { ids, pads: self.pads.iter().map(|pad| pad + more).collect(), width }
    }

    /// How many sequences.
    pub fn len(&self) -> usize {
        self.pads.len()
    }

    /// Whether there is none; never, once made.
    pub fn is_empty(&self) -> bool {
        self.pads.is_empty()
    }
}
