//! Sequences of different lengths as one rectangle: shorter ones are padded at their start, so
//! that all end together.

use crate::error::ModelError;

/// Token ids of a batch, `width` of each sequence.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    pub(crate) ids: Vec<u32>,
    /// How many ids at the start of each sequence are padding.
    pub(crate) pads: Vec<usize>,
    pub(crate) width: usize,
}

/// The least size of a pass. Kernels are made for a shape: a few sizes that are used again and
/// again cost less than one for each number of sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rectangle {
    /// Sequences; what there are fewer is filled up with rows that nobody looks at.
    pub rows: usize,
    /// Tokens of each; what a sequence has fewer is padding.
    pub width: usize,
}

impl TokenBatch {
    /// Puts sequences together. Each id must be in a vocabulary of `vocab`, and no sequence empty.
    pub fn new(sequences: &[Vec<u32>], vocab: usize) -> Result<Self, ModelError> {
        let width = sequences.iter().map(Vec::len).max().unwrap_or(0);
        if width == 0 || sequences.iter().any(Vec::is_empty) {
            return Err(ModelError::request("there are no tokens to run"));
        }
        let mut ids = Vec::with_capacity(width * sequences.len());
        let mut pads = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            check_vocabulary(sequence, vocab)?;
            let pad = width - sequence.len();
            ids.extend(std::iter::repeat_n(0, pad));
            ids.extend_from_slice(sequence);
            pads.push(pad);
        }
        Ok(Self { ids, pads, width })
    }

    /// The same sequences with more padding before them and idle rows behind them.
    #[must_use]
    pub fn at_least(self, least: Rectangle) -> Self {
        let count = self.len();
        let more = least.width.saturating_sub(self.width);
        let (rows, width) = (count.max(least.rows), self.width + more);
        let mut ids = Vec::with_capacity(width * rows);
        for row in self.ids.chunks_exact(self.width) {
            ids.extend(std::iter::repeat_n(0, more));
            ids.extend_from_slice(row);
        }
        ids.resize(width * rows, 0);
        let mut pads: Vec<usize> = self.pads.iter().map(|pad| pad + more).collect();
        pads.resize(rows, 0);
        Self { ids, pads, width }
    }

    /// Some columns of all sequences, for a pass over a part of them. How much of each sequence is
    /// padding still counts from its first column.
    pub(crate) fn columns(&self, range: std::ops::Range<usize>) -> Self {
        let rows = self.ids.chunks_exact(self.width);
        let ids = rows.flat_map(|row| &row[range.clone()]).copied().collect();
        Self { ids, pads: self.pads.clone(), width: range.len() }
    }

    /// The position of each token in its sequence, behind `past` columns that a cache holds.
    pub(crate) fn positions(&self, past: usize) -> Vec<usize> {
        let of_row = |&pad: &usize| (0..self.width).map(move |at| (past + at).saturating_sub(pad));
        self.pads.iter().flat_map(of_row).collect()
    }

    /// How many sequences.
    pub fn len(&self) -> usize {
        self.pads.len()
    }

    /// Whether it has no sequences: never, since [`Self::new`] refuses that.
    pub fn is_empty(&self) -> bool {
        self.pads.is_empty()
    }
}

/// Refuses tokens that are not in a vocabulary of `vocab`.
pub(crate) fn check_vocabulary(tokens: &[u32], vocab: usize) -> Result<(), ModelError> {
    match tokens.iter().find(|&&id| id as usize >= vocab) {
        None => Ok(()),
        Some(id) => Err(ModelError::request(format!(
            "token {id} is not in the vocabulary, which has {vocab} tokens (0 to {})",
            vocab - 1
        ))),
    }
}
