//! Attention of long prompts to a cache on Cube devices, by products of matrices, which matrix units make: the scores of some queries with all
//! keys that any of them sees; their softmax, in place; and the shares' products with the values. Three launches for each run of queries of
//! a sequence. Keys and values are read where they are, and a group's heads share them.
//!
//! Scores take memory, so a run has as many queries as the caller has room for. [`super::prompt_attention`] does the rest: short prompts, and
//! sizes that are no multiples of [`RUN`].
//!
//! Only [`super::append_prompts::forward`] calls this, with what [`Products::find`] gives; [`crate::AppendedPrompts::attend`] has checked the cache before.

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{empty, row_cubes};
use super::product::{Causal, Operand, Sizes, product_into};
use super::prompt_attention::{CachedRows, is_in_fours};
use super::reduce::{maximum_of_units, sum_of_units};
use super::rows::LOWEST;
use crate::inference::PromptAttention;

/// Prompts with fewer tokens are left to the kernel that needs no scores in memory.
const LEAST_WIDTH: usize = 128;
/// What numbers of tokens are multiples of: the runs of numbers that products are made of.
const RUN: usize = 32;
/// What numbers of queries are multiples of where a prompt is run in several runs: the rows of a tile.
const ROWS: usize = 128;

/// The softmax of each row of scores times `scale`, over what its query sees; 0 for the rest, as far as the product with the values reads it.
/// Row after row, heads have `width` queries, of which the first has `past` keys before its own.
#[cube(launch)]
fn soften_prompt(
    scores: &mut [f32],
    pads: &[f32],
    sample: u32,
    rows: u32,
    width: u32,
    seen: u32,
    past: u32,
    scale: f32,
    #[comptime] padded: bool,
    #[comptime] window: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows as usize {
        terminate!();
    }
    let seen = seen as usize;
    let start = row * seen;
    let end = past as usize + row % width as usize + 1;
    let mut first = 0usize;
    if comptime!(padded) {
        first = u32::cast_from(pads[sample as usize]) as usize;
    }
    if comptime!(window > 0) {
        if end > first + window {
            first = end - window;
        }
    }
    let unit = UNIT_POS as usize;
    let mut most = f32::new(LOWEST);
    let mut at = first + unit;
    while at < end {
        let score = scores[start + at];
        if score > most {
            most = score;
        }
        at += units;
    }
    let most = maximum_of_units(most, units);
    let mut sum = 0.0f32;
    let mut at = first + unit;
    while at < end {
        sum += ((scores[start + at] - most) * scale).exp();
        at += units;
    }
    let sum = sum_of_units(sum, units);
    // A query that sees nothing is padding.
    let mut inverse = 0.0f32;
    if sum > 0.0f32 {
        inverse = 1.0f32 / sum;
    }
    // Without keys before the first, products read no further than the tile of the query does.
    let mut read = seen;
    if past == 0 {
        read = (row % width as usize / ROWS * ROWS + ROWS).min(seen);
    }
    let mut at = unit;
    while at < read {
        let mut share = 0.0f32;
        if at >= first && at < end {
            share = ((scores[start + at] - most) * scale).exp() * inverse;
        }
        scores[start + at] = share;
        at += units;
    }
}

/// The queries of one sequence that are run at once: `count` from number `first` on, with `past` keys before that of the first one.
#[derive(Clone, Copy)]
struct Run {
    sequence: usize,
    first: usize,
    count: usize,
    past: usize,
}

impl Run {
    fn seen(self) -> usize {
        self.past + self.count
    }
}

/// Attention whose sizes the products take.
pub(super) struct Products {
    rows: CachedRows,
    width: usize,
    kv_heads: usize,
    each: usize,
    /// Queries that are run at once.
    at_once: usize,
    /// What factors of products may be rounded to.
    compute: DType,
}

impl Products {
    /// None if the products don't take the sizes, or there is no room for `most_scores` numbers of scores.
    pub(super) fn find(
        [keys, values]: [&CubeTensor; 2],
        rows: CachedRows,
        width: usize,
        how: &PromptAttention,
        compute: DType,
        most_scores: usize,
    ) -> Option<Self> {
        let [kv_heads, each] = [1, 3].map(|at| keys.meta.shape()[at]);
        let seen = how.past + width;
        let at_once = match most_scores / (rows.heads * seen) {
            queries if queries >= width => width,
            queries => queries / ROWS * ROWS,
        };
        let (outer, inner) = (kv_heads, rows.heads / kv_heads);
        let scores = Sizes { rows: at_once, columns: seen, depth: each, outer, inner };
        let shares = Sizes { rows: at_once, columns: each, depth: seen, outer, inner };
        let fits = width >= LEAST_WIDTH
            && at_once > 0
            && [keys, values].into_iter().all(is_in_fours)
            && [width, how.past].iter().all(|size| size.is_multiple_of(RUN))
            && [scores, shares].iter().all(|sizes| sizes.fit(true));
        fits.then_some(Self { rows, width, kv_heads, each, at_once, compute })
    }

