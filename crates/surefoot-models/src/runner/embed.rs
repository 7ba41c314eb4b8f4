//! Embedding many texts with a runner: in batches of about the same length that fit in memory.

use super::{RunOutcome, RunRequest, Runner};
use crate::embed::{self, Pooling};
use crate::error::ModelError;
use crate::run::output::Rows;
use crate::stream::needs::Work;

/// The texts of a batch, if memory allows.
pub(super) const BATCH: usize = 32;

impl Runner {
    /// One vector of length 1 for each sequence, in their order.
    pub fn embed(
        &self,
        sequences: &[Vec<u32>],
        pooling: Pooling,
    ) -> Result<RunOutcome<Rows>, ModelError> {
        let prompt = sequences.iter().map(Vec::len).max().unwrap_or(1);
        let work = |batch: usize| Work { batch, prompt, new_tokens: 0, want: embed::WANT };
        let at_once = self.fitting_samples(sequences.len().min(BATCH), work)?;
        let streams = self.plan(&work(at_once))?.streamed_file_bytes > 0;
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        let passes = batches(&lengths, at_once, streams).len();
        let run = RunRequest::new("embed", work(at_once)).passes(passes).samples(sequences.len());
        self.run(&run, |attempt| {
            let columns = attempt.model().blueprint().hidden;
            let mut numbers = vec![0.0; sequences.len() * columns];
            let most = at_once.min(attempt.samples_at_once());
            for (number, batch) in batches(&lengths, most, streams).into_iter().enumerate() {
                if number > 0 {
                    attempt.between_parts();
                }
                let some: Vec<Vec<u32>> = batch.iter().map(|at| sequences[*at].clone()).collect();
                let vectors = attempt.model().embed(&some, pooling)?;
                for (row, at) in batch.iter().enumerate() {
                    numbers[at * columns..(at + 1) * columns].copy_from_slice(vectors.row(row));
                }
            }
            Ok(Rows { cols: columns, numbers })
        })
    }
}

/// Which sequences run together, at most `size`: those of about the same length, since the shorter
/// ones are padded to the longest. If weights stream, as few batches as possible: each reads them.
pub(super) fn batches(lengths: &[usize], size: usize, streams: bool) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(lengths[*at]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match batches.last_mut() {
            Some(batch)
                if batch.len() < size && (streams || 4 * lengths[at] >= 3 * lengths[batch[0]]) =>
            {
                batch.push(at);
            }
            _ => batches.push(vec![at]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_about_one_length_go_together_and_none_is_lost() {
        let lengths = [3, 100, 4, 80, 70, 4, 4];
        assert_eq!(batches(&lengths, 3, false), [vec![1, 3], vec![4], vec![2, 5, 6], vec![0]]);
        assert_eq!(batches(&lengths, 3, true), [vec![1, 3, 4], vec![2, 5, 6], vec![0]]);
    }
}
