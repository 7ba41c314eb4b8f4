//! Group normalisation on Cube devices: a cube for each group of each sample, with the residual and ReLU in the same launch.
//!
//! The backward pass has one launch for ReLU, one for the gradient by x with each sample's sums over its channels, and one that adds
//! up those of all samples.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty, row_cubes};
use super::reduce::{sum_of_units, totals};
use super::rows::{squares_of_row, sum_of_row};
use crate::packed::padded;

/// ReLU, which lets through what is not a number.
#[cube]
fn cut(y: f32) -> f32 {
    let mut found = y;
    if y < 0.0f32 {
        found = 0.0f32;
    }
    found
}

/// `channel` is how many numbers a channel has, `each` how many channels a group has, `channels` how many there are. Without a residual, `around` is not read.
#[cube(launch)]
fn normalise_groups(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    around: &[f32],
    out: &mut [f32],
    stats: &mut [f32],
    channel: u32,
    each: u32,
    channels: u32,
    epsilon: f32,
    #[comptime] is_around: bool,
    #[comptime] relu: bool,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= stats.len() / 2 {
        terminate!();
    }
    let (channel, each) = (channel as usize, each as usize);
    let size = channel * each;
    let first = row * size;
    let first_channel = row % (channels as usize / each) * each;
    let count = f32::cast_from(size as u32);
    let mean = sum_of_row(x, first, size, units) / count;
    let squares = squares_of_row(x, first, size, mean, units);
    let inverse = 1.0f32 / (squares / count + epsilon).sqrt();
    let mut at = UNIT_POS as usize;
    while at < size {
        let number = first_channel + at / channel;
        let mut y = (x[first + at] - mean) * inverse * gamma[number] + beta[number];
        if comptime!(is_around) {
            y += around[first + at];
        }
        if comptime!(relu) {
            y = cut(y);
        }
        out[first + at] = y;
        at += units;
    }
    if UNIT_POS == 0 {
        stats[2 * row] = mean;
        stats[2 * row + 1] = inverse;
    }
}

/// The gradient where ReLU let a number through, and 0 elsewhere.
#[cube(launch)]
fn through_relu(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    around: &[f32],
    stats: &[f32],
    gradient: &[f32],
    out: &mut [f32],
    channel: u32,
    each: u32,
    channels: u32,
    #[comptime] is_around: bool,
) {
    let at = ABSOLUTE_POS;
    if at < out.len() {
        let (channel, each) = (channel as usize, each as usize);
        let number = at / channel % channels as usize;
        let group = at / (channel * each);
        let normal = (x[at] - stats[2 * group]) * stats[2 * group + 1];
        let mut y = normal * gamma[number] + beta[number];
        if comptime!(is_around) {
            y += around[at];
        }
        let mut found = 0.0f32;
        if y > 0.0f32 {
            found = gradient[at];
        }
        out[at] = found;
    }
}

/// The gradient by x, and each sample's part of those by gamma and beta: one behind the other, each in `room` numbers.
#[cube(launch)]
fn gradient_of_groups(
    x: &[f32],
    gamma: &[f32],
    stats: &[f32],
    gradient: &[f32],
    of_x: &mut [f32],
    partial: &mut [f32],
    channel: u32,
    each: u32,
    channels: u32,
    room: u32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= stats.len() / 2 {
        terminate!();
    }
    let (channel, each) = (channel as usize, each as usize);
    let size = channel * each;
    let first = row * size;
    let (groups, room) = (channels as usize / each, room as usize);
    let first_channel = row % groups * each;
    let first_part = row / groups * 2 * room + first_channel;
    let (mean, inverse) = (stats[2 * row], stats[2 * row + 1]);
    let mut shift = 0.0f32;
    let mut slope = 0.0f32;
    for number in 0..each {
        let start = first + number * channel;
        let mut sum = 0.0f32;
        let mut product = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < channel {
            let found = gradient[start + at];
            sum += found;
            product += found * (x[start + at] - mean) * inverse;
            at += units;
        }
        let sum = sum_of_units(sum, units);
        let product = sum_of_units(product, units);
        let scale = gamma[first_channel + number];
        shift += scale * sum;
        slope += scale * product;
        if UNIT_POS == 0 {
            partial[first_part + number] = product;
            partial[first_part + room + number] = sum;
        }
        // The sums are read by all before the next channel's are made in their place.
        sync_cube();
    }
    let count = f32::cast_from(size as u32);
    shift /= count;
    slope /= count;
    let mut at = UNIT_POS as usize;
    while at < size {
        let normal = (x[first + at] - mean) * inverse;
        let scaled = gradient[first + at] * gamma[first_channel + at / channel];
        of_x[first + at] = inverse * (scaled - shift - normal * slope);
        at += units;
    }
}

