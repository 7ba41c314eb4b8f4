//! Products of a matrix with a few columns on Cube devices: what decoding does with every weight of a model for every token.
//!
//! Each row of the matrix has [`LANES`] units, which read it in fours, multiply it with every column and add up in f32. The matrix
//! is read once, as it is: in f32, f16 or bf16. The columns are rounded to its dtype, as other products have them.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::empty;

/// Columns at most: with more, a tile of a general product is filled better.
const MOST: usize = 8;
/// Units that share a row.
const LANES: usize = 32;
/// Units of a cube.
const UNITS: usize = 128;

/// The columns lie one after another, and so do those of the result.
#[cube(launch)]
fn rows_by_columns<W: Float>(
    matrix: &[Vector<W, Const<4>>],
    x: &[Vector<f32, Const<4>>],
    out: &mut [f32],
    rows: u32,
    fours: u32,
    line: u32,
    #[comptime] columns: usize,
    #[define(W)] _dtype: ElemType,
) {
    let (rows, fours, line) = (rows as usize, fours as usize, line as usize);
    let unit = UNIT_POS as usize;
    let (lane, of_cube) = (unit % LANES, unit / LANES);
    let first_row = CUBE_POS * (UNITS / LANES);
    // Rows beyond the last are read as the last, and not written.
    let row = (first_row + of_cube).min(rows - 1);
    let mut sums = Array::<Vector<f32, Const<4>>>::new(columns);
    let mut at = lane;
    while at + 3 * LANES < fours {
        let mut read = Array::<Vector<W, Const<4>>>::new(4usize);
        #[unroll]
        for step in 0..4usize {
            read[step] = matrix[row * line + at + step * LANES];
        }
        #[unroll]
        for step in 0..4usize {
            let weight = Vector::<f32, Const<4>>::cast_from(read[step]);
            #[unroll]
            for column in 0..columns {
                let rounded =
                    Vector::<W, Const<4>>::cast_from(x[column * fours + at + step * LANES]);
                sums[column] += weight * Vector::<f32, Const<4>>::cast_from(rounded);
            }
        }
        at += 4 * LANES;
    }
    while at < fours {
        let weight = Vector::<f32, Const<4>>::cast_from(matrix[row * line + at]);
        #[unroll]
        for column in 0..columns {
            let rounded = Vector::<W, Const<4>>::cast_from(x[column * fours + at]);
            sums[column] += weight * Vector::<f32, Const<4>>::cast_from(rounded);
        }
        at += LANES;
    }
    let mut partial = Shared::<[f32]>::new_slice(UNITS * columns);
    #[unroll]
    for column in 0..columns {
        let four = sums[column];
        partial[column * UNITS + unit] = (four.extract(0usize) + four.extract(1usize))
            + (four.extract(2usize) + four.extract(3usize));
    }
    sync_cube();
    // One unit for each row of the cube and each column.
    if unit < UNITS / LANES * columns {
        let (column, of_cube) = (unit / (UNITS / LANES), unit % (UNITS / LANES));
        let mut sum = 0.0f32;
        for lane in 0..LANES {
            sum += partial[column * UNITS + of_cube * LANES + lane];
        }
        if first_row + of_cube < rows {
            out[column * rows + first_row + of_cube] = sum;
        }
    }
}

/// `matrix · x` in f32, `[rows, columns]`. None unless the matrix lies row by row in a dtype of the kernel, in fours, and `x` has few
/// columns.
pub(super) fn product(matrix: &CubeTensor, x: &CubeTensor) -> Option<CubeTensor> {
    let kind = match matrix.dtype {
        DType::F32 => FloatKind::F32,
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => return None,
    };
    let (rows, width) = (matrix.meta.shape()[0], matrix.meta.shape()[1]);
    let columns = x.meta.shape()[1];
    // A row may be followed by padding.
    let (line, step) = (matrix.meta.strides()[0], matrix.meta.strides()[1]);
    let in_rows = step == 1 && line.is_multiple_of(4) && !matrix.meta.is_tiled();
    let fits = (1..=MOST).contains(&columns) && width.is_multiple_of(4) && rows * width > 0;
    if !(in_rows && fits) || x.dtype != DType::F32 {
        return None;
    }
    let turned =
        |tensor| <CubeBackend as FloatTensorOps<CubeBackend>>::float_swap_dims(tensor, 0, 1);
    let x = into_contiguous(turned(x.clone()));
    let out = empty(&x, Shape::new([columns, rows]));
    let client = x.client.clone();
    let dim = CubeDim::new_1d(UNITS as u32);
    let count = calculate_cube_count_elemwise(&client, rows * LANES, dim);
    rows_by_columns::launch(
        &client,
        count,
        dim,
        matrix.clone().into_buffer_arg(),
        x.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        rows as u32,
        (width / 4) as u32,
        (line / 4) as u32,
        columns,
        ElemType::Float(kind),
    );
    Some(turned(out))
}
