//! What all launches share: how many cubes of how many units, new tensors beside given ones, and parts of tensors.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::*;

/// Units of a cube where each takes one number. Every device has at least as many.
const UNITS: u32 = 256;

/// Cubes for a kernel in which each unit takes one of `count` numbers.
pub(super) fn elements(client: &Client, count: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(UNITS);
    (calculate_cube_count_elemwise(client, count, dim), dim)
}

/// Cubes for a kernel in which each cube takes one row of `width` numbers; and their number of units, a power of two.
pub(super) fn row_cubes(client: &Client, rows: usize, width: usize) -> (CubeCount, CubeDim, usize) {
    let units = width.div_ceil(4).next_power_of_two().clamp(32, UNITS as usize);
    let dim = CubeDim::new_1d(units as u32);
    (calculate_cube_count_elemwise(client, rows * units, dim), dim, units)
}

/// A contiguous tensor of this shape in f32, not yet written, on the device of `like`.
pub(super) fn empty(like: &CubeTensor, shape: Shape) -> CubeTensor {
    empty_in(like, shape, DType::F32)
}

/// The same in another dtype.
pub(super) fn empty_in(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, dtype)
}

/// Matrices with rows for columns: a view, the last two dimensions of a tensor being exchanged.
pub(super) fn turned(matrices: CubeTensor) -> CubeTensor {
    <CubeBackend as FloatTensorOps<CubeBackend>>::float_transpose(matrices)
}

/// The `length` numbers of a flat tensor from `start` on: where they are, if a view may begin there. Burn's views must also end where another
/// may begin, and are copied else.
pub(super) fn part(whole: CubeTensor, start: usize, length: usize) -> CubeTensor {
    let bytes = |count: usize| (count * whole.dtype.size()) as u64;
    let used = whole.handle.size_in_used();
    let (first, end) = (bytes(start), bytes(start + length));
    let may_begin = first.is_multiple_of(whole.client.properties().memory.alignment);
    let is_flat = whole.meta.strides().len() == 1 && whole.meta.strides()[0] == 1;
    if !may_begin || !is_flat || length == 0 || end > used {
        let range = start..start + length;
        return burn_cubecl::kernel::slice(whole, std::slice::from_ref(&range));
    }
    let handle = whole.handle.clone().offset_start(first).offset_end(used - end);
    let shape = Shape::new([length]);
    CubeTensor::new_contiguous(
        whole.client.clone(),
        whole.device.clone(),
        shape,
        handle,
        whole.dtype,
    )
}
