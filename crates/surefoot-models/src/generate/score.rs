//! The logits behind each token of a sequence, in parts: all of them at once would take a
//! vocabulary's worth of memory for each token.

use super::session::Passes;
use super::tokens::WANT;
use crate::error::ModelError;
use crate::run::batch::TokenBatch;
use crate::run::cache::Cache;
use crate::run::output::{Logits, Want};

impl Passes<'_> {
    /// Runs one sequence alone, `part` tokens at a time, and gives `each` the place of every token
    /// with the logits behind it.
    pub fn score(
        &mut self,
        tokens: &[u32],
        part: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let model = self.model;
        let batch = TokenBatch::new(&[tokens.to_vec()], model.blueprint.vocab)?;
        let mut cache = Cache::new(&model.blueprint, 1, batch.width, &model.parts);
        let want = Want { logits: Logits::All, ..WANT };
        for start in (0..batch.width).step_by(part.max(1)) {
            let end = (start + part.max(1)).min(batch.width);
            let columns = batch.columns(start..end);
            let output = model.pass(&columns, want, &mut self.session, Some(&mut cache))?;
            let logits =
                output.logits.ok_or_else(|| ModelError::request("the pass gave no logits"))?;
            for row in 0..end - start {
                each(start + row, logits.row(row));
            }
        }
        Ok(())
    }
}
