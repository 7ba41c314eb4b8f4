//! Classifying many pairs of texts with a runner: in batches of about the same length that fit in memory.

use super::embed::{BATCH, batches};
use super::{RunOutcome, RunRequest, Runner};
use crate::classify::{self, ClassificationHead};
use crate::error::ModelError;
use crate::generate::text::TokenPair;
use crate::run::output::Rows;
use crate::stream::needs::Work;

impl Runner {
    /// The numbers of the labels for each pair, in their order.
    pub fn classify(
        &self,
        pairs: &[TokenPair],
        head: &ClassificationHead,
    ) -> Result<RunOutcome<Rows>, ModelError> {
        let prompt = pairs.iter().map(|pair| pair.ids.len()).max().unwrap_or(1);
        let work = |batch: usize| Work { batch, prompt, new_tokens: 0, want: classify::WANT };
        let at_once = self.fitting_samples(pairs.len().min(BATCH), work)?;
        let streams = self.plan(&work(at_once))?.streamed_file_bytes > 0;
        let lengths: Vec<usize> = pairs.iter().map(|pair| pair.ids.len()).collect();
        let passes = batches(&lengths, at_once, streams).len();
        let run = RunRequest::new("classify", work(at_once)).passes(passes).samples(pairs.len());
        self.run(&run, |attempt| {
            let columns = head.labels();
            let mut numbers = vec![0.0; pairs.len() * columns];
            let most = at_once.min(attempt.samples_at_once());
            for (number, batch) in batches(&lengths, most, streams).into_iter().enumerate() {
                if number > 0 {
                    attempt.between_parts();
                }
                let some: Vec<TokenPair> = batch.iter().map(|at| pairs[*at].clone()).collect();
                let rows = attempt.model().classify(&some, head)?;
                for (row, at) in batch.iter().enumerate() {
                    numbers[at * columns..(at + 1) * columns].copy_from_slice(rows.row(row));
                }
            }
            Ok(Rows { cols: columns, numbers })
        })
    }
}
