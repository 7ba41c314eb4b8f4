//! The largest number of each row of logits on Cube devices, which is all that greedy decoding needs of them, in one launch.
//!
//! A row is shared out among [`PARTS`] cubes. Each gives the largest of its numbers, the first place that has it, and how many of its
//! numbers are not finite; [`crate::first_largest`] puts them together on the host.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::launch::empty;
use super::reduce::sum_of_units;
use super::rows::LOWEST;

/// Cubes of a row.
const PARTS: usize = 16;
/// Units of a cube.
const UNITS: usize = 256;
/// The exponent of numbers that are not finite.
const NOT_FINITE: u32 = 0x7f80_0000;

#[cube(launch)]
fn largest_of_parts(logits: &[f32], out: &mut [f32], rows: u32, width: u32, factor: f32) {
    let (rows, width) = (rows as usize, width as usize);
    let (row, part) = (CUBE_POS / PARTS, CUBE_POS % PARTS);
    if row >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let of_part = (width + PARTS - 1) / PARTS;
    let first = part * of_part;
    let end = (first + of_part).min(width);
    let mut most = f32::new(LOWEST);
    let mut place = width as u32;
    let mut not_finite = 0.0f32;
    let mut at = first + unit;
    while at < end {
        let number = logits[row * width + at] * factor;
        // By its bits: compilers may take it that all numbers are finite.
        if u32::reinterpret(number) & NOT_FINITE == NOT_FINITE {
            not_finite += 1.0f32;
        } else if number > most {
            most = number;
            place = at as u32;
        }
        at += UNITS;
    }
    let mut numbers = Shared::<[f32]>::new_slice(UNITS);
    let mut places = Shared::<[u32]>::new_slice(UNITS);
    numbers[unit] = most;
    places[unit] = place;
    sync_cube();
    let mut step = (UNITS / 2).runtime();
    while step > 0 {
        if unit < step {
            let (number, place) = (numbers[unit + step], places[unit + step]);
            let is_first = number == numbers[unit] && place < places[unit];
            if number > numbers[unit] || is_first {
                numbers[unit] = number;
                places[unit] = place;
            }
        }
        sync_cube();
        step /= 2;
    }
    let count = sum_of_units(not_finite, UNITS);
    if unit == 0 {
        out[3 * CUBE_POS] = numbers[0];
        out[3 * CUBE_POS + 1] = f32::cast_from(places[0]);
        out[3 * CUBE_POS + 2] = count;
    }
}

/// Three numbers for each part of each row of `logits · factor`: `[rows, 3 · parts]`.
pub(super) fn forward(logits: CubeTensor, factor: f64) -> CubeTensor {
    let logits = into_contiguous(logits);
    let (rows, width) = (logits.meta.shape()[0], logits.meta.shape()[1]);
    let out = empty(&logits, Shape::new([rows, 3 * PARTS]));
    let client = logits.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let count = calculate_cube_count_elemwise(&client, rows * PARTS * UNITS, dim);
    largest_of_parts::launch(
        &client,
        count,
        dim,
        logits.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        rows as u32,
        width as u32,
        factor as f32,
    );
    out
}
