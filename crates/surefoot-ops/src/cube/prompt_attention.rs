//! Attention of the queries of prompts on Cube devices, in one launch and without a matrix of scores.
//!
//! A cube takes [`ROWS`] queries of a head. It goes over the keys that any of them sees, some lines at a time: these are brought into shared
//! memory, each unit makes the scores of two queries with some of them, then values take their place, and each unit adds
//! up its part of the outputs of the same two queries. Softmax is kept as a running maximum and sum. Keys and values are read where they are.

use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::prelude::*;

use super::append_attention::{Place, place};
use super::launch::empty;
use super::product::Four;
use super::rows::LOWEST;
use crate::inference::PromptAttention;

/// Queries of a cube.
const ROWS: usize = 32;
/// Units of a cube: eight share two queries.
const UNITS: usize = ROWS / 2 * ACROSS;
const ACROSS: usize = 8;
/// The most dimensions of a head.
pub(crate) const LARGEST: usize = 128;

/// What the kernel is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// Fours of a head.
    fours: usize,
    /// Keys that are in shared memory at once.
    lines: usize,
    causal: bool,
    /// Whether sequences begin with padding.
    padded: bool,
    /// Keys that a query sees, itself among them; 0 if it sees all.
    window: usize,
    /// Whether the heads of a token lie side by side in queries and outputs, and not the tokens of a head.
    by_token: bool,
}

impl Form {
    /// Fours from one line to the next in shared memory, so that the lines of units side by side are in different banks.
    fn step(self) -> usize {
        self.fours + 1
    }

    /// Scores from one query to the next.
    fn scores(self) -> usize {
        self.lines + 1
    }

    /// Keys whose scores a unit makes.
    fn own(self) -> usize {
        self.lines / ACROSS
    }

    /// Fours of an output that a unit makes.
    fn own_fours(self) -> usize {
        self.fours.div_ceil(ACROSS)
    }

    fn shared_bytes(self) -> usize {
        16 * (ROWS + self.lines) * self.step() + 4 * ROWS * self.scores()
    }
}

/// Keys that are in shared memory at once: many where there is room for them, or few.
const MANY_LINES: usize = 32;
const FEW_LINES: usize = 16;
/// Bytes of shared memory with which two cubes can still run beside each other.
const MOST_SHARED: usize = 32 << 10;

/// Whether the device has shared memory for heads of so many dimensions.
pub(super) fn has_room(client: &Client, each: usize) -> bool {
    let form = Form {
        fours: each / 4,
        lines: FEW_LINES,
        causal: true,
        padded: true,
        window: 0,
        by_token: true,
    };
    form.shared_bytes() <= client.properties().hardware.max_shared_memory_size
}

/// Brings lines into shared memory. Lines from `end` on are zeros.
#[cube]
fn bring(
    from: &[Four],
    to: &mut Shared<[Four]>,
    start: usize,
    line: usize,
    first: usize,
    end: usize,
    factor: f32,
    #[comptime] lines: usize,
    #[comptime] form: Form,
) {
    let mut at = UNIT_POS as usize;
    while at < comptime!(lines * form.fours) {
        let (row, four) = (at / form.fours, at % form.fours);
        let mut number = Four::new(0.0f32);
        if first + row < end {
            number = from[start + (first + row) * line + four] * Four::new(factor);
        }
        to[row * comptime!(form.step()) + four] = number;
        at += UNITS;
    }
}

