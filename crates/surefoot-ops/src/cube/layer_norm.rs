//! Layer normalisation on Cube devices: a cube for each row.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty, row_cubes};
use super::reduce::{rows_per_band, sum_of_units, totals};
use super::rows::{squares_of_row, sum_of_row};
use crate::packed::padded;

#[cube(launch)]
fn normalise_rows(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    out: &mut [f32],
    stats: &mut [f32],
    width: u32,
    epsilon: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    let width = width as usize;
    if row >= stats.len() / 2 {
        terminate!();
    }
    let first = row * width;
    let count = f32::cast_from(width as u32);
    let mean = sum_of_row(x, first, width, units) / count;
    let squares = squares_of_row(x, first, width, mean, units);
    let inverse = 1.0f32 / (squares / count + epsilon).sqrt();
    let mut at = UNIT_POS as usize;
    while at < width {
        out[first + at] = (x[first + at] - mean) * inverse * gamma[at] + beta[at];
        at += units;
    }
    if UNIT_POS == 0 {
        stats[2 * row] = mean;
        stats[2 * row + 1] = inverse;
    }
}

#[cube(launch)]
fn gradient_of_rows(
    x: &[f32],
    gamma: &[f32],
    stats: &[f32],
    gradient: &[f32],
    of_x: &mut [f32],
    width: u32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    let width = width as usize;
    if row >= stats.len() / 2 {
        terminate!();
    }
    let first = row * width;
    let count = f32::cast_from(width as u32);
    let (mean, inverse) = (stats[2 * row], stats[2 * row + 1]);
    let mut sum = 0.0f32;
    let mut product = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < width {
        let scaled = gradient[first + at] * gamma[at];
        sum += scaled;
        product += scaled * (x[first + at] - mean) * inverse;
        at += units;
    }
    let shift = sum_of_units(sum, units) / count;
    let slope = sum_of_units(product, units) / count;
    let mut at = UNIT_POS as usize;
    while at < width {
        let normal = (x[first + at] - mean) * inverse;
        of_x[first + at] = inverse * (gradient[first + at] * gamma[at] - shift - normal * slope);
        at += units;
    }
}

/// Partial sums of the gradients by gamma and beta: a line of a band has one behind the other, each in `room` numbers.
#[cube(launch)]
fn gradient_of_scales(
    x: &[f32],
    stats: &[f32],
    gradient: &[f32],
    partial: &mut [f32],
    rows: u32,
    bands: u32,
    width: u32,
    room: u32,
    band: u32,
) {
    let (width, room, band) = (width as usize, room as usize, band as usize);
    let rows = rows as usize;
    if ABSOLUTE_POS < bands as usize * width {
        let column = ABSOLUTE_POS % width;
        let first = ABSOLUTE_POS / width * band;
        let mut gamma = 0.0f32;
        let mut beta = 0.0f32;
        for row in first..first + band {
            if row < rows {
                let slope = gradient[row * width + column];
                gamma += slope * (x[row * width + column] - stats[2 * row]) * stats[2 * row + 1];
                beta += slope;
            }
        }
        let place = ABSOLUTE_POS / width * 2 * room + column;
        partial[place] = gamma;
        partial[place + room] = beta;
    }
}

/// The result, and for each row its mean and the inverse of its deviation.
pub(super) fn forward(
    x: CubeTensor,
    gamma: CubeTensor,
    beta: CubeTensor,
    epsilon: f64,
) -> (CubeTensor, CubeTensor) {
    let (x, gamma, beta) = (into_contiguous(x), into_contiguous(gamma), into_contiguous(beta));
    let (rows, width) = (x.meta.shape()[0], x.meta.shape()[1]);
    let out = empty(&x, Shape::new([rows, width]));
    let stats = empty(&x, Shape::new([rows, 2]));
    let client = x.client.clone();
    let (count, dim, units) = row_cubes(&client, rows, width);
    normalise_rows::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        gamma.into_buffer_arg(),
        beta.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        stats.clone().into_buffer_arg(),
        width as u32,
        epsilon as f32,
        units,
    );
    (out, stats)
}

/// The gradients by x, gamma and beta.
pub(super) fn backward(
    x: CubeTensor,
    gamma: CubeTensor,
    stats: CubeTensor,
    gradient: CubeTensor,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
    let (stats, gradient) = (into_contiguous(stats), into_contiguous(gradient));
    let (rows, width) = (x.meta.shape()[0], x.meta.shape()[1]);
    let client = x.client.clone();
    let of_x = empty(&x, Shape::new([rows, width]));
    let (count, dim, units) = row_cubes(&client, rows, width);
    gradient_of_rows::launch(
        &client,
        count,
        dim,
        x.clone().into_buffer_arg(),
        gamma.into_buffer_arg(),
        stats.clone().into_buffer_arg(),
        gradient.clone().into_buffer_arg(),
        of_x.clone().into_buffer_arg(),
        width as u32,
        units,
    );
    let band = rows_per_band(rows);
    let bands = rows.div_ceil(band).max(1);
    let room = padded(width);
    let partial = empty(&x, Shape::new([bands, 2 * room]));
    let (count, dim) = elements(&client, bands * width);
    gradient_of_scales::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        stats.into_buffer_arg(),
        gradient.into_buffer_arg(),
        partial.clone().into_buffer_arg(),
        rows as u32,
        bands as u32,
        width as u32,
        room as u32,
        band as u32,
    );
    let [of_gamma, of_beta] = totals(partial, width);
    (of_x, of_gamma, of_beta)
}
