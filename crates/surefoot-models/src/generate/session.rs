//! Decoding where sequences come and go between tokens.
//!
//! All sequences end in the same column of one cache, so a step writes one column for all of
//! them and is one pass. A sequence that joins is run over its prompt alone and its keys and
//! values are put so that they end where the others end: what lies before them in its row is
//! padding, which the masks hide. Where the kernels of a device run all blocks, the pass over a prompt writes them there at once (`in_place`);
//! elsewhere they are copied from a cache of their own. One that leaves gives its row to the last one. The cache grows
//! with what is in it, in rows and in columns, up to the limits.
//!
//! After an error a session must be dropped: its rows may end in different columns. Make
//! a new one and let the sequences join with the tokens they have.

mod in_place;

use burn::tensor::Tensor;

use super::tokens::WANT;
use crate::error::ModelError;
use crate::run::batch::{Rectangle, TokenBatch};
use crate::run::cache::{Cache, moved_to};
use crate::run::model::Model;
use crate::run::output::{Logits, Output, Rows, StepOutput, Want};
use crate::run::recorded_step::StepRecorder;
use crate::stream::store::Session;

/// Columns that a cache has at least behind its longest sequence: so many steps until it is moved.
const LEAST_SLACK: usize = 16;

/// How much a session may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequences at once.
    pub rows: usize,
    /// Tokens of the longest sequence.
    pub positions: usize,
    /// Rows times columns of the cache. [`Limits::least_cache_tokens`] hold one sequence of any
    /// length, more than [`Limits::most_cache_tokens`] are never used.
    pub cache_tokens: usize,
    /// Tokens that go through the model in one pass when sequences join; longer prompts are run in
    /// parts.
    pub pass_tokens: usize,
}

impl Limits {
    /// Columns behind the longest sequence, so that the cache is moved only now and then.
    fn slack(&self) -> usize {
        (self.positions / 8).max(LEAST_SLACK)
    }

    /// The most columns that the cache comes to have.
    fn columns(&self) -> usize {
        self.positions + self.slack()
    }

    /// The cache that one sequence of the full length needs.
    pub fn least_cache_tokens(&self) -> usize {
        self.positions + LEAST_SLACK
    }

    /// The cache in which all sequences can have their full length.
    pub fn most_cache_tokens(&self) -> usize {
        self.rows * self.columns()
    }

    /// Whether the cache can hold `rows` sequences of which the longest has `longest` tokens.
    pub fn fit(&self, rows: usize, longest: usize) -> bool {
        rows <= self.rows && rows * (longest + LEAST_SLACK) <= self.cache_tokens
    }

    /// The rows and columns of a cache for `rows` sequences, now `now`, of up to `longest` tokens:
    /// with rows and columns to spare as far as the limit allows, since moving costs as much as the
    /// cache holds.
    fn size(&self, rows: usize, longest: usize, now: usize) -> (usize, usize) {
        let wanted = (longest + self.slack()).next_power_of_two().min(self.columns());
        let rounded = rows.next_power_of_two().min(self.rows);
        [rounded.max(now), rounded]
            .into_iter()
            .map(|rows| (rows, wanted.min(self.cache_tokens / rows)))
            .find(|(_, columns)| *columns >= longest + LEAST_SLACK)
            .unwrap_or((rows, wanted.min(self.cache_tokens / rows).max(longest + LEAST_SLACK)))
    }
}

/// Passes through a model: weights that stream come in ahead as long as this lives.
pub struct Passes<'m> {
    pub(super) model: &'m Model,
    pub(super) session: Session<'m>,
}

impl Model {
    /// Opens the model for any number of passes.
    pub fn passes(&self) -> Passes<'_> {
        self.passes_for(usize::MAX)
    }

    /// Opens the model for so many passes: weights that stream are not read ahead for more.
    pub fn passes_for(&self, count: usize) -> Passes<'_> {
        Passes { model: self, session: self.store.open(count) }
    }
}

impl Passes<'_> {
    /// Runs the first rows of the passes from now on with these adapters, given by the numbers of
    /// [`Runner::with_adapters`](crate::runner::Runner::with_adapters), and the other rows without one.
    pub fn set_adapters(&mut self, rows: Vec<Option<usize>>) {
        self.session.set_adapters(rows);
    }
}

/// The sequences that are being decoded.
#[derive(Debug)]
pub struct Decoding {
    limits: Limits,
    cache: Cache,
    /// Columns of padding before each sequence.
    pads: Vec<usize>,
    rows: usize,
    capacity: usize,
    recorder: StepRecorder,
}

impl Decoding {
    /// No sequences, and no memory taken.
    pub fn new(model: &Model, limits: Limits) -> Self {
        let layers = model.blueprint.blocks.iter().map(|_| None).collect();
        let cache = Cache { layers, ..Cache::default() };
        let recorder = StepRecorder::default();
        Self { limits, cache, pads: Vec::new(), rows: 0, capacity: 0, recorder }
    }

