//! Attention of the tokens that are decoded, one of each sequence, on Cube devices: norms of the heads, rotary positions, the cache's
//! new column and attention to it in one launch.
//!
//! Each head of each sequence has a cube. It turns its query and the new key of its group, and goes over the cached keys in runs:
//! each unit makes the score of one key, and then adds up four dimensions of some of the values. Softmax is kept as a running
//! maximum and sum, which begin with the new key. The first head of a group writes its key and value into the cache, in place, where
//! no other cube reads: all take the new ones from what the layer gave. Of many sequences the heads that share keys have one cube
//! ([`super::append_groups`]).

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::append_groups;
use super::decode_attention::UNITS;
use super::launch::empty;
use super::planes::{has_planes, maximum_of_cube, sum_of_cube};
use super::product::Four;
use super::rows::LOWEST;
use crate::inference::AppendedAttention;

/// What heads are made of: numbers, pairs that are turned, whether pairs are neighbours, whether heads are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Head {
    pub(super) each: usize,
    pub(super) half: usize,
    pub(super) interleaved: bool,
    pub(super) normed: bool,
    /// Whether sequences begin in different columns.
    pub(super) padded: bool,
    /// Columns that a token sees, itself among them; 0 if it sees all.
    pub(super) window: usize,
    /// Whether planes add up.
    pub(super) planes: bool,
    /// How many parts a number of queries, keys and values is the sum of.
    pub(super) parts: usize,
}

/// Where a cache's keys or values lie, counted in fours: how far it is from one sequence, head and token to the next.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Place {
    sequence: u32,
    head: u32,
    pub(super) line: u32,
}

#[cube]
impl Place {
    pub(super) fn start(&self, sequence: usize, head: usize) -> usize {
        sequence * self.sequence as usize + head * self.head as usize
    }
}

/// The place of a cache's numbers, of which each token's lie side by side: nobody turns a cache.
pub(super) fn place(cache: &CubeTensor) -> PlaceLaunch {
    let strides = cache.meta.strides();
    debug_assert!(strides[3] == 1 && strides.iter().take(3).all(|step| step.is_multiple_of(4)));
    let [sequence, head, line] = [0, 1, 2].map(|at| (strides[at] / 4) as u32);
    PlaceLaunch::new(sequence, head, line)
}

/// The inverse root of the mean square of a head, with `number` of this unit; 1 without a norm.
#[cube]
pub(super) fn inverse_root(number: f32, epsilon: f32, #[comptime] head: Head) -> f32 {
    let mut inverse = 1.0f32;
    if comptime!(head.normed) {
        let mean = sum_of_cube(number * number, UNITS, head.planes)
            / f32::cast_from(comptime!(head.each as u32));
        inverse = 1.0f32 / (mean + epsilon).sqrt();
    }
    inverse
}

/// A number of queries, keys and values, whose parts are `part` numbers from each other.
#[cube]
pub(super) fn sum_of_parts(
    mixed: &[f32],
    place: usize,
    part: usize,
    #[comptime] head: Head,
) -> f32 {
    let mut sum = mixed[place];
    #[unroll]
    for at in 1..comptime!(head.parts) {
        sum += mixed[at * part + place];
    }
    sum
}

/// A number of a head, normalised.
#[cube]
fn number_of(
    mixed: &[f32],
    gamma: &[f32],
    start: usize,
    at: usize,
    part: usize,
    inverse: f32,
    #[comptime] head: Head,
) -> f32 {
    let mut number = sum_of_parts(mixed, start + at, part, head);
    if comptime!(head.normed) {
        number = number * inverse * gamma[at];
    }
    number
}

/// The number of a head at a place, normalised and turned. Where pairs are neighbours they come out as halves.
#[cube]
pub(super) fn turned(
    mixed: &[f32],
    gamma: &[f32],
    cos: &[f32],
    sin: &[f32],
    start: usize,
    table: usize,
    inverse: f32,
    at: usize,
    part: usize,
    #[comptime] head: Head,
) -> f32 {
    let half = comptime!(head.half);
    let mut number = number_of(mixed, gamma, start, at, part, inverse, head);
    if comptime!(half > 0) {
        if at < comptime!(2 * half) {
            let pair = at % half;
            let mut first = pair;
            let mut second = pair + half;
            if comptime!(head.interleaved) {
                first = 2 * pair;
                second = 2 * pair + 1;
            }
            let first = number_of(mixed, gamma, start, first, part, inverse, head);
            let second = number_of(mixed, gamma, start, second, part, inverse, head);
            let (cos, sin) = (cos[table * half + pair], sin[table * half + pair]);
            number = first * cos - second * sin;
            if at >= half {
                number = second * cos + first * sin;
            }
        }
    }
    number
}

