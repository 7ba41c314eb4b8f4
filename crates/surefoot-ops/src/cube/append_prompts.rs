//! Attention of prompts to a cache on Cube devices: a launch normalises and turns heads and writes keys and values into the cache, in place;
//! [`super::prompt_attention`] then reads them where they are, in one launch, or [`super::prompt_products`] in three where prompts are long.
//!
//! In the first each unit makes one number of a head. Queries come out in a tensor of their own, `[tokens, heads · each]`. Nothing that a
//! unit reads is written by another: the cache is only written.
//!
//! [`crate::AppendedPrompts::attend`] is the only caller, and checks before that the cache has the rows and columns that are written and that
//! the device has shared memory for [`super::prompt_attention`]. That nobody else reads the cache meanwhile is its own caller's to see to.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::append_attention::{Head, Place, inverse_root, place, turned};
use super::decode_attention::UNITS;
use super::launch::empty;
use super::planes::has_planes;
use super::prompt_attention::{self, CachedRows};
use super::prompt_products::Products;
use crate::inference::{AppendedPrompts, PromptAttention};

/// The sizes of a launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Sizes {
    heads: u32,
    kv_heads: u32,
    /// Tokens of a sequence.
    width: u32,
    /// Columns of a sequence that are set to zero, before those of its tokens.
    stale: u32,
    /// The row of the cache that the first sequence has, and the first column that is written.
    row: u32,
    column: u32,
    /// Tables of cosines and sines.
    tables: u32,
    /// Heads that are made: for each sequence those of keys and values in each stale column, then all of each token.
    all: u32,
}

/// `mixed` is `[sequences · width, (heads + 2 · kv_heads) · each]`, the cache `[rows, kv_heads, capacity, each]`. `of_head` units take a head.
#[cube(launch)]
fn append_prompts(
    mixed: &[f32],
    q_gamma: &[f32],
    k_gamma: &[f32],
    cos: &[f32],
    sin: &[f32],
    keys: &mut [f32],
    values: &mut [f32],
    out: &mut [f32],
    key_place: Place,
    value_place: Place,
    sizes: Sizes,
    epsilon: f32,
    #[comptime] head: Head,
    #[comptime] of_head: usize,
) {
    let (heads, kv_heads) = (sizes.heads as usize, sizes.kv_heads as usize);
    let (width, stale) = (sizes.width as usize, sizes.stale as usize);
    let each = comptime!(head.each);
    let unit = UNIT_POS as usize;
    let at = unit % of_head;
    let number_of_head = CUBE_POS * comptime!(UNITS / of_head) + unit / of_head;
    let is_inside = number_of_head < sizes.all as usize && at < each;
    // Heads beyond the last are read as the last, and not written.
    let number_of_head = number_of_head.min(sizes.all as usize - 1);
    let of_token = heads + 2 * kv_heads;
    let stale_heads = stale * 2 * kv_heads;
    let of_sequence = stale_heads + width * of_token;
    let (sequence, rest) = (number_of_head / of_sequence, number_of_head % of_sequence);
    let is_stale = rest < stale_heads;
    // Which column of the sequence, and which head of queries, keys and values.
    let mut column = rest / (2 * kv_heads);
    let mut slot = heads + rest % (2 * kv_heads);
    let mut token = sequence * width;
    if !is_stale {
        let behind = rest - stale_heads;
        column = stale + behind / of_token;
        slot = behind % of_token;
        token += behind / of_token;
    }
    let start = (token * of_token + slot) * each;
    let is_query = slot < heads;
    let is_key = !is_query && slot < heads + kv_heads;
    let mut plain = 0.0f32;
    if at < each && !is_stale {
        plain = mixed[start + at];
    }
    // With barriers inside, where heads are normalised: a cube has one head then.
    let inverse = inverse_root(plain, epsilon, head);
    let mut number = plain;
    if is_inside && !is_stale {
        let table = sequence % sizes.tables as usize * width + (token - sequence * width);
        if is_query {
            number = turned(mixed, q_gamma, cos, sin, start, table, inverse, at, 0usize, head);
            out[(token * heads + slot) * each + at] = number;
        }
        if is_key {
            number = turned(mixed, k_gamma, cos, sin, start, table, inverse, at, 0usize, head);
        }
    }
    if is_inside && !is_query {
        let row = sizes.row as usize + sequence;
        let column = sizes.column as usize + column;
        if is_key {
            let line = key_place.line as usize;
            let first = key_place.start(row, slot - heads) + column * line;
            keys[4 * first + at] = number;
        } else {
            let line = value_place.line as usize;
            let first = value_place.start(row, slot - heads - kv_heads) + column * line;
            values[4 * first + at] = number;
        }
    }
}

