//! Attention on the CPU over keys and values that lie in pages of [`PAGE_TOKENS`] tokens.
//!
//! A page holds the keys and values of its tokens for all layers, so a sequence is a list of pages and takes
//! memory as it grows. Queries of many sequences, and several queries of one, are computed in one call.
//! What a query gets depends on itself, its position and its own pages alone, to the bit: not on the
//! queries that are computed with it, nor on the number of threads.
//!
//! Anyone may call it: without vector instructions it multiplies and adds in two steps.
//!
//! For each layer and head a page has the keys dimension by dimension (a vector of all its tokens for each)
//! and the values token by token, as the two products read them.

use std::ops::Range;

use rayon::prelude::*;

use crate::attention::softmax_scaled;
use crate::math::{LANES, fast};
use crate::processor::has_vectors;

/// Tokens of a page.
pub const PAGE_TOKENS: usize = LANES;

/// Below so many multiplications other threads would come too late.
const WORTH_SPLITTING: usize = 1 << 17;
/// Queries that go over a page together, so that it is read from memory once for all of them.
const TOGETHER: usize = 32;

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// The layers of the model.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of one head.
    pub head_dim: usize,
}

impl PageLayout {
    /// The numbers of one page.
    pub fn numbers(&self) -> usize {
        self.layers * self.kv_heads * self.of_head()
    }

    /// The bytes of one page.
    pub fn bytes(&self) -> usize {
        4 * self.numbers()
    }

    /// Numbers of a token's values, filled up to whole vectors.
    fn value_width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn of_head(&self) -> usize {
        PAGE_TOKENS * (self.head_dim + self.value_width())
    }

    /// The keys and the values of a layer's head.
    fn parts<'p>(&self, page: &'p [f32], layer: usize, head: usize) -> (&'p [f32], &'p [f32]) {
        let from = (layer * self.kv_heads + head) * self.of_head();
        page[from..from + self.of_head()].split_at(PAGE_TOKENS * self.head_dim)
    }

    /// Writes the keys and values of a layer's head for the token at a place of the page.
    pub fn write(
        &self,
        page: &mut [f32],
        layer: usize,
        head: usize,
        place: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let from = (layer * self.kv_heads + head) * self.of_head();
        let part = &mut page[from..from + self.of_head()];
        let (all_keys, all_values) = part.split_at_mut(PAGE_TOKENS * self.head_dim);
        for (to, key) in all_keys.chunks_exact_mut(PAGE_TOKENS).zip(keys) {
            to[place] = *key;
        }
        let width = self.value_width();
        all_values[place * width..place * width + self.head_dim].copy_from_slice(values);
    }
}

/// Queries of one sequence, one behind the other.
#[derive(Debug)]
pub struct QueryRun<'a> {
    /// Their rows among all queries.
    pub rows: Range<usize>,
    /// The position of the first one in its sequence.
    pub start: usize,
    /// The pages of the sequence, up to the position of the last query at least. What was not written must
    /// be finite.
    pub pages: Vec<&'a [f32]>,
}

/// A layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttention {
    /// What pages hold.
    pub layout: PageLayout,
    /// The layer.
    pub layer: usize,
    /// Heads of queries, a multiple of those of keys.
    pub heads: usize,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// No score gets beyond it: `cap · tanh(score / cap)`.
    pub cap: Option<f32>,
    /// How many tokens a query sees, itself included, if not all.
    pub window: Option<usize>,
}

/// One head of keys and some rows of a run.
struct Task<'t> {
    run: &'t QueryRun<'t>,
    head: usize,
    rows: Range<usize>,
}