    /// What each query gets, in the shape of the queries, `[sequences · width, heads · each]`.
    pub(super) fn attend(
        &self,
        query: CubeTensor,
        [keys, values]: [&CubeTensor; 2],
        pads: Option<CubeTensor>,
        how: &PromptAttention,
    ) -> CubeTensor {
        let query = into_contiguous(query);
        let pads = pads.map(into_contiguous);
        let out = empty(&query, query.meta.shape().clone());
        for sequence in 0..self.rows.sequences {
            for first in (0..self.width).step_by(self.at_once) {
                let count = self.at_once.min(self.width - first);
                let run = Run { sequence, first, count, past: how.past + first };
                let scores = self.scores(run, &query, keys);
                soften(&scores, run, pads.as_ref(), how);
                self.gather(run, scores, values, &out);
            }
        }
        out
    }

    /// The queries of a run, or what they get: for each head a line for each query.
    fn of_queries(&self, run: Run, tensor: &CubeTensor) -> Operand {
        let line = self.rows.heads * self.each;
        Operand {
            tensor: tensor.clone(),
            first: (run.sequence * self.width + run.first) * line,
            line,
            outer: line / self.kv_heads,
            inner: self.each,
            along: true,
        }
    }

    /// The keys or values of a sequence: for each head of a group the same lines, one for each column of the cache.
    fn of_cache(&self, run: Run, cache: &CubeTensor, along: bool) -> Operand {
        let strides = cache.meta.strides();
        let [of_row, of_head, of_column] = [0, 1, 2].map(|at| strides[at]);
        Operand {
            tensor: cache.clone(),
            first: (self.rows.first + run.sequence) * of_row + self.rows.column * of_column,
            line: of_column,
            outer: of_head,
            inner: 0,
            along,
        }
    }

    /// Scores or shares: for each head a line for each query.
    fn of_pairs(&self, run: Run, scores: &CubeTensor) -> Operand {
        let matrix = run.count * run.seen();
        Operand {
            tensor: scores.clone(),
            first: 0,
            line: run.seen(),
            outer: self.rows.heads / self.kv_heads * matrix,
            inner: matrix,
            along: true,
        }
    }

    fn sizes(&self, rows: usize, columns: usize, depth: usize) -> Sizes {
        let (outer, inner) = (self.kv_heads, self.rows.heads / self.kv_heads);
        Sizes { rows, columns, depth, outer, inner }
    }

    /// Whether a query has the number of its key, so that tiles behind the diagonal can be left out.
    fn causal(run: Run, causal: Causal) -> Causal {
        if run.past == 0 { causal } else { Causal::All }
    }

    fn scores(&self, run: Run, query: &CubeTensor, keys: &CubeTensor) -> CubeTensor {
        let shape = Shape::new([self.rows.heads * run.count, run.seen()]);
        let scores = empty(query, shape);
        product_into(
            self.of_queries(run, query),
            self.of_cache(run, keys, true),
            self.of_pairs(run, &scores),
            self.sizes(run.count, run.seen(), self.each),
            self.compute,
            Self::causal(run, Causal::ColumnsBehind),
        );
        scores
    }

    fn gather(&self, run: Run, shares: CubeTensor, values: &CubeTensor, out: &CubeTensor) {
        product_into(
            self.of_pairs(run, &shares),
            self.of_cache(run, values, false),
            self.of_queries(run, out),
            self.sizes(run.count, self.each, run.seen()),
            self.compute,
            Self::causal(run, Causal::DepthBehind),
        );
    }
}

/// Makes shares of scores.
fn soften(scores: &CubeTensor, run: Run, pads: Option<&CubeTensor>, how: &PromptAttention) {
    let rows = scores.meta.shape()[0];
    let client = scores.client.clone();
    let (count, dim, units) = row_cubes(&client, rows, run.seen());
    // What is not there is never read, and may not be the buffer that is written.
    let spare = pads.cloned().unwrap_or_else(|| empty(scores, Shape::new([1])));
    soften_prompt::launch(
        &client,
        count,
        dim,
        scores.clone().into_buffer_arg(),
        spare.into_buffer_arg(),
        run.sequence as u32,
        rows as u32,
        run.count as u32,
        run.seen() as u32,
        run.past as u32,
        how.scale as f32,
        pads.is_some(),
        how.window.unwrap_or(0),
        units,
    );
}
