//! Rows of tokens for training, in which several sequences may lie side by side.
//!
//! Each position belongs to a segment of its row and sees only positions of the same segment; positions are counted from
//! the start of their segment. What is packed into one row so gives the same numbers as in rows of its own.
//! Padding is a segment like any other.

use std::sync::Arc;

use crate::error::ModelError;

/// Token ids in rows of equal width, with the segment of each.
#[derive(Clone, Debug)]
pub struct SequenceBatch {
    pub(crate) ids: Vec<u32>,
    pub(crate) segments: Vec<u32>,
    pub(crate) width: usize,
    /// No row begins with padding.
    pub(crate) pads: Vec<usize>,
    seeds: Arc<[u64]>,
}

impl SequenceBatch {
    /// Rows of `width` ids, each in a vocabulary of `vocab`. Equal numbers in `segments` that follow each other
    /// in a row are one segment.
    pub fn new(
        ids: Vec<u32>,
        segments: Vec<u32>,
        width: usize,
        vocab: usize,
    ) -> Result<Self, ModelError> {
        if width == 0 || ids.is_empty() || !ids.len().is_multiple_of(width) {
            return Err(ModelError::request("the tokens are not in rows of the same width"));
        }
        if ids.len() != segments.len() {
            return Err(ModelError::request("each token must have a segment"));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(ModelError::request(format!(
                "token {id} is not in the vocabulary, which has {vocab} tokens"
            )));
        }
        let pads = vec![0; ids.len() / width];
        Ok(Self { ids, segments, width, pads, seeds: Arc::default() })
    }

    /// With a seed for each row, for what is random in training.
    #[must_use]
    pub fn with_seeds(mut self, seeds: &[u64]) -> Self {
        self.seeds = seeds.into();
        self
    }

    /// The seeds of the rows; none if nothing is random.
    pub fn seeds(&self) -> &Arc<[u64]> {
        &self.seeds
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.ids.len() / self.width
    }

    /// The position of each token in its segment.
    pub(crate) fn positions(&self) -> Vec<usize> {
        let mut positions = Vec::with_capacity(self.ids.len());
        for row in self.segments.chunks_exact(self.width) {
            let mut at = 0;
            for (column, segment) in row.iter().enumerate() {
                at = if column > 0 && row[column - 1] == *segment { at + 1 } else { 0 };
                positions.push(at);
            }
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_begin_anew_with_each_segment_and_row() {
        let batch = SequenceBatch::new(vec![1; 8], vec![0, 0, 1, 1, 0, 0, 0, 2], 4, 9).unwrap();
        assert_eq!(batch.positions(), [0, 1, 0, 1, 0, 1, 2, 0]);
        assert!(SequenceBatch::new(vec![9], vec![0], 1, 9).is_err());
        assert!(SequenceBatch::new(vec![1, 2, 3], vec![0; 3], 2, 9).is_err());
    }
}