/// `query` and `out` are `[batch, heads, width, each]`, or by token `[batch, width, heads, each]`, in one piece. The keys of the first
/// sequence are in row `first_row` of `keys` from `first_column` on. `pads` has the padding before each sequence.
#[cube(launch)]
fn attend_prompt(
    query: &[Four],
    keys: &[Four],
    values: &[Four],
    pads: &[f32],
    out: &mut [Four],
    key_place: Place,
    value_place: Place,
    heads: u32,
    group: u32,
    width: u32,
    past: u32,
    seen: u32,
    first_row: u32,
    first_column: u32,
    scale: f32,
    #[comptime] form: Form,
) {
    let (heads, group, width) = (heads as usize, group as usize, width as usize);
    let (past, seen) = (past as usize, seen as usize);
    let fours = comptime!(form.fours);
    let (step, wide, lines) =
        (comptime!(form.step()), comptime!(form.scores()), comptime!(form.lines));
    let unit = UNIT_POS as usize;
    let (head, sample) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    let first_query = CUBE_POS_X as usize * ROWS;
    let mut query_start = (sample * heads + head) * width * fours;
    let mut query_line = fours.runtime();
    if comptime!(form.by_token) {
        query_start = (sample * width * heads + head) * fours;
        query_line = heads * fours;
    }
    let (row, column) = (first_row as usize + sample, first_column as usize);
    let (key_line, value_line) = (key_place.line as usize, value_place.line as usize);
    let first_key = key_place.start(row, head / group) + column * key_line;
    let first_value = value_place.start(row, head / group) + column * value_line;

    let mut queries = Shared::<[Four]>::new_slice(comptime!(ROWS * form.step()));
    let mut tile = Shared::<[Four]>::new_slice(comptime!(form.lines * form.step()));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(ROWS * form.scores()));
    bring(query, &mut queries, query_start, query_line, first_query, width, scale, ROWS, form);

    let (own, across) = (unit / ACROSS * 2, unit % ACROSS);
    let mut most = Array::<f32>::new(2usize);
    let mut sums = Array::<f32>::new(2usize);
    let mut found = Array::<Four>::new(comptime!(2 * form.own_fours()));
    #[unroll]
    for row in 0..2usize {
        most[row] = f32::new(LOWEST);
        sums[row] = 0.0f32;
        #[unroll]
        for at in 0..comptime!(form.own_fours()) {
            found[comptime!(row * form.own_fours() + at)] = Four::new(0.0f32);
        }
    }
    let mut begin = 0usize;
    if comptime!(form.padded) {
        begin = u32::cast_from(pads[sample]) as usize;
    }
    let mut from = begin;
    let mut end = seen;
    if comptime!(form.causal) {
        end = (past + first_query + ROWS).min(seen);
        if comptime!(form.window > 0) {
            if past + first_query + 1 > from + form.window {
                from = past + first_query + 1 - form.window;
            }
        }
    }
    while from < end {
        // Nobody reads the lines before any more: there is a barrier at the end of each turn.
        bring(keys, &mut tile, first_key, key_line, from, end, 1.0f32, lines, form);
        sync_cube();
        let mut made = Array::<Four>::new(comptime!(2 * form.own()));
        #[unroll]
        for at in 0..comptime!(2 * form.own()) {
            made[at] = Four::new(0.0f32);
        }
        #[unroll]
        for four in 0..fours {
            let upper = queries[own * step + four];
            let lower = queries[(own + 1) * step + four];
            #[unroll]
            for at in 0..comptime!(form.own()) {
                let key = tile[(across + at * ACROSS) * step + four];
                made[at] = fma(upper, key, made[at]);
                made[comptime!(form.own() + at)] =
                    fma(lower, key, made[comptime!(form.own() + at)]);
            }
        }
        let mut score = Array::<f32>::new(comptime!(2 * form.own()));
        #[unroll]
        for row in 0..2usize {
            let position = past + first_query + own + row;
            #[unroll]
            for at in 0..comptime!(form.own()) {
                let key = from + across + at * ACROSS;
                let four = made[comptime!(row * form.own() + at)];
                let mut number = (four.extract(0usize) + four.extract(1usize))
                    + (four.extract(2usize) + four.extract(3usize));
                let mut hidden = key >= end;
                if comptime!(form.causal) {
                    hidden = hidden || key > position;
                    if comptime!(form.window > 0) {
                        hidden = hidden || key + form.window <= position;
                    }
                }
                if hidden {
                    number = f32::new(LOWEST);
                }
                score[comptime!(row * form.own() + at)] = number;
                scores[(own + row) * wide + across + at * ACROSS] = number;
            }
        }
        sync_cube();
        let mut before = Array::<f32>::new(2usize);
        #[unroll]
        for row in 0..2usize {
            before[row] = most[row];
            #[unroll]
            for at in 0..lines {
                let number = scores[(own + row) * wide + at];
                if number > most[row] {
                    most[row] = number;
                }
            }
        }
        // All scores and keys have been read.
        sync_cube();
        #[unroll]
        for row in 0..2usize {
            #[unroll]
            for at in 0..comptime!(form.own()) {
                let number = score[comptime!(row * form.own() + at)];
                let mut power = 0.0f32;
                if number > f32::new(LOWEST) {
                    power = (number - most[row]).exp();
                }
                scores[(own + row) * wide + across + at * ACROSS] = power;
            }
        }
        bring(values, &mut tile, first_value, value_line, from, end, 1.0f32, lines, form);
        sync_cube();
        #[unroll]
        for row in 0..2usize {
            let rescale = (before[row] - most[row]).exp();
            let mut sum = 0.0f32;
            #[unroll]
            for at in 0..lines {
                sum += scores[(own + row) * wide + at];
            }
            sums[row] = sums[row] * rescale + sum;
            #[unroll]
            for at in 0..comptime!(form.own_fours()) {
                found[comptime!(row * form.own_fours() + at)] *= Four::new(rescale);
            }
        }
        for line in 0..lines {
            let upper = Four::new(scores[own * wide + line]);
            let lower = Four::new(scores[(own + 1) * wide + line]);
            #[unroll]
            for at in 0..comptime!(form.own_fours()) {
                // The last lines of what is beyond a head are read and not written.
                let four = (across + at * ACROSS).min(fours - 1);
                let value = tile[line * step + four];
                let second = comptime!(form.own_fours() + at);
                found[at] = fma(upper, value, found[at]);
                found[second] = fma(lower, value, found[second]);
            }
        }
        sync_cube();
        from += lines;
    }
    #[unroll]
    for row in 0..2usize {
        let number = first_query + own + row;
        if number < width {
            // A query that sees nothing is padding.
            let sum = sums[row];
            let mut inverse = 0.0f32;
            if sum > 0.0f32 {
                inverse = 1.0f32 / sum;
            }
            #[unroll]
            for at in 0..comptime!(form.own_fours()) {
                let four = across + at * ACROSS;
                if four < fours {
                    let total = found[comptime!(row * form.own_fours() + at)];
                    out[query_start + number * query_line + four] = total * Four::new(inverse);
                }
            }
        }
    }
}

