//! Decoding where sequences come and go between tokens.
//!
//! All sequences end in the same column of one cache, so a step writes one column for all of
//! them and is one pass. A sequence that joins is run over its prompt alone and its keys and
//! values are put so that they end where the others end: what lies before them in its row is
//! padding, which the masks hide. One that leaves gives its row to the last one. The cache grows
//! with what is in it, in rows and in columns, up to the limits.
//!
//! After an error a session must be dropped: its rows may end in different columns. Make
//! a new one and let the sequences join with the tokens they have.

use burn::tensor::Tensor;

use super::tokens::WANT;
use crate::error::ModelError;
use crate::run::batch::{Rectangle, TokenBatch};
use crate::run::cache::{Cache, moved_to};
use crate::run::model::Model;
use crate::run::output::{Logits, Output, Rows, Want};
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
}

impl Decoding {
    /// No sequences, and no memory taken.
    pub fn new(model: &Model, limits: Limits) -> Self {
        let layers = model.blueprint.blocks.iter().map(|_| None).collect();
        let cache = Cache { layers, start: 0, filled: 0 };
        Self { limits, cache, pads: Vec::new(), rows: 0, capacity: 0 }
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
    /// `least` size or more.
    pub fn join(
        &mut self,
        passes: &mut Passes<'_>,
        sequences: &[Vec<u32>],
        least: Rectangle,
    ) -> Result<Rows, ModelError> {
        let model = passes.model;
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        self.check_room(sequences.len(), longest)?;
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
        let model = passes.model;
        if tokens.len() != self.len() || tokens.is_empty() {
            return Err(ModelError::request("a step takes one token for each sequence"));
        }
        self.make_room(model, 0, 0);
        let start = self.cache.start;
        let pads = self.pads.iter().map(|pad| pad - start).collect();
        let batch = TokenBatch { ids: tokens.to_vec(), pads, width: 1 }
            .at_least(Rectangle { rows: rows.min(self.rows), width: 1 });
        let output = model.pass(&batch, WANT, &mut passes.session, Some(&mut self.cache))?;
        first_logits(output, tokens.len())
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
    let mut logits = output.logits.ok_or_else(|| ModelError::request("the pass gave no logits"))?;
    logits.numbers.truncate(count * logits.cols);
    Ok(logits)
}

#[cfg(test)]
pub(super) mod tests {
    use std::ops::ControlFlow;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use burn::tensor::Device;

    use super::*;
    use crate::generate::sample::{Sampler, Sampling};
    use crate::generate::tokens::Request;
    use crate::run::opened::Opened;
    use crate::stream::needs::Work;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
    }

    /// The model, with a `share` of its matrices in memory.
    pub(in crate::generate) fn opened(name: &str, share: f64) -> Model {
        let work = Work { batch: 1, prompt: 8, new_tokens: 8, want: WANT };
        let opened = Opened::new(&fixture(name)).unwrap();
        let plan = opened.plan_with_share(&work, share);
        opened.load(&plan, &Device::flex(), Arc::default()).unwrap()
    }

    pub(in crate::generate) fn prompt(number: usize, length: usize) -> Vec<u32> {
        (0..length).map(|at| ((at * 31 + number * 17 + 5) % 96) as u32).collect()
    }

    pub(in crate::generate) fn choose(logits: &[f32]) -> u32 {
        Sampler::new(Sampling::GREEDY).choose(logits)
    }

    pub(in crate::generate) fn alone(model: &Model, prompt: &[u32], tokens: usize) -> Vec<u32> {
        let request = Request {
            prompts: vec![prompt.to_vec()],
            max_tokens: tokens,
            ends: Vec::new(),
            sampling: Sampling::GREEDY,
        };
        model.generate(&request, |_, _| ControlFlow::Continue(())).unwrap().remove(0).tokens
    }

    /// Sequences that join and leave at different steps, by a script: at which step each joins,
    /// its prompt's length, and how many tokens it stays for.
    fn together(model: &Model, limits: Limits, script: &[(usize, usize, usize)]) {
        let mut decoding = Decoding::new(model, limits);
        let mut passes = model.passes();
        let mut live: Vec<(usize, Vec<u32>)> = Vec::new();
        let mut left = script.len();
        for step in 0.. {
            let joining: Vec<usize> =
                (0..script.len()).filter(|&number| script[number].0 == step).collect();
            if !joining.is_empty() {
                let prompts: Vec<_> = joining.iter().map(|&n| prompt(n, script[n].1)).collect();
                let least = match step % 2 {
                    0 => Rectangle::default(),
                    _ => Rectangle { rows: 4, width: 32 },
                };
                let logits = decoding.join(&mut passes, &prompts, least).unwrap();
                for (row, &number) in joining.iter().enumerate() {
                    live.push((number, vec![choose(logits.row(row))]));
                }
            }
            let mut row = 0;
            while row < live.len() {
                let (number, tokens) = &live[row];
                if tokens.len() < script[*number].2 {
                    row += 1;
                    continue;
                }
                let expected = alone(model, &prompt(*number, script[*number].1), tokens.len());
                assert_eq!(*tokens, expected, "sequence {number}");
                decoding.leave(row);
                live.swap_remove(row);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            if !live.is_empty() {
                let last: Vec<u32> =
                    live.iter().map(|(_, tokens)| tokens[tokens.len() - 1]).collect();
                let logits =
                    decoding.step(&mut passes, &last, if step % 3 == 0 { 8 } else { 0 }).unwrap();
                for (row, (_, tokens)) in live.iter_mut().enumerate() {
                    tokens.push(choose(logits.row(row)));
                }
            }
        }
    }

    /// Limits without a limit of bytes.
    pub(in crate::generate) fn limits(rows: usize, positions: usize) -> Limits {
        let mut limits = Limits { rows, positions, cache_tokens: 0, pass_tokens: 8192 };
        limits.cache_tokens = limits.most_cache_tokens();
        limits
    }

    const SCRIPT: [(usize, usize, usize); 9] = [
        (0, 3, 30),
        (0, 7, 4),
        (2, 1, 20),
        // Longer than all that is there: the others are moved.
        (5, 40, 12),
        (6, 2, 3),
        (6, 2, 9),
        (6, 20, 1),
        (40, 5, 50),
        (41, 9, 30),
    ];

    #[test]
    fn sequences_that_come_and_go_get_the_tokens_they_get_alone() {
        for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "mistral-window", "qwen3-bias-tied"] {
            let model = opened(name, 1.0);
            together(&model, limits(8, 100), &SCRIPT);
        }
    }

    #[test]
    fn streamed_weights_give_the_same() {
        together(&opened("qwen2-tiny", 0.0), limits(8, 100), &SCRIPT);
    }

    #[test]
    fn a_cache_that_is_just_large_enough_is_moved_and_gives_the_same() {
        let model = opened("llama-tiny", 1.0);
        together(&model, limits(6, 60), &SCRIPT);
        let relay: Vec<_> = (0..20).map(|number| (number * 7, 5, 20)).collect();
        together(&model, limits(3, 25), &relay);
    }

    #[test]
    fn prompts_that_are_run_in_parts_give_the_same() {
        for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "mistral-window"] {
            let model = opened(name, 1.0);
            for pass_tokens in [1, 7, 16] {
                together(&model, Limits { pass_tokens, ..limits(8, 100) }, &SCRIPT);
            }
        }
    }

