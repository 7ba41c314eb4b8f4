//! Root-mean-square normalisation on Cube devices: a cube for each row.

use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::{empty_in, row_cubes};
use super::product::dtype_of;
use super::rows::squares_of_row;

#[cube(launch)]
fn rms_of_rows<O: Float>(
    x: &[f32],
    gamma: &[f32],
    out: &mut [O],
    rows: u32,
    width: u32,
    epsilon: f32,
    #[comptime] units: usize,
    #[define(O)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    let width = width as usize;
    if row >= rows as usize {
        terminate!();
    }
    let first = row * width;
    let mean = squares_of_row(x, first, width, 0.0f32, units) / f32::cast_from(width as u32);
    let deviation = (mean + epsilon).sqrt();
    let mut at = UNIT_POS as usize;
    while at < width {
        out[first + at] = O::cast_from(x[first + at] / deviation * gamma[at]);
        at += units;
    }
}

/// Each row over its root mean square, times gamma. The last dimension of `x` is that of gamma.
pub(super) fn forward(x: CubeTensor, gamma: CubeTensor, epsilon: f64) -> CubeTensor {
    forward_in(x, gamma, epsilon, FloatKind::F32)
}

/// The same, rounded to another type.
pub(super) fn forward_in(
    x: CubeTensor,
    gamma: CubeTensor,
    epsilon: f64,
    kind: FloatKind,
) -> CubeTensor {
    let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
    let width = gamma.meta.shape()[0];
    let rows = x.meta.num_elements() / width.max(1);
    let out = empty_in(&x, x.meta.shape().clone(), dtype_of(kind));
    let client = x.client.clone();
    let (count, dim, units) = row_cubes(&client, rows, width);
    let args = (x.into_buffer_arg(), gamma.into_buffer_arg(), out.clone().into_buffer_arg());
    rms_of_rows::launch(
        &client,
        count,
        dim,
        args.0,
        args.1,
        args.2,
        rows as u32,
        width as u32,
        epsilon as f32,
        units,
        ElemType::Float(kind),
    );
    out
}
