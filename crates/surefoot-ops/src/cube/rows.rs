//! What kernels with a cube for each row have in common: the units of the cube go over the row together, and each gets the result.
//!
//! `first` is where the row begins and `count` how many of its numbers are meant; `units` is the size of the cube.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::reduce::{maximum_of_units, sum_of_units};

/// Below every number of a row. WGSL has no literal for minus infinity.
pub(super) const LOWEST: f32 = -3.4e38;

/// The sum of a row.
#[cube]
pub(super) fn sum_of_row(x: &[f32], first: usize, count: usize, #[comptime] units: usize) -> f32 {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        sum += x[first + at];
        at += units;
    }
    sum_of_units(sum, units)
}

/// The sum of the squares of a row's numbers less `mean`.
#[cube]
pub(super) fn squares_of_row(
    x: &[f32],
    first: usize,
    count: usize,
    mean: f32,
    #[comptime] units: usize,
) -> f32 {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        let off = x[first + at] - mean;
        sum += off * off;
        at += units;
    }
    sum_of_units(sum, units)
}

/// The largest number of a row; what is not a number is passed over.
#[cube]
pub(super) fn maximum_of_row(
    x: &[f32],
    first: usize,
    count: usize,
    #[comptime] units: usize,
) -> f32 {
    let mut most = f32::new(LOWEST);
    let mut at = UNIT_POS as usize;
    while at < count {
        let number = x[first + at];
        if number > most {
            most = number;
        }
        at += units;
    }
    maximum_of_units(most, units)
}

/// The sum of `exp((x - most) · scale)` over a row.
#[cube]
pub(super) fn powers_of_row(
    x: &[f32],
    first: usize,
    count: usize,
    most: f32,
    scale: f32,
    #[comptime] units: usize,
) -> f32 {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        sum += ((x[first + at] - most) * scale).exp();
        at += units;
    }
    sum_of_units(sum, units)
}