    /// How many sequences there are.
    pub fn len(&self) -> usize {
        self.pads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pads.is_empty()
    }

    /// Adds sequences behind those that are there, and gives the logits behind each. The pass has
    /// `least` size or more, where kernels are made for a size.
    pub fn join(
        &mut self,
        passes: &mut Passes<'_>,
        sequences: &[Vec<u32>],
        least: Rectangle,
    ) -> Result<Rows, ModelError> {
        let model = passes.model;
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        self.check_room(sequences.len(), longest)?;
        self.recorder.make_way(model, self.len() + sequences.len());
        if model.decodes_in_place(&passes.session) {
            return self.join_in_place(passes, sequences);
        }
        let limits = &self.limits;
        let batch = TokenBatch::new(sequences, model.blueprint.vocab)?.at_least(least);
        let mut fresh = Cache::new(&model.blueprint, batch.len(), batch.width, &model.parts);
        let part = (limits.pass_tokens / batch.len()).clamp(1, batch.width);
        let last = (batch.width - 1) / part * part;
        for start in (0..last).step_by(part) {
            let want = Want { logits: Logits::None, ..WANT };
            let columns = batch.columns(start..start + part);
            model.pass(&columns, want, &mut passes.session, Some(&mut fresh))?;
        }
        let columns = batch.columns(last..batch.width);
        let output = model.pass(&columns, WANT, &mut passes.session, Some(&mut fresh))?;
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        self.take_over(model, fresh, &lengths, batch.width);
        first_logits(output, sequences.len())
    }

    /// Refuses what would exceed the limits.
    pub(super) fn check_room(&self, count: usize, longest: usize) -> Result<(), ModelError> {
        let limits = &self.limits;
        let longest_of_all = longest.max(self.cache.past());
        if longest <= limits.positions && limits.fit(self.len() + count, longest_of_all) {
            return Ok(());
        }
        Err(ModelError::request(format!(
            "{count} sequences of up to {longest} tokens were to join {} of up to {}, where {} of {} \
             tokens and {} tokens in all are allowed",
            self.len(),
            self.cache.past(),
            limits.rows,
            limits.positions,
            limits.cache_tokens
        )))
    }

    /// Takes over the cache of newcomers of these lengths, which end at column `width` of it.
    pub(super) fn take_over(
        &mut self,
        model: &Model,
        fresh: Cache,
        lengths: &[usize],
        width: usize,
    ) {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        self.make_room(model, lengths.len(), longest);
        self.adopt(fresh, lengths.len(), width, longest);
        self.pads.extend(lengths.iter().map(|length| self.cache.filled - length));
        self.forget_padding();
    }

    /// One token more for each sequence; gives the logits behind it. The pass has `rows` or more,
    /// as far as the cache has them.
    pub fn step(
        &mut self,
        passes: &mut Passes<'_>,
        tokens: &[u32],
        rows: usize,
    ) -> Result<Rows, ModelError> {
        match self.step_choosing(passes, tokens, rows, false)? {
            StepOutput::Logits(logits) => Ok(logits),
            StepOutput::MostLikely(_) => Err(ModelError::request("the step gave no logits")),
        }
    }

    /// [`Self::step`], which may give the most likely token of each sequence instead if that is all that is wanted (`greedy`).
    pub fn step_choosing(
        &mut self,
        passes: &mut Passes<'_>,
        tokens: &[u32],
        rows: usize,
        greedy: bool,
    ) -> Result<StepOutput, ModelError> {
        let model = passes.model;
        if tokens.len() != self.len() || tokens.is_empty() {
            return Err(ModelError::request("a step takes one token for each sequence"));
        }
        self.make_room(model, 0, 0);
        let start = self.cache.start;
        let pads = self.pads.iter().map(|pad| pad - start).collect();
        let batch = TokenBatch { ids: tokens.to_vec(), pads, width: 1 }
            .at_least(Rectangle { rows: rows.min(self.rows), width: 1 });
        let (recorder, session) = (&mut self.recorder, &mut passes.session);
        let output = model.decode_step(recorder, &batch, session, &mut self.cache, greedy)?;
        Ok(match output {
            StepOutput::Logits(logits) => StepOutput::Logits(first_rows(logits, tokens.len())),
            StepOutput::MostLikely(mut chosen) => {
                chosen.truncate(tokens.len());
                StepOutput::MostLikely(chosen)
            }
        })
    }

