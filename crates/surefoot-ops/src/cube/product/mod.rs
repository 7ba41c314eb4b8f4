//! Products of matrices in f32 on Cube devices, by a kernel that needs no tuning.
//!
//! Burn's products choose among many kernels by trying them on the device, which takes minutes; untuned they reach a fraction
//! of it. The kernel here has two tiles, for sizes that training has: depths in multiples of [`kernel::DEPTH`], lines in
//! multiples of four. [`product`] leaves other sizes to Burn's kernels (`any_size`). An operand may lie anywhere in its tensor ([`Operand`]), so heads
//! of an attention are multiplied where they are.
//!
//! Where the device has matrix units and the numbers may be rounded, to half precision ([`product_in`]) or to TF32
//! ([`crate::allow_tf32`]), another kernel multiplies on them (`matrix_units`, launched by `units`).

mod any_size;
mod kernel;
mod matrix_units;
mod tile;
mod units;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::{self, empty};
pub(super) use kernel::{Causal, Four};
use kernel::{DEPTH, NARROW, PlaceLaunch, ROWS, SizesLaunch, Tile, WIDE};
use units::{MatrixUnits, More};

/// Rows and columns below which a tile would be mostly empty.
const LEAST: usize = 32;
/// Wide tiles read less, and leave a large GPU without work where there are fewer of them.
const ENOUGH_TILES: usize = 256;
/// Tiles that keep a large GPU at work: with fewer, smaller ones are made, or more parts.
pub(super) const MANY_TILES: usize = 200;
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
pub(super) fn float_kind(dtype: DType) -> Option<FloatKind> {
    match dtype {
        DType::F32 => Some(FloatKind::F32),
        DType::F16 => Some(FloatKind::F16),
        DType::BF16 => Some(FloatKind::BF16),
        _ => None,
    }
}

/// The dtype of such numbers.
pub(super) fn dtype_of(kind: FloatKind) -> DType {
    match kind {
        FloatKind::F16 => DType::F16,
        FloatKind::BF16 => DType::BF16,
        _ => DType::F32,
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

    /// Cubes, and their tiles.
    fn cubes(self, client: &Client) -> (CubeCount, CubeDim, Tile) {
        let (down, batch) = (self.rows.div_ceil(ROWS), self.outer * self.inner);
        let wide = down * (self.columns / WIDE) * batch >= ENOUGH_TILES;
        let wide = if wide { WIDE } else { NARROW };
        let across = self.columns.div_ceil(wide);
        let count = CubeCount::Static(across as u32, down as u32, batch as u32);
        let shared = client.properties().hardware.max_shared_memory_size;
        (count, CubeDim::new_1d(kernel::units(wide) as u32), Tile::new(wide, shared))
    }
}

/// Writes `left · right` to where `out` says, of tensors in f32 whose numbers may be rounded to `compute`, without what `causal`
/// leaves out. The sizes must fit, and all be in fours.
pub(super) fn product_into(
    left: Operand,
    right: Operand,
    out: Operand,
    sizes: Sizes,
    compute: DType,
    causal: Causal,
) {
    into(left, right, out, sizes, compute, More { causal, ..More::NOTHING });
}

/// See [`product_into`].
fn into(left: Operand, right: Operand, out: Operand, sizes: Sizes, compute: DType, more: More) {
    let client = out.tensor.client.clone();
    if let Some(units) = MatrixUnits::find(&client, compute)
        && MatrixUnits::take(sizes)
    {
        return units.launch([left, right, out], [None, None], more, sizes);
    }
    let (count, dim, tile) = sizes.cubes(&client);
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
        tile,
        more.summed,
        more.causal,
    );
}

/// `xᵀ · gradient` in parts over the rows of both, and below each part's matrix the sums of the gradient's columns:
/// `[parts, inputs + 1, outputs]`. The products' numbers may be rounded to `compute`. None if no kernel takes them.
pub(super) fn product_and_sum(
    x: &CubeTensor,
    gradient: &CubeTensor,
    parts: usize,
    compute: DType,
) -> Option<CubeTensor> {
    let (rows, inputs) = (x.meta.shape()[0], x.meta.shape()[1]);
    let outputs = gradient.meta.shape()[1];
    let depth = rows / parts;
    let side = |tensor: &CubeTensor, width: usize| Operand {
        tensor: tensor.clone(),
        first: 0,
        line: width,
        outer: depth * width,
        inner: 0,
        along: false,
    };
    let sizes = Sizes { rows: inputs, columns: outputs, depth, outer: parts, inner: 1 };
    let fits = [x, gradient].iter().all(|tensor| tensor.dtype() == DType::F32) && sizes.fit(false);
    if !fits {
        return None;
    }
    let out = empty(x, Shape::new([parts, inputs + 1, outputs]));
    let place = Operand { outer: (inputs + 1) * outputs, ..side(&out, outputs) };
    let place = Operand { along: true, ..place };
    into(
        side(x, inputs),
        side(gradient, outputs),
        place,
        sizes,
        compute,
        More { summed: true, ..More::NOTHING },
    );
    Some(out)
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
        return any_size::product(left, right);
    };
    let mut shape: Vec<usize> = left.meta.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = sizes.columns;
    }
    let out = empty(&left, Shape::from(shape));
    product_into(of_left, of_right, whole(&out, sizes), sizes, DType::F32, Causal::All);
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

