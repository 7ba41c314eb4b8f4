//! Sums and maxima within a cube, and sums of columns over many rows.
//!
//! A sum within a cube is a tree over the units in shared memory, which every device has; what is added to what depends on
//! the shapes alone, so the same inputs give the same bits. Column sums are made in two launches: partial sums of bands of
//! rows, and the sums of those.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::launch::{elements, empty, part};
use crate::packed::padded;

/// The sum over all units of a cube, given to each of them. `units` is the size of the cube and a power of two.
#[cube]
pub(super) fn sum_of_units(value: f32, #[comptime] units: usize) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let at = UNIT_POS as usize;
    shared[at] = value;
    sync_cube();
    let mut step = 1usize;
    while step < units {
        let to = at * 2 * step;
        if to < units {
            let right = shared[to + step];
            shared[to] += right;
        }
        sync_cube();
        step *= 2;
    }
    shared[0]
}

/// The largest value over all units of a cube, given to each of them; values that are not numbers are passed over.
#[cube]
pub(super) fn maximum_of_units(value: f32, #[comptime] units: usize) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let at = UNIT_POS as usize;
    shared[at] = value;
    sync_cube();
    let mut step = 1usize;
    while step < units {
        let to = at * 2 * step;
        if to < units {
            let right = shared[to + step];
            if right > shared[to] {
                shared[to] = right;
            }
        }
        sync_cube();
        step *= 2;
    }
    shared[0]
}

/// Rows that one unit adds up before its sum becomes a partial one.
pub(super) fn rows_per_band(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(16).clamp(1, 256)).max(1)
}

#[cube(launch)]
fn band_sums(x: &[f32], partial: &mut [f32], rows: u32, width: u32, band: u32) {
    let (rows, width, band) = (rows as usize, width as usize, band as usize);
    let column = ABSOLUTE_POS % width;
    let first = ABSOLUTE_POS / width * band;
    if ABSOLUTE_POS < partial.len() {
        let mut sum = 0.0f32;
        for row in first..first + band {
            if row < rows {
                sum += x[row * width + column];
            }
        }
        partial[ABSOLUTE_POS] = sum;
    }
}

#[cube(launch)]
fn total_of_bands(partial: &[f32], total: &mut [f32], bands: u32, width: u32) {
    let width = width as usize;
    if ABSOLUTE_POS < width {
        let mut sum = 0.0f32;
        for band in 0..bands as usize {
            sum += partial[band * width + ABSOLUTE_POS];
        }
        total[ABSOLUTE_POS] = sum;
    }
}

/// Columns that a cube of [`total_of_many_bands`] takes, and units that share a column.
const COLUMNS: usize = 32;
const SHARERS: usize = 8;

/// The same for many bands of few columns: units share a column.
#[cube(launch)]
fn total_of_many_bands(partial: &[f32], total: &mut [f32], bands: u32, width: u32) {
    let width = width as usize;
    let (unit, bands) = (UNIT_POS as usize, bands as usize);
    let column = CUBE_POS * COLUMNS + unit % COLUMNS;
    let mut shared = Shared::<[f32]>::new_slice(COLUMNS * SHARERS);
    let mut sum = 0.0f32;
    if column < width {
        let mut band = unit / COLUMNS;
        while band < bands {
            sum += partial[band * width + column];
            band += SHARERS;
        }
    }
    shared[unit] = sum;
    sync_cube();
    if unit < COLUMNS && column < width {
        let mut sum = 0.0f32;
        #[unroll]
        for lane in 0..SHARERS {
            sum += shared[lane * COLUMNS + unit];
        }
        total[column] = sum;
    }
}

/// The sum of partial sums `[bands, width]` over the bands.
pub(super) fn total(partial: CubeTensor) -> CubeTensor {
    let (bands, width) = (partial.meta.shape()[0], partial.meta.shape()[1]);
    let out = empty(&partial, Shape::new([width]));
    let client = partial.client.clone();
    let (count, dim) = elements(&client, width);
    let args = (partial.into_buffer_arg(), out.clone().into_buffer_arg());
    if bands > 2 * SHARERS {
        let dim = CubeDim::new_1d((COLUMNS * SHARERS) as u32);
        let cubes = width.div_ceil(COLUMNS) * COLUMNS * SHARERS;
        let count = calculate_cube_count_elemwise(&client, cubes, dim);
        total_of_many_bands::launch(
            &client,
            count,
            dim,
            args.0,
            args.1,
            bands as u32,
            width as u32,
        );
    } else {
        total_of_bands::launch(&client, count, dim, args.0, args.1, bands as u32, width as u32);
    }
    out
}

/// The sums over the bands of two kinds of partial sums, which lie one behind the other in a line, each with room for
/// [`padded`] numbers: so that both are views of one tensor, and made in one launch.
pub(super) fn totals(partial: CubeTensor, width: usize) -> [CubeTensor; 2] {
    let sums = total(partial);
    [0, padded(width)].map(|first| part(sums.clone(), first, width))
}

/// The sum of each column of a contiguous matrix.
pub(super) fn column_sums(x: CubeTensor) -> CubeTensor {
    let (rows, width) = (x.meta.shape()[0], x.meta.shape()[1]);
    let band = rows_per_band(rows);
    let bands = rows.div_ceil(band).max(1);
    let partial = empty(&x, Shape::new([bands, width]));
    let (count, dim) = elements(&x.client, bands * width);
    let client = x.client.clone();
    let args = (x.into_buffer_arg(), partial.clone().into_buffer_arg());
    band_sums::launch(&client, count, dim, args.0, args.1, rows as u32, width as u32, band as u32);
    total(partial)
}
