//! [`super::append_attention`] for many sequences whose heads share keys and values: each group of heads of each sequence has a cube, so that
//! keys and values are read once for all heads of the group.
//!
//! A cube goes over the keys in runs of [`UNITS`]. Each unit makes the scores of one key with the queries of all heads; then some units of
//! each head make its softmax of the run, kept as a running maximum and sum; and then each unit adds up four dimensions of some
//! of the values for all heads. The new key and value are the last of the sequence's, and are written into the cache.
//!
//! Only [`super::append_attention::forward`] calls this, where [`take`] says that there are enough groups, of heads of a power of two, and the device
//! has [`shared_bytes`]. What the cache and the new tokens have to be is checked before that one is called.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::append_attention::{
    Given, Head, Place, four_at, inverse_root, place, sum_of_parts, turned,
};
use super::decode_attention::UNITS;
use super::launch::empty;
use super::product::Four;
use super::rows::LOWEST;
use crate::inference::AppendedAttention;

/// The most heads of a group: units hold a sum for each.
const LARGEST_GROUP: usize = 8;
/// Groups of all sequences from which on it is worth giving each one cube and not one for each of its heads.
const ENOUGH_GROUPS: usize = 128;

/// Whether the kernel takes so many sequences of these heads.
pub(super) fn take(sequences: usize, heads: usize, kv_heads: usize, head: Head) -> bool {
    let group = heads / kv_heads;
    (2..=LARGEST_GROUP).contains(&group)
        && sequences * kv_heads >= ENOUGH_GROUPS
        && head.each.is_power_of_two()
}

/// Bytes of shared memory that a cube takes.
pub(super) fn shared_bytes(group: usize, head: Head) -> usize {
    let norms = if head.normed { 4 * UNITS * (group + 1) } else { 0 };
    let heads = 2 * 4 * head.each * (group + 2);
    norms + heads + 4 * UNITS * (group + 2) + 16 * UNITS + 8 * group
}