/// Four numbers of shared memory.
#[cube]
pub(super) fn four_at(numbers: &Shared<[f32]>, first: usize) -> Four {
    let mut four = Four::new(0.0f32);
    #[unroll]
    for at in 0..4usize {
        four.insert(at, numbers[first + at]);
    }
    four
}

/// `mixed` is `[parts, sequences, (heads + 2 · kv_heads) · each]`, whose parts are to be added up, the cache `[rows, kv_heads, capacity, each]`; `places` are the column that is
/// written, the first column that any sequence sees, and where sequences differ the first column of each.
#[cube(launch)]
fn attend_and_append(
    mixed: &[f32],
    q_gamma: &[f32],
    k_gamma: &[f32],
    cos: &[f32],
    sin: &[f32],
    places: &[f32],
    keys: &mut [Four],
    values: &mut [Four],
    out: &mut [Four],
    sequences: u32,
    heads: u32,
    kv_heads: u32,
    key_place: Place,
    value_place: Place,
    tables: u32,
    scale: f32,
    epsilon: f32,
    #[comptime] head: Head,
) {
    let (heads, kv_heads) = (heads as usize, kv_heads as usize);
    let filled = u32::cast_from(places[0]) as usize;
    let row = CUBE_POS;
    if row >= sequences as usize * heads {
        terminate!();
    }
    let each = comptime!(head.each);
    let fours = comptime!(head.each / 4);
    let unit = UNIT_POS as usize;
    let (sequence, own) = (row / heads, row % heads);
    let group = heads / kv_heads;
    let of_group = own / group;
    let part = sequences as usize * (heads + 2 * kv_heads) * each;
    let start = sequence * (heads + 2 * kv_heads) * each;
    let query_start = start + own * each;
    let key_start = start + (heads + of_group) * each;
    let value_start = start + (heads + kv_heads + of_group) * each;
    let first_key = key_place.start(sequence, of_group);
    let first_value = value_place.start(sequence, of_group);
    let (key_line, value_line) = (key_place.line as usize, value_place.line as usize);
    let mut first = u32::cast_from(places[1]) as usize;
    if comptime!(head.window > 0) {
        if filled + 1 > first + head.window {
            first = filled + 1 - head.window;
        }
    }
    if comptime!(head.padded) {
        let own_first = u32::cast_from(places[2 + sequence]) as usize;
        if own_first > first {
            first = own_first;
        }
    }

    let mut query = 0.0f32;
    let mut key = 0.0f32;
    if unit < each {
        query = sum_of_parts(mixed, query_start + unit, part, head);
        key = sum_of_parts(mixed, key_start + unit, part, head);
    }
    let q_inverse = inverse_root(query, epsilon, head);
    let k_inverse = inverse_root(key, epsilon, head);
    if unit < each {
        let table = sequence % tables as usize;
        query = turned(mixed, q_gamma, cos, sin, query_start, table, q_inverse, unit, part, head)
            * scale;
        key = turned(mixed, k_gamma, cos, sin, key_start, table, k_inverse, unit, part, head);
    }
    let mut new_query = Shared::<[f32]>::new_slice(UNITS);
    let mut new_key = Shared::<[f32]>::new_slice(UNITS);
    let mut new_value = Shared::<[f32]>::new_slice(UNITS);
    new_query[unit] = query;
    new_key[unit] = key;
    if unit < each {
        new_value[unit] = sum_of_parts(mixed, value_start + unit, part, head);
    }
    // With barriers inside, after which all of them can be read.
    let mut most = sum_of_cube(query * key, UNITS, head.planes);
    let mut sum = 1.0f32;

    // Units of a lane take four dimensions each; lanes take turns with the keys of a run.
    let lanes = comptime!(UNITS / fours);
    let (lane, four) = (unit / fours, unit % fours);
    let mut found = Four::new(0.0f32);
    if lane == 0 {
        found = four_at(&new_value, 4 * four);
    }
    if own % group == 0 && unit < fours {
        keys[first_key + filled * key_line + unit] = four_at(&new_key, 4 * unit);
        values[first_value + filled * value_line + unit] = four_at(&new_value, 4 * unit);
    }
    let mut powers = Shared::<[f32]>::new_slice(UNITS);
    let mut run = first;
    while run < filled {
        let place = run + unit;
        let mut score = f32::new(LOWEST);
        if place < filled {
            let mut product = Four::new(0.0f32);
            #[unroll]
            for at in 0..fours {
                let of_query = four_at(&new_query, 4 * at);
                product = fma(of_query, keys[first_key + place * key_line + at], product);
            }
            score = (product.extract(0usize) + product.extract(1usize))
                + (product.extract(2usize) + product.extract(3usize));
        }
        let before = most;
        let of_run = maximum_of_cube(score, UNITS, head.planes);
        if of_run > most {
            most = of_run;
        }
        let mut power = 0.0f32;
        if place < filled {
            power = (score - most).exp();
        }
        powers[unit] = power;
        let rescale = (before - most).exp();
        // With barriers inside, after which all powers can be read.
        sum = sum * rescale + sum_of_cube(power, UNITS, head.planes);
        if lane < lanes {
            found *= Four::new(rescale);
            let mut at = lane;
            while at < UNITS && run + at < filled {
                let value = values[first_value + (run + at) * value_line + four];
                found = fma(Four::new(powers[at]), value, found);
                at += lanes;
            }
        }
        sync_cube();
        run += UNITS;
    }
    let mut of_lanes = Shared::<[Four]>::new_slice(UNITS);
    of_lanes[unit] = found;
    sync_cube();
    if unit < fours {
        let mut total = Four::new(0.0f32);
        #[unroll]
        for lane in 0..lanes {
            total += of_lanes[lane * fours + unit];
        }
        out[row * fours + unit] = total / Four::new(sum);
    }
}