/// Whether the numbers of keys or values can be read in fours where they are: rows may lie further apart than their numbers need.
pub(super) fn is_in_fours(cache: &CubeTensor) -> bool {
    let strides = cache.meta.strides();
    strides[3] == 1
        && strides.iter().take(3).all(|step| step.is_multiple_of(4))
        && !cache.meta.is_tiled()
}

/// Keys or values whose numbers can be read in fours: those that lie otherwise are copied.
fn arranged(cache: CubeTensor) -> CubeTensor {
    if is_in_fours(&cache) { cache } else { into_contiguous(cache) }
}

/// Rows of a cache, `[rows, kv_heads, capacity, each]`: those of so many sequences from the first on, whose keys begin in a column. Queries and outputs
/// have so many heads.
#[derive(Clone, Copy)]
pub(super) struct CachedRows {
    pub(super) sequences: usize,
    pub(super) heads: usize,
    pub(super) first: usize,
    pub(super) column: usize,
}

/// What each query gets: `[batch, heads, width, each]`.
pub(super) fn forward(
    query: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    pads: Option<CubeTensor>,
    how: PromptAttention,
) -> CubeTensor {
    let (keys, values) = (arranged(keys), arranged(values));
    let shape = query.meta.shape();
    let rows = CachedRows { sequences: shape[0], heads: shape[1], first: 0, column: 0 };
    let seen = keys.meta.shape()[2];
    launch(query, [keys, values], pads, how, rows, seen, false)
}

/// What each query gets, `[sequences · width, heads · each]`, of rows of a cache, which is in one piece.
pub(super) fn of_cached(
    query: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    pads: Option<CubeTensor>,
    how: PromptAttention,
    rows: CachedRows,
) -> CubeTensor {
    let width = query.meta.shape()[0] / rows.sequences;
    launch(query, [keys, values], pads, how, rows, how.past + width, true)
}

/// Launches the kernel for queries that see `seen` columns of a cache at most.
fn launch(
    query: CubeTensor,
    [keys, values]: [CubeTensor; 2],
    pads: Option<CubeTensor>,
    how: PromptAttention,
    rows: CachedRows,
    seen: usize,
    by_token: bool,
) -> CubeTensor {
    let query = into_contiguous(query);
    let (kv_heads, each) = (keys.meta.shape()[1], keys.meta.shape()[3]);
    let CachedRows { sequences, heads, first, column } = rows;
    let width = query.meta.num_elements() / (sequences * heads * each);
    let mut form = Form {
        fours: each / 4,
        lines: MANY_LINES,
        causal: how.causal,
        padded: pads.is_some(),
        window: how.window.unwrap_or(0),
        by_token,
    };
    let client = query.client.clone();
    let room = client.properties().hardware.max_shared_memory_size.min(MOST_SHARED);
    if form.shared_bytes() > room {
        form.lines = FEW_LINES;
    }
    let out = empty(&query, query.meta.shape().clone());
    let (key_place, value_place) = (place(&keys), place(&values));
    let count = CubeCount::Static(width.div_ceil(ROWS) as u32, heads as u32, sequences as u32);
    // What is not there is never read.
    let pads = pads.unwrap_or_else(|| query.clone());
    attend_prompt::launch(
        &client,
        count,
        CubeDim::new_1d(UNITS as u32),
        query.into_buffer_arg(),
        keys.into_buffer_arg(),
        values.into_buffer_arg(),
        into_contiguous(pads).into_buffer_arg(),
        out.clone().into_buffer_arg(),
        key_place,
        value_place,
        heads as u32,
        (heads / kv_heads) as u32,
        width as u32,
        how.past as u32,
        seen as u32,
        first as u32,
        column as u32,
        how.scale as f32,
        form,
    );
    out
}
