//! Products of matrices in f32 on Cube devices, by a kernel that needs no tuning.
//!
//! Burn's products choose among many kernels by trying them on the device, which takes minutes; untuned they reach a fraction
//! of it. The kernel here has two tiles, for sizes that training has: depths in multiples of [`kernel::DEPTH`], lines in
//! multiples of four. [`product`] leaves other sizes to Burn. An operand may lie anywhere in its tensor ([`Operand`]), so heads
//! of an attention are multiplied where they are.

mod kernel;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::empty;
use kernel::{DEPTH, NARROW, PlaceLaunch, ROWS, SizesLaunch, WIDE};

/// Rows and columns below which a tile would be mostly empty.
const LEAST: usize = 32;
/// Wide tiles read less, and leave a large GPU without work where there are fewer of them.
const ENOUGH_TILES: usize = 256;
/// Cubes that a device takes in each direction.
const MOST_CUBES: usize = 65_535;

/// A batch of matrices somewhere in a tensor: how many numbers it is from one line to the next, and from one matrix to the next
/// by the outer and by the inner dimension of the batch. The numbers of a line lie side by side.
#[derive(Clone)]
pub(super) struct Operand {
    pub(super) tensor: CubeTensor,
    pub(super) first: usize,
    pub(super) line: usize,
    pub(super) outer: usize,
    pub(super) inner: usize,
    /// Whether a line goes along the depth of the product: the left side's rows, the right side's columns.
    pub(super) along: bool,
}

impl Operand {
    /// The matrices in the last two dimensions of a tensor. None unless the numbers of its rows or of its columns lie side by
    /// side.
    fn of(tensor: CubeTensor, is_left: bool) -> Option<Self> {
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let rank = shape.len();
        if !(2..=4).contains(&rank) || tensor.qparams.is_some() || tensor.meta.is_tiled() {
            return None;
        }
        let (row, column) = (strides[rank - 2], strides[rank - 1]);
        let (line, by_row) = match (row, column) {
            (line, 1) => (line, true),
            (1, line) => (line, false),
            _ => return None,
        };
        let (outer, inner) = match rank {
            2 => (0, 0),
            3 => (strides[0], 0),
            _ => (strides[0], strides[1]),
        };
        Some(Self { tensor, first: 0, line, outer, inner, along: by_row == is_left })
    }

    /// Whether its numbers can be read in fours.
    fn is_in_fours(&self) -> bool {
        let places = [self.first, self.line, self.outer, self.inner];
        self.tensor.dtype() == DType::F32 && places.iter().all(|place| place.is_multiple_of(4))
    }

    fn place(&self) -> PlaceLaunch {
        let [first, line, outer, inner] =
            [self.first, self.line, self.outer, self.inner].map(|place| (place / 4) as u32);
        PlaceLaunch::new(first, line, outer, inner)
    }
}

/// The sizes of a product of batches.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    pub(super) outer: usize,
    pub(super) inner: usize,
}

impl Sizes {
    /// Whether the kernel takes a product of these sizes.
    pub(super) fn fit(self, left_along: bool) -> bool {
        let tiles = self.rows.div_ceil(ROWS).max(self.columns.div_ceil(NARROW));
        self.depth.is_multiple_of(DEPTH)
            && self.depth > 0
            && self.columns.is_multiple_of(4)
            && (left_along || self.rows.is_multiple_of(4))
            && self.rows.min(self.columns) >= LEAST
            && tiles.max(self.outer * self.inner) <= MOST_CUBES
    }

    fn launched(self) -> SizesLaunch {
        let [rows, columns, depth, count] =
            [self.rows, self.columns, self.depth, self.inner].map(|size| size as u32);
        SizesLaunch::new(rows, columns, depth, count)
    }

    /// Cubes, and the columns of their tiles.
    fn cubes(self) -> (CubeCount, CubeDim, usize) {
        let (down, batch) = (self.rows.div_ceil(ROWS), self.outer * self.inner);
        let wide = down * (self.columns / WIDE) * batch >= ENOUGH_TILES;
        let wide = if wide { WIDE } else { NARROW };
        let across = self.columns.div_ceil(wide);
        let count = CubeCount::Static(across as u32, down as u32, batch as u32);
        (count, CubeDim::new_1d(kernel::units(wide) as u32), wide)
    }
}