/// The tensors of the launch. What is not there is never read.
pub(super) struct Given {
    pub(super) mixed: CubeTensor,
    pub(super) keys: CubeTensor,
    pub(super) values: CubeTensor,
    pub(super) rotation: Option<(CubeTensor, CubeTensor)>,
    pub(super) norms: Option<(CubeTensor, CubeTensor)>,
    pub(super) pads: Option<CubeTensor>,
}

/// What each token gets: `[sequences · width, heads · each]`.
pub(super) fn forward(given: Given, how: AppendedPrompts) -> CubeTensor {
    let Given { mixed, keys, values, rotation, norms, pads } = given;
    let mixed = into_contiguous(mixed);
    let tokens = mixed.meta.shape()[0];
    let (kv_heads, each) = (keys.meta.shape()[1], keys.meta.shape()[3]);
    let (key_place, value_place) = (place(&keys), place(&values));
    let head = Head {
        each,
        half: rotation.as_ref().map_or(0, |(cos, _)| cos.meta.shape()[3]),
        interleaved: how.interleaved,
        normed: norms.is_some(),
        padded: false,
        window: 0,
        planes: has_planes(&mixed.client),
        parts: 1,
    };
    let sequences = tokens / how.width;
    let heads_of_token = how.heads + 2 * kv_heads;
    let all = sequences * (how.stale * 2 * kv_heads + how.width * heads_of_token);
    let of_head = if head.normed { UNITS } else { each.next_power_of_two() };
    let sizes = SizesLaunch::new(
        how.heads as u32,
        kv_heads as u32,
        how.width as u32,
        how.stale as u32,
        how.first_row as u32,
        (how.filled - how.stale) as u32,
        rotation.as_ref().map_or(1, |(cos, _)| cos.meta.shape()[0]) as u32,
        all as u32,
    );
    let (cos, sin) = rotation.unwrap_or_else(|| (mixed.clone(), mixed.clone()));
    let (q_gamma, k_gamma) = norms.unwrap_or_else(|| (mixed.clone(), mixed.clone()));
    let queries = empty(&mixed, Shape::new([tokens, how.heads * each]));
    let client = mixed.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let units = all.div_ceil(UNITS / of_head) * UNITS;
    let count = calculate_cube_count_elemwise(&client, units, dim);
    append_prompts::launch(
        &client,
        count,
        dim,
        mixed.into_buffer_arg(),
        into_contiguous(q_gamma).into_buffer_arg(),
        into_contiguous(k_gamma).into_buffer_arg(),
        into_contiguous(cos).into_buffer_arg(),
        into_contiguous(sin).into_buffer_arg(),
        keys.clone().into_buffer_arg(),
        values.clone().into_buffer_arg(),
        queries.clone().into_buffer_arg(),
        key_place,
        value_place,
        sizes,
        how.epsilon as f32,
        head,
        of_head,
    );
    let attention = PromptAttention {
        scale: how.scale,
        past: how.filled - how.start,
        causal: true,
        window: how.window,
    };
    let rows = CachedRows { sequences, heads: how.heads, first: how.first_row, column: how.start };
    let (width, scores) = (how.width, how.most_scores);
    match Products::find([&keys, &values], rows, width, &attention, how.compute, scores) {
        Some(products) => products.attend(queries, [&keys, &values], pads, &attention),
        None => prompt_attention::of_cached(queries, keys, values, pads, attention, rows),
    }
}
