//! Sums and maxima over the units of a cube, by plane instructions where planes have [`LANES`] units, and by shared memory elsewhere.
//!
//! What is added to what depends on the size of the cube and on whether there are planes, so the same inputs give the same bits on
//! one device. Every unit of the cube has to call them, since they have barriers inside.

use burn_cubecl::cubecl;
use cubecl::client::Client;
use cubecl::ir::features::Plane;
use cubecl::prelude::*;

use super::reduce::{maximum_of_units, sum_of_units};

/// Units of a plane, where planes are used.
pub(super) const LANES: usize = 32;

/// Whether planes have [`LANES`] units and can add up.
pub(super) fn has_planes(client: &Client) -> bool {
    let (properties, lanes) = (client.properties(), LANES as u32);
    let sizes = (properties.hardware.plane_size_min, properties.hardware.plane_size_max);
    sizes == (lanes, lanes) && properties.features.plane.contains(Plane::Ops)
}

/// The sum over all units of the cube, given to each of them. `units` is the size of the cube, a power of two of at least [`LANES`].
#[cube]
pub(super) fn sum_of_cube(value: f32, #[comptime] units: usize, #[comptime] planes: bool) -> f32 {
    let mut sum = 0.0f32;
    if comptime!(planes) {
        let mut of_planes = Shared::<[f32]>::new_slice(comptime!(units / LANES));
        let of_plane = plane_sum(value);
        if UNIT_POS as usize % LANES == 0 {
            of_planes[UNIT_POS as usize / LANES] = of_plane;
        }
        sync_cube();
        #[unroll]
        for plane in 0..comptime!(units / LANES) {
            sum += of_planes[plane];
        }
    } else {
        sum = sum_of_units(value, units);
    }
    sum
}

/// The largest value over all units of the cube, given to each of them, under the same conditions.
#[cube]
pub(super) fn maximum_of_cube(
    value: f32,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) -> f32 {
    let mut most = value;
    if comptime!(planes) {
        let mut of_planes = Shared::<[f32]>::new_slice(comptime!(units / LANES));
        let of_plane = plane_max(value);
        if UNIT_POS as usize % LANES == 0 {
            of_planes[UNIT_POS as usize / LANES] = of_plane;
        }
        sync_cube();
        #[unroll]
        for plane in 0..comptime!(units / LANES) {
            let of_plane = of_planes[plane];
            if of_plane > most {
                most = of_plane;
            }
        }
    } else {
        most = maximum_of_units(value, units);
    }
    most
}
