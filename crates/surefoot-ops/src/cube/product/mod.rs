//! Products of matrices in f32 on Cube devices, by a kernel that needs no tuning.
//!
//! Burn's products choose among many kernels by trying them on the device, which takes minutes; untuned they reach a fraction
//! of it. The kernel here has two tiles, for sizes that training has: depths in multiples of [`kernel::DEPTH`], lines in
//! multiples of four. [`product`] leaves other sizes to Burn. An operand may lie anywhere in its tensor ([`Operand`]), so heads
//! of an attention are multiplied where they are.
//!
//! Where the device has matrix units and the numbers may be rounded, to half precision ([`product_in`]) or to TF32
//! ([`crate::allow_tf32`]), another kernel multiplies on them (`matrix_units`).

mod kernel;
mod matrix_units;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::empty;
pub(super) use kernel::Four;
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
        places.iter().all(|place| place.is_multiple_of(4))
    }

    fn is_f32(&self) -> bool {
        self.tensor.dtype() == DType::F32
    }

    /// The type of its numbers, if it is one that [`matrix_units`] reads.
    fn element(&self) -> Option<ElemType> {
        float_kind(self.tensor.dtype()).map(ElemType::Float)
    }

    fn place(&self) -> PlaceLaunch {
        let [first, line, outer, inner] =
            [self.first, self.line, self.outer, self.inner].map(|place| (place / 4) as u32);
        PlaceLaunch::new(first, line, outer, inner)
    }
}