impl PagedAttention {
    /// What each query gets: `[rows, heads · head_dim]` for `queries` of `[heads, rows, head_dim]`. Each query
    /// sees the tokens of its sequence up to its own position.
    pub fn attend(&self, queries: &[f32], runs: &[QueryRun<'_>]) -> Vec<f32> {
        let all = 0..self.layout.kv_heads;
        if !self.is_worth_splitting(runs.iter().map(|run| (run.rows.len(), run.start))) {
            return self.attend_heads(queries, runs, all);
        }
        let rows = self.rows(queries);
        let tasks = self.tasks(runs, all.clone());
        let parts: Vec<Vec<f32>> =
            tasks.par_iter().map(|task| self.task(task, queries, rows)).collect();
        self.placed(&tasks, &parts, rows, all)
    }

    /// [`Self::attend`] for some of the heads of keys and values, on this thread: `[rows, heads of queries that share them · head_dim]`. Who puts
    /// the results for all of them side by side has the bits of [`Self::attend`].
    pub fn attend_heads(
        &self,
        queries: &[f32],
        runs: &[QueryRun<'_>],
        kv_heads: Range<usize>,
    ) -> Vec<f32> {
        let rows = self.rows(queries);
        let tasks = self.tasks(runs, kv_heads.clone());
        let parts: Vec<Vec<f32>> =
            tasks.iter().map(|task| self.task(task, queries, rows)).collect();
        self.placed(&tasks, &parts, rows, kv_heads)
    }

    /// Whether several threads are faster than one for runs of so many queries that begin at such positions.
    pub fn is_worth_splitting(&self, runs: impl Iterator<Item = (usize, usize)>) -> bool {
        let of_token = self.heads * self.layout.head_dim;
        runs.map(|(rows, start)| rows * of_token * (start + rows)).sum::<usize>() >= WORTH_SPLITTING
    }

    fn rows(&self, queries: &[f32]) -> usize {
        queries.len() / (self.heads * self.layout.head_dim).max(1)
    }

    /// Heads of queries for each head of keys.
    fn group(&self) -> usize {
        self.heads / self.layout.kv_heads
    }

    fn tasks<'t>(&self, runs: &'t [QueryRun<'t>], kv_heads: Range<usize>) -> Vec<Task<'t>> {
        let at_once = (TOGETHER / self.group()).max(1);
        let mut tasks = Vec::new();
        for run in runs {
            for first in run.rows.clone().step_by(at_once) {
                let rows = first..(first + at_once).min(run.rows.end);
                tasks.extend(kv_heads.clone().map(|head| Task { run, head, rows: rows.clone() }));
            }
        }
        tasks
    }

    fn task(&self, task: &Task<'_>, queries: &[f32], rows: usize) -> Vec<f32> {
        match has_vectors() {
            false => self.one::<false>(task, queries, rows),
            true => fast(
                #[inline(always)]
                || self.one::<true>(task, queries, rows),
            ),
        }
    }

    /// Puts what tasks gave for `kv_heads` in its place.
    fn placed(
        &self,
        tasks: &[Task<'_>],
        parts: &[Vec<f32>],
        rows: usize,
        kv_heads: Range<usize>,
    ) -> Vec<f32> {
        let (dim, group, width) = (self.layout.head_dim, self.group(), self.layout.value_width());
        let heads = kv_heads.len() * group;
        let mut out = vec![0.0; rows * heads * dim];
        for (task, part) in tasks.iter().zip(parts) {
            let mut numbers = part.chunks_exact(width);
            for row in task.rows.clone() {
                let from = (row * heads + (task.head - kv_heads.start) * group) * dim;
                for (to, numbers) in
                    out[from..from + group * dim].chunks_exact_mut(dim).zip(&mut numbers)
                {
                    to.copy_from_slice(&numbers[..dim]);
                }
            }
        }
        out
    }

    /// A task's queries, row by row and head by head within a row: what each gets, in whole vectors.
    #[inline(always)]
    fn one<const FMA: bool>(&self, task: &Task<'_>, queries: &[f32], rows: usize) -> Vec<f32> {
        let (dim, width) = (self.layout.head_dim, self.layout.value_width());
        let group = self.heads / self.layout.kv_heads;
        let position = |row: usize| task.run.start + row - task.run.rows.start;
        let mut own = Vec::with_capacity(task.rows.len() * group * dim);
        for row in task.rows.clone() {
            for head in task.head * group..(task.head + 1) * group {
                let from = (head * rows + row) * dim;
                own.extend(queries[from..from + dim].iter().map(|number| number * self.scale));
            }
        }
        let count = task.rows.len() * group;
        let last = position(task.rows.end - 1);
        let seen_from = |at: usize| self.window.map_or(0, |window| (at + 1).saturating_sub(window));
        let pages = seen_from(position(task.rows.start)) / PAGE_TOKENS..last / PAGE_TOKENS + 1;
        let keys_of = pages.len() * PAGE_TOKENS;
        // Queries before this one are in front of the page, and see nothing of it.
        let first_query = |page: usize| {
            let behind = (page * PAGE_TOKENS).saturating_sub(position(task.rows.start));
            behind * group
        };
        let mut scores = vec![f32::NEG_INFINITY; count * keys_of];
        let keys_in =
            |page: usize| self.layout.parts(task.run.pages[page], self.layer, task.head).0;
        let mut page = pages.start;
        while page < pages.end {
            let column = (page - pages.start) * PAGE_TOKENS;
            let mut query = first_query(page);
            // Two pages at once where all queries see both: memory brings them side by side.
            let two = page + 1 < pages.end && first_query(page + 1) == 0;
            while two && query + 4 <= count {
                let both = (keys_in(page), keys_in(page + 1));
                let found = products_of_two::<4, FMA>(&own[query * dim..], both, dim);
                for (number, (one, other)) in found.0.iter().zip(&found.1).enumerate() {
                    let from = (query + number) * keys_of + column;
                    scores[from..from + PAGE_TOKENS].copy_from_slice(one);
                    scores[from + PAGE_TOKENS..from + 2 * PAGE_TOKENS].copy_from_slice(other);
                }
                query += 4;
            }
            for page in page..page + 1 + usize::from(two) {
                let column = (page - pages.start) * PAGE_TOKENS;
                let mut query = query;
                while query < count {
                    let own = &own[query * dim..];
                    let found: [[f32; PAGE_TOKENS]; 4];
                    let taken = if query + 4 <= count {
                        found = products::<4, FMA>(own, keys_in(page), dim);
                        4
                    } else {
                        let [one] = products::<1, FMA>(own, keys_in(page), dim);
                        found = [one; 4];
                        1
                    };
                    for (number, found) in found.iter().take(taken).enumerate() {
                        let from = (query + number) * keys_of + column;
                        scores[from..from + PAGE_TOKENS].copy_from_slice(found);
                    }
                    query += taken;
                }
            }
            page += 1 + usize::from(two);
        }
        for (query, scores) in scores.chunks_exact_mut(keys_of).enumerate() {
            let at = position(task.rows.start + query / group);
            if let Some(cap) = self.cap {
                scores.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
            }
            let first = pages.start * PAGE_TOKENS;
            let hidden = seen_from(at).saturating_sub(first);
            scores[..hidden].fill(f32::NEG_INFINITY);
            scores[at + 1 - first..].fill(f32::NEG_INFINITY);
            softmax_scaled(scores, 1.0);
        }
        let mut out = vec![0.0; count * width];
        for page in pages.clone() {
            let (_, values) = self.layout.parts(task.run.pages[page], self.layer, task.head);
            let column = (page - pages.start) * PAGE_TOKENS;
            let mut query = first_query(page);
            while query < count {
                let weights = &scores[query * keys_of + column..];
                let out = &mut out[query * width..];
                query += if query + 4 <= count {
                    sum_up::<4, FMA>(weights, keys_of, values, width, out);
                    4
                } else {
                    sum_up::<1, FMA>(weights, keys_of, values, width, out);
                    1
                };
            }
        }
        out
    }
}

#[inline(always)]
fn added<const FMA: bool>(a: f32, b: f32, sum: f32) -> f32 {
    if FMA { a.mul_add(b, sum) } else { a * b + sum }
}

/// The products of `N` queries, one behind the other, with all keys of a page.
#[inline(always)]
fn products<const N: usize, const FMA: bool>(
    queries: &[f32],
    keys: &[f32],
    dim: usize,
) -> [[f32; PAGE_TOKENS]; N] {
    let queries: [&[f32]; N] = std::array::from_fn(|at| &queries[at * dim..(at + 1) * dim]);
    let mut sums = [[0.0; PAGE_TOKENS]; N];
    let (keys, _) = keys.as_chunks::<PAGE_TOKENS>();
    for (at, keys) in keys[..dim].iter().enumerate() {
        for (query, sums) in queries.iter().zip(&mut sums) {
            let number = query[at];
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = added::<FMA>(number, *key, *sum);
            }
        }
    }
    sums
}

/// [`products`] with the keys of two pages. Loops count and sums are arrays of their own: the compiler keeps these in registers.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "see above")]
fn products_of_two<const N: usize, const FMA: bool>(
    queries: &[f32],
    (one, other): (&[f32], &[f32]),
    dim: usize,
) -> ([[f32; PAGE_TOKENS]; N], [[f32; PAGE_TOKENS]; N]) {
    let queries: [&[f32]; N] = std::array::from_fn(|at| &queries[at * dim..(at + 1) * dim]);
    let one = &one.as_chunks::<PAGE_TOKENS>().0[..dim];
    let other = &other.as_chunks::<PAGE_TOKENS>().0[..dim];
    let mut sums = [[0.0; PAGE_TOKENS]; N];
    let mut others = [[0.0; PAGE_TOKENS]; N];
    for at in 0..dim {
        for query in 0..N {
            let number = queries[query][at];
            for lane in 0..PAGE_TOKENS {
                sums[query][lane] = added::<FMA>(number, one[at][lane], sums[query][lane]);
            }
            for lane in 0..PAGE_TOKENS {
                others[query][lane] = added::<FMA>(number, other[at][lane], others[query][lane]);
            }
        }
    }
    (sums, others)
}

/// Adds the values of a page to what `N` queries get, by their attention weights, which lie `apart`: two vectors of each token at once, as
/// far as there are two.
#[inline(always)]
fn sum_up<const N: usize, const FMA: bool>(
    weights: &[f32],
    apart: usize,
    values: &[f32],
    width: usize,
    out: &mut [f32],
) {
    let weights: [&[f32]; N] =
        std::array::from_fn(|at| &weights[at * apart..at * apart + PAGE_TOKENS]);
    let mut from = 0;
    while from + 2 * LANES <= width {
        sum_up_two::<N, FMA>(weights, values, (from, width), out);
        from += 2 * LANES;
    }
    while from < width {
        let mut sums: [[f32; LANES]; N] = [[0.0; LANES]; N];
        for (at, sums) in sums.iter_mut().enumerate() {
            sums.copy_from_slice(&out[at * width + from..at * width + from + LANES]);
        }
        for token in 0..PAGE_TOKENS {
            let values = &values[token * width + from..token * width + from + LANES];
            for (weights, sums) in weights.iter().zip(&mut sums) {
                let weight = weights[token];
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = added::<FMA>(weight, *value, *sum);
                }
            }
        }
        for (at, sums) in sums.iter().enumerate() {
            out[at * width + from..at * width + from + LANES].copy_from_slice(sums);
        }
        from += LANES;
    }
}

/// [`sum_up`] for the two vectors at `from`; see [`products_of_two`] for its form.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the compiler keeps sums of loops that count in registers"
)]
fn sum_up_two<const N: usize, const FMA: bool>(
    weights: [&[f32]; N],
    values: &[f32],
    (from, width): (usize, usize),
    out: &mut [f32],
) {
    let mut sums = [[0.0; LANES]; N];
    let mut others = [[0.0; LANES]; N];
    for query in 0..N {
        let (one, other) = out[query * width + from..][..2 * LANES].split_at(LANES);
        sums[query].copy_from_slice(one);
        others[query].copy_from_slice(other);
    }
    for token in 0..PAGE_TOKENS {
        let (one, other) = values[token * width + from..][..2 * LANES].split_at(LANES);
        for query in 0..N {
            let weight = weights[query][token];
            for lane in 0..LANES {
                sums[query][lane] = added::<FMA>(weight, one[lane], sums[query][lane]);
            }
            for lane in 0..LANES {
                others[query][lane] = added::<FMA>(weight, other[lane], others[query][lane]);
            }
        }
    }
    for query in 0..N {
        let (one, other) = out[query * width + from..][..2 * LANES].split_at_mut(LANES);
        one.copy_from_slice(&sums[query]);
        other.copy_from_slice(&others[query]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sequence: its keys and values, `[tokens, kv_heads, dim]`, and its pages.
    struct Sequence {
        keys: Vec<f32>,
        values: Vec<f32>,
        pages: Vec<Vec<f32>>,
    }

    fn sequence(random: &mut fastrand::Rng, layout: PageLayout, tokens: usize) -> Sequence {
        let each = layout.kv_heads * layout.head_dim;
        let mut numbers =
            || -> Vec<f32> { (0..tokens * each).map(|_| random.f32() * 2.0 - 1.0).collect() };
        let (keys, values) = (numbers(), numbers());
        let mut pages = vec![vec![0.0; layout.numbers()]; tokens.div_ceil(PAGE_TOKENS)];
        for token in 0..tokens {
            for head in 0..layout.kv_heads {
                let from = token * each + head * layout.head_dim;
                let of = from..from + layout.head_dim;
                let (page, place) = (&mut pages[token / PAGE_TOKENS], token % PAGE_TOKENS);
                layout.write(page, 1, head, place, &keys[of.clone()], &values[of]);
            }
        }
        Sequence { keys, values, pages }
    }

    /// What one query gets, term by term in f64.
    fn expected(
        of: &Sequence,
        attention: &PagedAttention,
        query: &[f32],
        head: usize,
        position: usize,
    ) -> Vec<f64> {
        let PageLayout { kv_heads, head_dim, .. } = attention.layout;
        let kv_head = head / (attention.heads / kv_heads);
        let first = attention.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let part = |numbers: &[f32], token: usize| {
            let from = (token * kv_heads + kv_head) * head_dim;
            numbers[from..from + head_dim].to_vec()
        };
        let powers: Vec<f64> = (first..=position)
            .map(|token| {
                let key = part(&of.keys, token);
                let product: f64 =
                    query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
                let score = product * f64::from(attention.scale);
                let capped = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
                attention.cap.map_or(score, capped).exp()
            })
            .collect();
        let sum: f64 = powers.iter().sum();
        let mut out = vec![0.0; head_dim];
        for (token, power) in (first..=position).zip(powers) {
            for (out, value) in out.iter_mut().zip(part(&of.values, token)) {
                *out += power / sum * f64::from(value);
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn each_query_gets_what_the_formula_says_and_the_same_bits_alone(
            seed in any::<u64>(),
            kv_heads in 1usize..4,
            group in 1usize..4,
            head_dim in 1usize..40,
            window in prop::option::of(1usize..40),
            cap in prop::option::of(0.1f32..2.0),
            // The tokens of each sequence, and how many of the last are queries.
            shapes in prop::collection::vec((1usize..90, 1usize..90), 1..5),
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let layout = PageLayout { layers: 2, kv_heads, head_dim };
            let heads = kv_heads * group;
            let attention = PagedAttention { layout, layer: 1, heads, scale: 0.3, cap, window };
            let shapes: Vec<(usize, usize)> =
                shapes.into_iter().map(|(tokens, queries)| (tokens, queries.min(tokens))).collect();
            let sequences: Vec<Sequence> =
                shapes.iter().map(|(tokens, _)| sequence(&mut random, layout, *tokens)).collect();
            let rows: usize = shapes.iter().map(|(_, queries)| queries).sum();
            let queries: Vec<f32> =
                (0..heads * rows * head_dim).map(|_| random.f32() * 2.0 - 1.0).collect();
            let mut first = 0;
            let runs: Vec<QueryRun<'_>> = shapes
                .iter()
                .zip(&sequences)
                .map(|((tokens, queries), sequence)| {
                    first += queries;
                    QueryRun {
                        rows: first - queries..first,
                        start: tokens - queries,
                        pages: sequence.pages.iter().map(Vec::as_slice).collect(),
                    }
                })
                .collect();
            let all = attention.attend(&queries, &runs);
            for head in 0..kv_heads {
                let of_head = group * head_dim;
                let some = attention.attend_heads(&queries, &runs, head..head + 1);
                for (some, all) in some.chunks(of_head).zip(all.chunks(kv_heads * of_head)) {
                    prop_assert_eq!(some, &all[head * of_head..(head + 1) * of_head]);
                }
            }
            for (run, sequence) in runs.iter().zip(&sequences) {
                for row in run.rows.clone() {
                    let position = run.start + row - run.rows.start;
                    let of_head = |head: usize| {
                        let from = (head * rows + row) * head_dim;
                        &queries[from..from + head_dim]
                    };
                    let own: Vec<f32> = (0..heads).flat_map(|head| of_head(head).to_vec()).collect();
                    let only = QueryRun { rows: 0..1, start: position, pages: run.pages.clone() };
                    let alone = attention.attend(&own, &[only]);
                    let together = &all[row * heads * head_dim..(row + 1) * heads * head_dim];
                    prop_assert_eq!(&alone[..], together);
                    for head in 0..heads {
                        let right = expected(sequence, &attention, of_head(head), head, position);
                        for (is, right) in together[head * head_dim..].iter().zip(right) {
                            prop_assert!((f64::from(*is) - right).abs() < 1e-5, "{is} {right}");
                        }
                    }
                }
            }
        }
    }
}
