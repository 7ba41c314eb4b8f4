//! The gradient of an embedding's table on Cube devices.
//!
//! Each token has a cube for each run of columns. The cubes of a token that no earlier one equals add up the gradients of all tokens like it, in their
//! order; the others have nothing to do. So no two cubes write to the same place, and the same inputs give the same bits.

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::row_cubes;
use super::reduce::sum_of_units;

/// Tokens that a unit looks at together.
const READS: usize = 8;

#[cube(launch)]
fn table_gradient(
    ids: &[i32],
    gradient: &[f32],
    out: &mut [f32],
    count: u32,
    width: u32,
    runs: u32,
    rows: u32,
    line: u32,
    #[comptime] units: usize,
) {
    let (count, width, runs) = (count as usize, width as usize, runs as usize);
    let token = CUBE_POS / runs;
    if token >= count {
        terminate!();
    }
    let id = ids[token];
    let mut earlier = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < token {
        if ids[at] == id {
            earlier += 1.0f32;
        }
        at += units;
    }
    let earlier = sum_of_units(earlier, units);
    let row = id as usize;
    if earlier == 0.0f32 && row < rows as usize {
        let column = CUBE_POS % runs * units + UNIT_POS as usize;
        if column < width {
            let mut sum = 0.0f32;
            let mut first = token;
            while first < count {
                // Several at once, so that a unit does not wait for one after the other.
                let mut some = Array::<i32>::new(READS);
                #[unroll]
                for at in 0..READS {
                    some[at] = ids[(first + at).min(count - 1)];
                }
                #[unroll]
                for at in 0..READS {
                    if some[at] == id && first + at < count {
                        sum += gradient[(first + at) * width + column];
                    }
                }
                first += READS;
            }
            out[row * line as usize + column] = sum;
        }
    }
}

/// The gradient by a table of `rows` rows.
pub(super) fn gradient(ids: CubeTensor, gradient: CubeTensor, rows: usize) -> CubeTensor {
    let (ids, gradient) = (into_contiguous(ids), into_contiguous(gradient));
    let (count, width) = (gradient.meta.shape()[0], gradient.meta.shape()[1]);
    let client = gradient.client.clone();
    let shape = Shape::new([rows, width]);
    let out = zeros_client(client.clone(), gradient.device.clone(), shape, DType::F32);
    // CUDA may have the rows of what Burn makes further apart than they have to be.
    let line = out.meta.strides()[0];
    let (_, _, units) = row_cubes(&client, count, width);
    let runs = width.div_ceil(units);
    let (cubes, dim, _) = row_cubes(&client, count * runs, width);
    table_gradient::launch(
        &client,
        cubes,
        dim,
        ids.into_buffer_arg(),
        gradient.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        count as u32,
        width as u32,
        runs as u32,
        rows as u32,
        line as u32,
        units,
    );
    out
}
