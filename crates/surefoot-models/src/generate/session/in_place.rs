//! Joining without copies: the passes over prompts take the rows that the sequences get as their cache, and write keys and values to where
//! they belong.

use surefoot_ops::MOST_DECODED;

use super::{Decoding, Passes, first_logits};
use crate::error::ModelError;
use crate::generate::tokens::WANT;
use crate::run::batch::{Rectangle, TokenBatch};
use crate::run::output::{Logits, Output, Rows, Want};

/// Tokens of a pass over short prompts: for fewer, kernels would be made for each number of them.
const LEAST_TOKENS: usize = 16;
/// Prompts of so many tokens are widened to a multiple of [`RUN`], which their attention is made faster for.
const LONG: usize = 97;
const RUN: usize = 32;

impl Decoding {
    /// [`Self::join`] for models that [`crate::run::model::Model::decodes_in_place`] takes. There is room for the sequences.
    pub(super) fn join_in_place(
        &mut self,
        passes: &mut Passes<'_>,
        sequences: &[Vec<u32>],
    ) -> Result<Rows, ModelError> {
        let model = passes.model;
        let batch = TokenBatch::new(sequences, model.blueprint.vocab)?;
        let width = self.width_of(&batch);
        let batch = batch.at_least(Rectangle { rows: 0, width });
        self.make_room(model, batch.len(), width);
        let (start, end) = (self.cache.start, self.cache.filled);
        let begin = end - width;
        self.cache.first_row = self.len();
        (self.cache.start, self.cache.filled, self.cache.stale) = (begin, begin, begin);
        let ran = self.run_prompts(passes, &batch);
        (self.cache.first_row, self.cache.stale) = (0, 0);
        // What is refused leaves those that were there as they were, and an empty session empty.
        let output = ran.inspect_err(|_| {
            (self.cache.start, self.cache.filled) = (start, end);
            self.forget_padding();
        })?;
        self.pads.extend(sequences.iter().map(|sequence| end - sequence.len()));
        self.forget_padding();
        first_logits(output, sequences.len())
    }

    /// The columns of a pass: more than the prompts have where they have few, as far as there is room.
    fn width_of(&self, batch: &TokenBatch) -> usize {
        let (count, width) = (batch.len(), batch.width);
        let wider = match width < LONG {
            true => LEAST_TOKENS.div_ceil(count).max(width),
            false => width.next_multiple_of(RUN),
        };
        let longest = wider.max(self.cache.past());
        let fits = wider <= self.limits.positions && self.limits.fit(self.len() + count, longest);
        if width > 1 && fits { wider } else { width }
    }

    /// Runs all columns of a batch, in parts, behind what the cache holds of its rows.
    fn run_prompts(
        &mut self,
        passes: &mut Passes<'_>,
        batch: &TokenBatch,
    ) -> Result<Output, ModelError> {
        let model = passes.model;
        let part = self.limits.pass_tokens.min(MOST_DECODED) / batch.len();
        // Parts that are not the last keep what is before the next a multiple of it.
        let whole = if part < RUN { part.max(1) } else { part / RUN * RUN };
        let part = whole.min(batch.width);
        let last = (batch.width - 1) / part * part;
        for start in (0..last).step_by(part) {
            let want = Want { logits: Logits::None, ..WANT };
            let columns = batch.columns(start..start + part);
            model.pass(&columns, want, &mut passes.session, Some(&mut self.cache))?;
            self.cache.stale = 0;
        }
        let columns = batch.columns(last..batch.width);
        model.pass(&columns, WANT, &mut passes.session, Some(&mut self.cache))
    }
}