/// How many numbers a channel has, how many channels a group, and how many groups there are in all samples.
fn sizes(x: &CubeTensor, groups: usize) -> (usize, usize, usize) {
    let shape = x.meta.shape();
    (shape[2] * shape[3], shape[1] / groups, shape[0] * groups)
}

/// The result, and for each group its mean and the inverse of its deviation.
pub(super) fn forward(
    inputs: [CubeTensor; 3],
    around: Option<CubeTensor>,
    groups: usize,
    epsilon: f64,
    relu: bool,
) -> (CubeTensor, CubeTensor) {
    let [x, gamma, beta] = inputs.map(into_contiguous);
    let is_around = around.is_some();
    let around = around.map_or_else(|| x.clone(), into_contiguous);
    let (channel, each, rows) = sizes(&x, groups);
    let channels = x.meta.shape()[1];
    let out = empty(&x, x.meta.shape().clone());
    let stats = empty(&x, Shape::new([rows, 2]));
    let client = x.client.clone();
    let (count, dim, units) = row_cubes(&client, rows, channel * each);
    normalise_groups::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        gamma.into_buffer_arg(),
        beta.into_buffer_arg(),
        around.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        stats.clone().into_buffer_arg(),
        channel as u32,
        each as u32,
        channels as u32,
        epsilon as f32,
        is_around,
        relu,
        units,
    );
    (out, stats)
}

/// The gradient before ReLU.
pub(super) fn before_relu(
    inputs: [CubeTensor; 3],
    around: Option<CubeTensor>,
    stats: CubeTensor,
    gradient: CubeTensor,
    groups: usize,
) -> CubeTensor {
    let [x, gamma, beta] = inputs.map(into_contiguous);
    let is_around = around.is_some();
    let around = around.map_or_else(|| x.clone(), into_contiguous);
    let gradient = into_contiguous(gradient);
    let (channel, each, _) = sizes(&x, groups);
    let channels = x.meta.shape()[1];
    let out = empty(&x, x.meta.shape().clone());
    let client = x.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    through_relu::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        gamma.into_buffer_arg(),
        beta.into_buffer_arg(),
        around.into_buffer_arg(),
        stats.into_buffer_arg(),
        gradient.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        channel as u32,
        each as u32,
        channels as u32,
        is_around,
    );
    out
}

/// The gradients by x, gamma and beta, given the one before ReLU.
pub(super) fn backward(
    x: CubeTensor,
    gamma: CubeTensor,
    stats: CubeTensor,
    gradient: CubeTensor,
    groups: usize,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [x, gamma, gradient] = [x, gamma, gradient].map(into_contiguous);
    let (channel, each, rows) = sizes(&x, groups);
    let shape = x.meta.shape();
    let channels = shape[1];
    let of_x = empty(&x, shape.clone());
    let room = padded(channels);
    let partial = empty(&x, Shape::new([shape[0], 2 * room]));
    let client = x.client.clone();
    let (count, dim, units) = row_cubes(&client, rows, channel);
    gradient_of_groups::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        gamma.into_buffer_arg(),
        stats.into_buffer_arg(),
        gradient.into_buffer_arg(),
        of_x.clone().into_buffer_arg(),
        partial.clone().into_buffer_arg(),
        channel as u32,
        each as u32,
        channels as u32,
        room as u32,
        units,
    );
    let [of_gamma, of_beta] = totals(partial, channels);
    (of_x, of_gamma, of_beta)
}