/// The tensors of the launch. What is not there is never read.
pub(super) struct Given {
    pub(super) mixed: CubeTensor,
    pub(super) keys: CubeTensor,
    pub(super) values: CubeTensor,
    pub(super) rotation: Option<(CubeTensor, CubeTensor)>,
    pub(super) norms: Option<(CubeTensor, CubeTensor)>,
    pub(super) places: CubeTensor,
}

/// What each token gets: `[sequences, heads · each]`.
pub(super) fn forward(given: Given, how: AppendedAttention) -> CubeTensor {
    let Given { mixed, keys, values, rotation, norms, places } = given;
    let mixed = into_contiguous(mixed);
    let sequences = mixed.meta.shape()[0] / how.parts;
    let (kv_heads, each) = (keys.meta.shape()[1], keys.meta.shape()[3]);
    let (key_place, value_place) = (place(&keys), place(&values));
    let tables = rotation.as_ref().map_or(1, |(cos, _)| cos.meta.shape()[0]);
    let head = Head {
        each,
        half: rotation.as_ref().map_or(0, |(cos, _)| cos.meta.shape()[3]),
        interleaved: how.interleaved,
        normed: norms.is_some(),
        padded: places.meta.num_elements() > 2,
        window: how.window.unwrap_or(0),
        planes: has_planes(&mixed.client),
        parts: how.parts,
    };
    let room = mixed.client.properties().hardware.max_shared_memory_size;
    if append_groups::take(sequences, how.heads, kv_heads, head)
        && append_groups::shared_bytes(how.heads / kv_heads, head) <= room
    {
        let given = Given { mixed, keys, values, rotation, norms, places };
        return append_groups::forward(given, how, head);
    }
    let (cos, sin) = rotation.unwrap_or_else(|| (mixed.clone(), mixed.clone()));
    let (q_gamma, k_gamma) = norms.unwrap_or_else(|| (mixed.clone(), mixed.clone()));
    let out = empty(&mixed, Shape::new([sequences, how.heads * each]));
    let client = mixed.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let count = calculate_cube_count_elemwise(&client, sequences * how.heads * UNITS, dim);
    attend_and_append::launch(
        &client,
        count,
        dim,
        mixed.into_buffer_arg(),
        into_contiguous(q_gamma).into_buffer_arg(),
        into_contiguous(k_gamma).into_buffer_arg(),
        into_contiguous(cos).into_buffer_arg(),
        into_contiguous(sin).into_buffer_arg(),
        into_contiguous(places).into_buffer_arg(),
        keys.into_buffer_arg(),
        values.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        sequences as u32,
        how.heads as u32,
        kv_heads as u32,
        key_place,
        value_place,
        tables as u32,
        how.scale as f32,
        how.epsilon as f32,
        head,
    );
    out
}