/// Writes `left · right` to where `out` says. The sizes must fit, and all be in fours.
pub(super) fn product_into(left: Operand, right: Operand, out: Operand, sizes: Sizes) {
    let client = out.tensor.client.clone();
    let (count, dim, wide) = sizes.cubes();
    let places = (left.place(), right.place(), out.place());
    let along = (left.along, right.along);
    kernel::tiles::launch(
        &client,
        count,
        dim,
        left.tensor.into_buffer_arg(),
        right.tensor.into_buffer_arg(),
        out.tensor.into_buffer_arg(),
        places.0,
        places.1,
        places.2,
        sizes.launched(),
        along.0,
        along.1,
        wide,
    );
}

/// Both sides and the sizes, if the kernel takes them.
fn taken(left: &CubeTensor, right: &CubeTensor) -> Option<(Operand, Operand, Sizes)> {
    let (of_left, of_right) = (left.meta.shape(), right.meta.shape());
    let rank = of_left.len();
    if rank != of_right.len() || rank < 2 || of_left[..rank - 2] != of_right[..rank - 2] {
        return None;
    }
    let (outer, inner) = match rank {
        2 => (1, 1),
        3 => (of_left[0], 1),
        _ => (of_left[0], of_left[1]),
    };
    let (rows, depth, columns) = (of_left[rank - 2], of_left[rank - 1], of_right[rank - 1]);
    let sizes = Sizes { rows, columns, depth, outer, inner };
    let left = Operand::of(left.clone(), true)?;
    let right = Operand::of(right.clone(), false)?;
    let fits = sizes.fit(left.along) && left.is_in_fours() && right.is_in_fours();
    fits.then_some((left, right, sizes))
}

/// `left · right`, of matrices or of batches of them.
pub(super) fn product(left: CubeTensor, right: CubeTensor) -> CubeTensor {
    let Some((of_left, of_right, sizes)) = taken(&left, &right) else {
        return <CubeBackend as FloatTensorOps<CubeBackend>>::float_matmul(left, right);
    };
    let mut shape: Vec<usize> = left.meta.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = sizes.columns;
    }
    let out = empty(&left, Shape::from(shape));
    let (line, matrix) = (sizes.columns, sizes.rows * sizes.columns);
    let place = Operand {
        tensor: out.clone(),
        first: 0,
        line,
        outer: matrix * sizes.inner,
        inner: matrix,
        along: true,
    };
    product_into(of_left, of_right, place, sizes);
    out
}

/// `left · right + bias` with a residual, in one launch. None if the kernel doesn't take them.
pub(super) fn product_and_bias(
    left: &CubeTensor,
    right: &CubeTensor,
    bias: &CubeTensor,
    around: Option<&CubeTensor>,
) -> Option<CubeTensor> {
    let (left, right, sizes) = taken(left, right).filter(|_| left.meta.shape().len() == 2)?;
    let out = empty(&left.tensor, Shape::new([sizes.rows, sizes.columns]));
    let client = out.client.clone();
    let (count, dim, wide) = sizes.cubes();
    let places = (left.place(), right.place());
    let along = (left.along, right.along);
    let (left, right) = (left.tensor.into_buffer_arg(), right.tensor.into_buffer_arg());
    let bias = into_contiguous(bias.clone()).into_buffer_arg();
    let to = out.clone().into_buffer_arg();
    match around {
        None => kernel::tiles_and_bias::launch(
            &client,
            count,
            dim,
            left,
            right,
            bias,
            to,
            places.0,
            places.1,
            sizes.launched(),
            along.0,
            along.1,
            wide,
        ),
        Some(around) => kernel::tiles_bias_and_residual::launch(
            &client,
            count,
            dim,
            left,
            right,
            bias,
            into_contiguous(around.clone()).into_buffer_arg(),
            to,
            places.0,
            places.1,
            sizes.launched(),
            along.0,
            along.1,
            wide,
        ),
    }
    Some(out)
}