    #[test]
    fn a_small_cache_is_used_to_its_end_and_never_exceeded() {
        let model = opened("llama-tiny", 1.0);
        // Four sequences of 16 + 16 columns, or two of 48 + 16.
        let limits = Limits { cache_tokens: 128, ..limits(8, 100) };
        assert!(limits.fit(4, 16) && limits.fit(2, 48) && limits.fit(1, 100));
        assert!(!limits.fit(4, 17) && !limits.fit(9, 1));
        let relay = [(0, 3, 12), (0, 7, 9), (0, 5, 11), (0, 2, 10), (13, 40, 9), (14, 30, 8)];
        together(&model, limits, &relay);
        let mut decoding = Decoding::new(&model, limits);
        let mut passes = model.passes();
        decoding.join(&mut passes, &vec![vec![1; 16]; 4], Rectangle::default()).unwrap();
        for _ in 0..16 {
            assert!(decoding.rows * decoding.capacity <= 128);
            decoding.step(&mut passes, &[1; 4], 0).unwrap();
        }
        for row in [3, 2] {
            decoding.leave(row);
        }
        decoding.step(&mut passes, &[1; 2], 0).unwrap();
        assert!(decoding.rows * decoding.capacity <= 128, "rows that are not used are given up");
        let refused = decoding.join(&mut passes, &[vec![1; 50]], Rectangle::default());
        assert!(refused.is_err());
    }

    #[test]
    fn what_is_too_much_is_refused_before_it_runs() {
        let model = opened("llama-tiny", 1.0);
        let mut decoding = Decoding::new(&model, limits(2, 10));
        let mut passes = model.passes();
        assert!(decoding.join(&mut passes, &[vec![1; 11]], Rectangle::default()).is_err());
        assert!(
            decoding.join(&mut passes, &[vec![1], vec![1], vec![1]], Rectangle::default()).is_err()
        );
        assert!(decoding.join(&mut passes, &[vec![1], vec![2]], Rectangle::default()).is_ok());
        assert!(decoding.step(&mut passes, &[1], 0).is_err());
        assert_eq!(decoding.len(), 2);
    }
}
