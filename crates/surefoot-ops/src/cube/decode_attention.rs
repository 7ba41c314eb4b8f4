//! Attention of single tokens to a cache on Cube devices, in one launch and without a matrix of scores.
//!
//! Each query of each head has a cube, which goes over the keys in runs: the units make the scores of a run, and then each adds
//! up its dimension of the values. Softmax is kept as a running maximum and sum. The cache is read where it is.

use burn_cubecl::cubecl;
use burn_cubecl::kernel::{into_contiguous, untile};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::launch::empty;
use super::reduce::{maximum_of_units, sum_of_units};
use super::rows::LOWEST;

/// Units of a cube; heads may have as many dimensions.
pub(crate) const UNITS: usize = 128;

/// `query` is `[batch, heads, count, each]`, keys and values `[batch, kv_heads, seen, each]`; all queries see all keys.
#[cube(launch)]
fn attend_to_cache(
    query: &[f32],
    keys: &Tensor<f32>,
    values: &Tensor<f32>,
    out: &mut [f32],
    heads: u32,
    count: u32,
    scale: f32,
    #[comptime] each: usize,
) {
    let (heads, count) = (heads as usize, count as usize);
    let row = CUBE_POS;
    if row >= out.len() / each {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let head = row / count % heads;
    let sample = row / (count * heads);
    let of_group = head / (heads / keys.shape(1));
    let seen = keys.shape(2);
    let first_key = sample * keys.stride(0) + of_group * keys.stride(1);
    let first_value = sample * values.stride(0) + of_group * values.stride(1);
    let mut own = Shared::<[f32]>::new_slice(each);
    let mut powers = Shared::<[f32]>::new_slice(UNITS);
    if unit < each {
        own[unit] = query[row * each + unit] * scale;
    }
    sync_cube();
    let mut most = f32::new(LOWEST);
    let mut sum = 0.0f32;
    let mut found = 0.0f32;
    let mut start = 0usize;
    while start < seen {
        let key = start + unit;
        let mut score = f32::new(LOWEST);
        if key < seen {
            score = 0.0f32;
            let from = first_key + key * keys.stride(2);
            for at in 0..each {
                score += own[at] * keys[from + at * keys.stride(3)];
            }
        }
        let before = most;
        let of_run = maximum_of_units(score, UNITS);
        if of_run > most {
            most = of_run;
        }
        let mut power = 0.0f32;
        if key < seen {
            power = (score - most).exp();
        }
        powers[unit] = power;
        let rescale = (before - most).exp();
        // With a barrier inside, after which all powers can be read.
        sum = sum * rescale + sum_of_units(power, UNITS);
        if unit < each {
            found *= rescale;
            for at in 0..UNITS {
                if start + at < seen {
                    let from = first_value + (start + at) * values.stride(2);
                    found += powers[at] * values[from + unit * values.stride(3)];
                }
            }
        }
        sync_cube();
        start += UNITS;
    }
    if unit < each {
        out[row * each + unit] = found / sum;
    }
}

/// What each query gets: `[batch, heads, count, each]`.
pub(super) fn forward(
    query: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    scale: f64,
) -> CubeTensor {
    let (query, keys, values) = (into_contiguous(query), untile(keys), untile(values));
    let shape = query.meta.shape().clone();
    let [batch, heads, count, each] = [shape[0], shape[1], shape[2], shape[3]];
    let out = empty(&query, shape);
    let client = query.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let cubes = calculate_cube_count_elemwise(&client, batch * heads * count * UNITS, dim);
    attend_to_cache::launch(
        &client,
        cubes,
        dim,
        query.into_buffer_arg(),
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        out.clone().into_buffer_arg(),
        heads as u32,
        count as u32,
        scale as f32,
        each,
    );
    out
}