    /// Takes a sequence out; the last one gets its number.
    pub fn leave(&mut self, row: usize) {
        let last = self.pads.len() - 1;
        if row < last {
            let filled = self.cache.filled;
            for layer in self.cache.layers.iter_mut() {
                let Some((keys, values)) = layer.take() else { continue };
                let [_, heads, _, dim] = keys.dims();
                let part = |row: usize| [row..row + 1, 0..heads, 0..filled, 0..dim];
                // Numbers of their own: while a view of the cache is there, Burn copies all of it
                // for an assignment.
                let own = |all: &Tensor<4>| all.clone().slice(part(last)).mul_scalar(1.0);
                let (k, v) = (own(&keys), own(&values));
                *layer = Some((keys.slice_assign(part(row), k), values.slice_assign(part(row), v)));
            }
        }
        self.pads.swap_remove(row);
        self.forget_padding();
    }

    /// Takes all sequences out, and keeps the memory that they had for others.
    pub fn clear(&mut self) {
        self.pads.clear();
        self.forget_padding();
    }

    /// What is padding for all is not looked at.
    fn forget_padding(&mut self) {
        match self.pads.iter().min() {
            Some(&least) => self.cache.start = least,
            None => (self.cache.start, self.cache.filled) = (0, 0),
        }
    }

    /// Makes the cache large enough for `more` sequences of up to `longest` tokens and a step.
    fn make_room(&mut self, model: &Model, more: usize, longest: usize) {
        let rows = self.len() + more;
        let used = self.cache.past();
        let end = self.cache.filled.max(longest);
        if rows <= self.rows && end < self.capacity {
            if self.is_empty() {
                self.cache.filled = longest;
                return;
            }
            if longest <= self.cache.filled {
                return;
            }
        }
        let longest = used.max(longest);
        let (rows, capacity) =
            if rows <= self.rows && longest + self.limits.slack() <= self.capacity {
                (self.rows, self.capacity)
            } else {
                self.limits.size(rows, longest, self.rows)
            };
        self.rebuild(model, rows, capacity, longest);
    }

    /// Moves what is known into a cache of another size, where it ends at `end`.
    fn rebuild(&mut self, model: &Model, rows: usize, capacity: usize, end: usize) {
        // The memory of the old one is not free before.
        self.recorder.forget();
        let (count, from, to) = (self.len(), self.cache.start, self.cache.filled);
        let (heads, dim) = (model.blueprint.kv_heads, model.blueprint.head_dim);
        let begin = end - (to - from);
        for (block, layer) in self.cache.layers.iter_mut().enumerate() {
            let moved = |old: Option<Tensor<4>>| {
                // The cache of a block that runs on the CPU alone is there too.
                let device =
                    old.as_ref().map_or_else(|| model.parts.of(block).clone(), Tensor::device);
                let new = Tensor::zeros([rows, heads, capacity, dim], &device);
                match old.filter(|_| count > 0) {
                    Some(old) => new.slice_assign(
                        [0..count, 0..heads, begin..end, 0..dim],
                        old.slice([0..count, 0..heads, from..to, 0..dim]),
                    ),
                    None => new,
                }
            };
            // One after the other, so that the old one is gone before the next is made.
            let (keys, values) = layer.take().unzip();
            let keys = moved(keys);
            *layer = Some((keys, moved(values)));
        }
        for pad in &mut self.pads {
            *pad = *pad - from + begin;
        }
        (self.cache.start, self.cache.filled) = (begin, end);
        (self.rows, self.capacity) = (rows, capacity);
    }

    /// Puts the keys and values of newcomers behind the other rows. Their whole rows are
    /// written: what a sequence before them left there must not be multiplied with, even by 0.
    fn adopt(&mut self, fresh: Cache, count: usize, width: usize, longest: usize) {
        let (first, filled) = (self.len(), self.cache.filled);
        for (layer, fresh) in self.cache.layers.iter_mut().zip(fresh.layers) {
            let (Some((keys, values)), Some((k, v))) = (layer.take(), fresh) else { continue };
            // The block may have gone to the CPU while it ran over the prompts.
            let (keys, values) = (moved_to(&k, keys), moved_to(&v, values));
            let [_, heads, _, dim] = k.dims();
            let place = [first..first + count, 0..heads, 0..filled, 0..dim];
            let whole = |part: Tensor<4>| {
                let part = part.narrow(0, 0, count).narrow(2, width - longest, longest);
                if longest == filled {
                    return part;
                }
                let before = Tensor::zeros([count, heads, filled - longest, dim], &part.device());
                Tensor::cat(vec![before, part], 2)
            };
            *layer = Some((
                keys.slice_assign(place.clone(), whole(k)),
                values.slice_assign(place, whole(v)),
            ));
        }
    }
}

/// The logits of the first `count` rows: those behind them are idle.
fn first_logits(output: Output, count: usize) -> Result<Rows, ModelError> {
    let logits = output.logits.ok_or_else(|| ModelError::request("the pass gave no logits"))?;
    Ok(first_rows(logits, count))
}

fn first_rows(mut logits: Rows, count: usize) -> Rows {
    logits.numbers.truncate(count * logits.cols);
    logits
}

#[cfg(test)]
pub(super) mod tests;