/// The type that tokens of so many numbers are read in for products with weights in a dtype: that of the weights where matrix units round
/// them to it anyway.
pub(super) fn kind_of_tokens(client: &Client, weights: DType, inputs: usize) -> FloatKind {
    let units = MatrixUnits::find(client, weights);
    let is_rounded = matches!(weights, DType::F16 | DType::BF16) && units.is_some();
    let takes = inputs.is_multiple_of(tile::RUN);
    float_kind(weights).filter(|_| is_rounded && takes).unwrap_or(FloatKind::F32)
}

/// Writes `x · weightᵀ` of one to three weights side by side into `out`, in parts along the depth that are to be added up: `x` is
/// `[tokens, inputs]`, in f32 or as [`kind_of_tokens`] has it, a weight `[outputs, inputs]` in a dtype that all of them have, to which the tokens are rounded, and `out`
/// `[parts, tokens, columns]`. False if no kernel takes them, with nothing written. `parts` are of [`parts_of_depth`].
pub(super) fn tokens_into(x: &CubeTensor, weights: &[CubeTensor], out: &CubeTensor) -> bool {
    let tokens = x.meta.shape()[0];
    let (parts, line) = (out.meta.shape()[0], out.meta.shape()[2]);
    let depth = x.meta.shape()[1] / parts;
    let turned = |weight: &CubeTensor| {
        let side = Operand::of(launch::turned(weight.clone()), false)?;
        let fits = side.along && side.is_in_fours() && weight.meta.shape()[0].is_multiple_of(4);
        fits.then(|| Operand { outer: depth, ..side })
    };
    let known = |left: &Operand| left.along && left.element().is_some();
    let Some(left) = Operand::of(x.clone(), true).filter(known) else {
        return false;
    };
    let left = Operand { outer: depth, ..left };
    let Some(rights) = weights.iter().map(turned).collect::<Option<Vec<Operand>>>() else {
        return false;
    };
    let [first, others @ ..] = rights.as_slice() else { return false };
    let alike = others
        .iter()
        .all(|other| other.line == first.line && other.tensor.dtype() == first.tensor.dtype());
    let outputs = |weight: &CubeTensor| weight.meta.shape()[0];
    let tiles = line.div_ceil(NARROW) + weights.len();
    let place = |first: usize| Operand {
        tensor: out.clone(),
        first,
        line,
        outer: tokens * line,
        inner: 0,
        along: true,
    };
    let in_fours = left.is_in_fours() && place(0).is_in_fours() && depth.is_multiple_of(4);
    if !alike || !in_fours || others.len() > 2 || tiles > MOST_CUBES || depth == 0 {
        return false;
    }
    let sizes = |columns| Sizes { rows: tokens, columns, depth, outer: parts, inner: 1 };
    match MatrixUnits::find(&out.client, first.tensor.dtype()) {
        Some(units) if MatrixUnits::take(sizes(line)) => {
            let more = |at: usize| {
                let columns = weights.get(at + 1).map(outputs)?;
                Some((others.get(at)?.tensor.clone(), columns))
            };
            let more = More { rights: [more(0), more(1)], ..More::NOTHING };
            let sizes = sizes(outputs(&weights[0]));
            units.launch([left, first.clone(), place(0)], [None, None], more, sizes);
            true
        }
        _ if left.is_f32() && first.is_f32() && depth.is_multiple_of(DEPTH) => {
            let mut column = 0;
            for (right, weight) in rights.iter().zip(weights) {
                let (left, right, sizes) = (left.clone(), right.clone(), sizes(outputs(weight)));
                product_into(left, right, place(column), sizes, DType::F32, Causal::All);
                column += outputs(weight);
            }
            true
        }
        _ => false,
    }
}

/// The depth that a part has at least.
const LEAST_DEPTH: usize = 256;

/// How many parts a product with few tokens is made in along its depth, so that there are enough tiles: a power of two.
pub(super) fn parts_of_depth(tokens: usize, outputs: usize, depth: usize) -> usize {
    // Tiles may have 64 rows.
    let tiles = tokens.div_ceil(64) * outputs.div_ceil(128);
    let fits = |parts: &usize| {
        depth.is_multiple_of(parts * tile::LONG_RUN)
            && depth / parts >= LEAST_DEPTH
            && tiles * parts < 2 * MANY_TILES
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
    units.launch([of_left, of_right, whole(&out, sizes)], behind, More::NOTHING, sizes);
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
    let (count, dim, tile) = sizes.cubes(&client);
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
            tile,
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
            tile,
        ),
    }
    Some(out)
}