/// See [`super::append_attention`]'s kernel, whose arguments these are.
#[cube(launch)]
fn attend_groups(
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
    kv_heads: u32,
    key_place: Place,
    value_place: Place,
    tables: u32,
    scale: f32,
    epsilon: f32,
    #[comptime] group: usize,
    #[comptime] head: Head,
) {
    let kv_heads = kv_heads as usize;
    if CUBE_POS >= sequences as usize * kv_heads {
        terminate!();
    }
    let heads = kv_heads * group;
    let each = comptime!(head.each);
    let fours = comptime!(head.each / 4);
    // Units that make the softmax of a head.
    let of_head = comptime!(UNITS / group.next_power_of_two());
    let unit = UNIT_POS as usize;
    let (sequence, own) = (CUBE_POS / kv_heads, CUBE_POS % kv_heads);
    let part = sequences as usize * (heads + 2 * kv_heads) * each;
    let start = sequence * (heads + 2 * kv_heads) * each;
    let query_start = start + own * group * each;
    let key_start = start + (heads + own) * each;
    let value_start = start + (heads + kv_heads + own) * each;
    let first_key = key_place.start(sequence, own);
    let first_value = value_place.start(sequence, own);
    let (key_line, value_line) = (key_place.line as usize, value_place.line as usize);
    let filled = u32::cast_from(places[0]) as usize;
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
    // A token always sees itself.
    if first > filled {
        first = filled;
    }

    // The queries, the new key and the new value, number by number and then in fours.
    let table = sequence % tables as usize;
    let mut numbers = Shared::<[f32]>::new_slice(comptime!((group + 2) * head.each));
    #[unroll]
    for at in 0..comptime!(group + 1) {
        let from = comptime!(if at < group { at } else { 0 }) * each + query_start;
        let mut number = 0.0f32;
        if unit < each {
            if comptime!(at < group) {
                number = sum_of_parts(mixed, from + unit, part, head);
            } else {
                number = sum_of_parts(mixed, key_start + unit, part, head);
            }
        }
        let inverse = inverse_root(number, epsilon, head);
        if unit < each {
            if comptime!(at < group) {
                number = turned(mixed, q_gamma, cos, sin, from, table, inverse, unit, part, head)
                    * scale;
            } else {
                number =
                    turned(mixed, k_gamma, cos, sin, key_start, table, inverse, unit, part, head);
            }
            numbers[comptime!(at * head.each) + unit] = number;
        }
    }
    if unit < each {
        let value = sum_of_parts(mixed, value_start + unit, part, head);
        numbers[comptime!((group + 1) * head.each) + unit] = value;
    }
    sync_cube();
    let mut of_token = Shared::<[Four]>::new_slice(comptime!((group + 2) * head.each / 4));
    let mut at = unit;
    while at < comptime!((group + 2) * head.each / 4) {
        of_token[at] = four_at(&numbers, 4 * at);
        at += UNITS;
    }
    sync_cube();
    let new_key = comptime!(group * (head.each / 4));
    let new_value = comptime!((group + 1) * (head.each / 4));
    if unit < fours {
        keys[first_key + filled * key_line + unit] = of_token[new_key + unit];
        values[first_value + filled * value_line + unit] = of_token[new_value + unit];
    }

    let mut scores = Shared::<[f32]>::new_slice(comptime!(group * UNITS));
    let mut partial = Shared::<[f32]>::new_slice(UNITS);
    let mut partial_sums = Shared::<[f32]>::new_slice(UNITS);
    let mut rescales = Shared::<[f32]>::new_slice(group);
    let mut sums = Shared::<[f32]>::new_slice(group);
    // The head whose softmax this unit helps to make, and its place among those that do.
    let (softened, helper) = (unit / of_head, unit % of_head);
    let mut most = f32::new(LOWEST);
    let mut sum = 0.0f32;
    let lanes = comptime!(UNITS / (head.each / 4));
    let (lane, four) = (unit / fours, unit % fours);
    let mut found = Array::<Four>::new(group);
    #[unroll]
    for at in 0..group {
        found[at] = Four::new(0.0f32);
    }
    let mut run = first;
    while run <= filled {
        let key = run + unit;
        let mut made = Array::<Four>::new(group);
        #[unroll]
        for at in 0..group {
            made[at] = Four::new(0.0f32);
        }
        if key <= filled {
            #[unroll]
            for at in 0..fours {
                let mut of_key = of_token[new_key + at];
                if key < filled {
                    of_key = keys[first_key + key * key_line + at];
                }
                #[unroll]
                for query in 0..group {
                    made[query] = fma(of_token[query * fours + at], of_key, made[query]);
                }
            }
        }
        #[unroll]
        for query in 0..group {
            let four = made[query];
            let mut score = (four.extract(0usize) + four.extract(1usize))
                + (four.extract(2usize) + four.extract(3usize));
            if key > filled {
                score = f32::new(LOWEST);
            }
            scores[comptime!(query * UNITS) + unit] = score;
        }
        sync_cube();
        if softened < group {
            let mut largest = f32::new(LOWEST);
            #[unroll]
            for at in 0..comptime!(UNITS / of_head) {
                let score = scores[softened * UNITS + helper + comptime!(at * of_head)];
                if score > largest {
                    largest = score;
                }
            }
            partial[unit] = largest;
        }
        sync_cube();
        if softened < group {
            let before = most;
            #[unroll]
            for at in 0..of_head {
                let largest = partial[softened * of_head + at];
                if largest > most {
                    most = largest;
                }
            }
            let rescale = (before - most).exp();
            let mut powers = 0.0f32;
            #[unroll]
            for at in 0..comptime!(UNITS / of_head) {
                let place = helper + comptime!(at * of_head);
                let mut power = 0.0f32;
                if run + place <= filled {
                    power = (scores[softened * UNITS + place] - most).exp();
                }
                scores[softened * UNITS + place] = power;
                powers += power;
            }
            partial_sums[unit] = powers;
            sum *= rescale;
            if helper == 0 {
                rescales[softened] = rescale;
            }
        }
        sync_cube();
        if softened < group {
            #[unroll]
            for at in 0..of_head {
                sum += partial_sums[softened * of_head + at];
            }
        }
        #[unroll]
        for query in 0..group {
            found[query] *= Four::new(rescales[query]);
        }
        let mut at = lane;
        while at < UNITS && run + at <= filled {
            let mut value = of_token[new_value + four];
            if run + at < filled {
                value = values[first_value + (run + at) * value_line + four];
            }
            #[unroll]
            for query in 0..group {
                let power = scores[comptime!(query * UNITS) + at];
                found[query] = fma(Four::new(power), value, found[query]);
            }
            at += lanes;
        }
        sync_cube();
        run += UNITS;
    }
    if softened < group && helper == 0 {
        sums[softened] = sum;
    }
    let mut of_lanes = Shared::<[Four]>::new_slice(UNITS);
    #[unroll]
    for query in 0..group {
        of_lanes[unit] = found[query];
        sync_cube();
        if unit < fours {
            let mut total = Four::new(0.0f32);
            #[unroll]
            for lane in 0..lanes {
                total += of_lanes[lane * fours + unit];
            }
            let row = sequence * heads + own * group + query;
            out[row * fours + unit] = total / Four::new(sums[query]);
        }
        sync_cube();
    }
}

/// What each token gets: `[sequences, heads · each]`.
pub(super) fn forward(given: Given, how: AppendedAttention, head: Head) -> CubeTensor {
    let Given { mixed, keys, values, rotation, norms, places } = given;
    let sequences = mixed.meta.shape()[0] / how.parts;
    let kv_heads = keys.meta.shape()[1];
    let (key_place, value_place) = (place(&keys), place(&values));
    let tables = rotation.as_ref().map_or(1, |(cos, _)| cos.meta.shape()[0]);
    let (cos, sin) = rotation.unwrap_or_else(|| (mixed.clone(), mixed.clone()));
    let (q_gamma, k_gamma) = norms.unwrap_or_else(|| (mixed.clone(), mixed.clone()));
    let out = empty(&mixed, Shape::new([sequences, how.heads * head.each]));
    let client = mixed.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let count = calculate_cube_count_elemwise(&client, sequences * kv_heads * UNITS, dim);
    attend_groups::launch(
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
        kv_heads as u32,
        key_place,
        value_place,
        tables as u32,
        how.scale as f32,
        how.epsilon as f32,
        how.heads / kv_heads,
        head,
    );
    out
}