/// Floating-point numbers that kernels here read.
fn float_kind(dtype: DType) -> Option<FloatKind> {
    match dtype {
        DType::F32 => Some(FloatKind::F32),
        DType::F16 => Some(FloatKind::F16),
        DType::BF16 => Some(FloatKind::BF16),
        _ => None,
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

/// Matrix units of a device: what they multiply, and the depth of their fragments.
#[derive(Clone, Copy)]
struct MatrixUnits {
    kind: FloatKind,
    depth: usize,
}

impl MatrixUnits {
    /// Those for numbers that are rounded to `dtype`; for f32, to TF32 if that is allowed.
    fn find(client: &Client, dtype: DType) -> Option<Self> {
        let (kind, depth) = match dtype {
            DType::F16 => (FloatKind::F16, 16),
            DType::BF16 => (FloatKind::BF16, 16),
            DType::F32 if crate::tf32_is_allowed() => (FloatKind::TF32, 8),
            _ => return None,
        };
        let properties = client.properties();
        let (rounded, full) = (ElemType::Float(kind), ElemType::Float(FloatKind::F32));
        let config = MmaConfig {
            a_type: rounded,
            b_type: rounded,
            cd_type: full,
            m: 16,
            n: 16,
            k: depth as u32,
        };
        let hardware = &properties.hardware;
        let plane = matrix_units::PLANE as u32;
        let fits = properties.features.matmul.cmma.contains(&config)
            && (hardware.plane_size_min, hardware.plane_size_max) == (plane, plane)
            && hardware.max_units_per_cube as usize >= matrix_units::UNITS
            && hardware.max_shared_memory_size >= matrix_units::SHARED_BYTES;
        fits.then_some(Self { kind, depth })
    }

    /// Whether the kernel takes a product of these sizes, which the other kernel takes.
    fn take(sizes: Sizes) -> bool {
        sizes.depth.is_multiple_of(matrix_units::RUN)
    }

    /// `left · right`, with a bias and a residual. Both sides are of types that [`Operand::element`] knows.
    fn launch(
        self,
        [left, right, out]: [Operand; 3],
        [bias, residual]: [Option<CubeTensor>; 2],
        sizes: Sizes,
    ) {
        let (Some(of_left), Some(of_right)) = (left.element(), right.element()) else { return };
        let client = out.tensor.client.clone();
        let form = matrix_units::Form {
            left_along: left.along,
            right_along: right.along,
            bias: bias.is_some(),
            residual: residual.is_some(),
            depth: self.depth,
            padding: if self.kind == FloatKind::TF32 { 4 } else { 8 },
        };
        let [across, down] =
            [sizes.columns, sizes.rows].map(|lines| lines.div_ceil(matrix_units::SIDE) as u32);
        let places = (left.place(), right.place(), out.place());
        // What is not there is never read.
        let [bias, residual] =
            [bias, residual].map(|tensor| tensor.unwrap_or_else(|| out.tensor.clone()));
        matrix_units::tiles_of_fragments::launch(
            &client,
            CubeCount::Static(across, down, (sizes.outer * sizes.inner) as u32),
            CubeDim::new_1d(matrix_units::UNITS as u32),
            left.tensor.into_buffer_arg(),
            right.tensor.into_buffer_arg(),
            bias.into_buffer_arg(),
            residual.into_buffer_arg(),
            out.tensor.into_buffer_arg(),
            places.0,
            places.1,
            places.2,
            sizes.launched(),
            form,
            ElemType::Float(self.kind),
            of_left,
            of_right,
        );
    }
}

/// Writes `left · right` to where `out` says. The sizes must fit, and all be in fours.
pub(super) fn product_into(left: Operand, right: Operand, out: Operand, sizes: Sizes) {
    let client = out.tensor.client.clone();
    if let Some(units) = MatrixUnits::find(&client, DType::F32)
        && MatrixUnits::take(sizes)
    {
        return units.launch([left, right, out], [None, None], sizes);
    }
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
    let known = left.element().is_some() && right.element().is_some();
    let fits = known && sizes.fit(left.along) && left.is_in_fours() && right.is_in_fours();
    fits.then_some((left, right, sizes))
}

/// `left · right`, of matrices or of batches of them.
pub(super) fn product(left: CubeTensor, right: CubeTensor) -> CubeTensor {
    let taken = taken(&left, &right).filter(|(left, right, _)| left.is_f32() && right.is_f32());
    let Some((of_left, of_right, sizes)) = taken else {
        return <CubeBackend as FloatTensorOps<CubeBackend>>::float_matmul(left, right);
    };
    let mut shape: Vec<usize> = left.meta.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = sizes.columns;
    }
    let out = empty(&left, Shape::from(shape));
    product_into(of_left, of_right, whole(&out, sizes), sizes);
    out
}

/// A tensor of matrices one after another.
fn whole(tensor: &CubeTensor, sizes: Sizes) -> Operand {
    let matrix = sizes.rows * sizes.columns;
    Operand {
        tensor: tensor.clone(),
        first: 0,
        line: sizes.columns,
        outer: matrix * sizes.inner,
        inner: matrix,
        along: true,
    }
}

/// Writes `x · weightᵀ` into the columns of `out` from `first` on, in parts along the depth that are to be added up: `x` is
/// `[tokens, inputs]`, the weight `[outputs, inputs]` in its own dtype, to which the tokens are rounded, and `out`
/// `[parts, tokens, columns]`. False if no kernel takes them, with nothing written. `parts` are of [`parts_of_depth`].
pub(super) fn tokens_into(
    x: &CubeTensor,
    weight: &CubeTensor,
    out: &CubeTensor,
    first: usize,
) -> bool {
    let (tokens, outputs) = (x.meta.shape()[0], weight.meta.shape()[0]);
    let (parts, line) = (out.meta.shape()[0], out.meta.shape()[2]);
    let depth = x.meta.shape()[1] / parts;
    let turned =
        <CubeBackend as FloatTensorOps<CubeBackend>>::float_swap_dims(weight.clone(), 0, 1);
    let (Some(left), Some(right)) = (Operand::of(x.clone(), true), Operand::of(turned, false))
    else {
        return false;
    };
    let along = left.along && right.along;
    let (left, right) = (Operand { outer: depth, ..left }, Operand { outer: depth, ..right });
    let sizes = Sizes { rows: tokens, columns: outputs, depth, outer: parts, inner: 1 };
    let tensor = out.clone();
    let place = Operand { tensor, first, line, outer: tokens * line, inner: 0, along: true };
    let in_fours = [&left, &right, &place].into_iter().all(Operand::is_in_fours);
    let fits = left.is_f32()
        && along
        && in_fours
        && outputs.is_multiple_of(4)
        && outputs.div_ceil(NARROW) <= MOST_CUBES
        && depth > 0;
    if !fits {
        return false;
    }
    match MatrixUnits::find(&out.client, weight.dtype()) {
        Some(units) if MatrixUnits::take(sizes) => {
            units.launch([left, right, place], [None, None], sizes);
            true
        }
        _ if right.is_f32() && depth.is_multiple_of(DEPTH) => {
            product_into(left, right, place, sizes);
            true
        }
        _ => false,
    }
}

/// Tiles that keep a large GPU at work, and the depth that a part has at least.
const MANY_TILES: usize = 256;
const LEAST_DEPTH: usize = 256;

/// How many parts a product with few tokens is made in along its depth, so that there are enough tiles: a power of two.
pub(super) fn parts_of_depth(tokens: usize, outputs: usize, depth: usize) -> usize {
    let tiles = tokens.div_ceil(matrix_units::SIDE) * outputs.div_ceil(matrix_units::SIDE);
    let fits = |parts: &usize| {
        depth.is_multiple_of(parts * matrix_units::RUN)
            && depth / parts >= LEAST_DEPTH
            && tiles * parts <= MANY_TILES
    };
    std::iter::successors(Some(2), |parts| Some(2 * parts)).take_while(fits).last().unwrap_or(1)
}

/// `left · right` of tensors whose numbers are rounded to `dtype`, with a bias and a residual behind a product of two
/// matrices. None if no kernel on matrix units takes them.
pub(super) fn product_in(
    dtype: DType,
    [left, right]: [&CubeTensor; 2],
    bias: Option<&CubeTensor>,
    residual: Option<&CubeTensor>,
) -> Option<CubeTensor> {
    let units = MatrixUnits::find(&left.client, dtype)?;
    let (of_left, of_right, sizes) =
        taken(left, right).filter(|(_, _, sizes)| MatrixUnits::take(*sizes))?;
    let mut shape: Vec<usize> = left.meta.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = sizes.columns;
    }
    let out = empty(left, Shape::from(shape));
    let behind = [bias, residual].map(|tensor| tensor.cloned().map(into_contiguous));
    units.launch([of_left, of_right, whole(&out, sizes)], behind, sizes);
    Some(out)
}

/// `left · right + bias` with a residual, in one launch. None if the kernel doesn't take them.
pub(super) fn product_and_bias(
    left: &CubeTensor,
    right: &CubeTensor,
    bias: &CubeTensor,
    around: Option<&CubeTensor>,
) -> Option<CubeTensor> {
    if left.meta.shape().len() != 2 {
        return None;
    }
    if let Some(out) = product_in(DType::F32, [left, right], Some(bias), around) {
        return Some(out);
    }
    let (left, right, sizes) =
        taken(left, right).filter(|(left, right, _)| left.is_f32() && right.is_f32())?;
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
