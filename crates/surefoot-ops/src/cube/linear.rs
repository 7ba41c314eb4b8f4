//! A linear layer on Cube devices: the product with bias and residual in one launch, or in two where the sizes ask for Burn's
//! product; and the gradients of bias and weight.
//!
//! A weight's gradient is a product over all rows of a batch, with a small result: few cubes would each go over all of them. So
//! it is made in parts that are added up. The bias's gradient is made with it, as one more row.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::{elements, empty, part, turned};
use super::product;
use super::reduce::{column_sums, total};

#[cube(launch)]
fn add_bias(product: &[f32], bias: &[f32], out: &mut [f32], width: u32) {
    if ABSOLUTE_POS < out.len() {
        out[ABSOLUTE_POS] = product[ABSOLUTE_POS] + bias[ABSOLUTE_POS % width as usize];
    }
}

#[cube(launch)]
fn add_bias_and_residual(
    product: &[f32],
    bias: &[f32],
    around: &[f32],
    out: &mut [f32],
    width: u32,
) {
    if ABSOLUTE_POS < out.len() {
        let sum = product[ABSOLUTE_POS] + bias[ABSOLUTE_POS % width as usize];
        out[ABSOLUTE_POS] = sum + around[ABSOLUTE_POS];
    }
}

/// `x · weight + bias`, with a residual.
pub(super) fn forward(
    x: CubeTensor,
    weight: CubeTensor,
    bias: CubeTensor,
    around: Option<CubeTensor>,
) -> CubeTensor {
    if let Some(out) = product::product_and_bias(&x, &weight, &bias, around.as_ref()) {
        return out;
    }
    with_bias(product::product(x, weight), bias, around)
}

/// A product with a bias and a residual.
fn with_bias(product: CubeTensor, bias: CubeTensor, around: Option<CubeTensor>) -> CubeTensor {
    let (product, bias) = (into_contiguous(product), into_contiguous(bias));
    let out = empty(&product, product.meta.shape().clone());
    let width = product.meta.shape()[1] as u32;
    let client = product.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    let (product, bias) = (product.into_buffer_arg(), bias.into_buffer_arg());
    let to = out.clone().into_buffer_arg();
    match around {
        None => add_bias::launch(&client, count, dim, product, bias, to, width),
        Some(around) => {
            let around = into_contiguous(around).into_buffer_arg();
            add_bias_and_residual::launch(&client, count, dim, product, bias, around, to, width);
        }
    }
    out
}

/// Numbers that the parts of a weight's gradient have together at most, and parts at most.
const MOST_NUMBERS: usize = 8 << 20;
const MOST_PARTS: usize = 16;
/// Rows that a part has at least.
const LEAST_ROWS: usize = 64;

/// How many parts a product over so many rows is made in: a power of two that divides the rows, and no more than keep a large GPU
/// at work.
fn parts(rows: usize, inputs: usize, outputs: usize) -> usize {
    let tiles = inputs.div_ceil(128) * outputs.div_ceil(128);
    let mut parts = 1;
    while tiles * parts < product::MANY_TILES
        && 2 * parts <= MOST_PARTS
        && rows.is_multiple_of(2 * parts)
        && rows / (2 * parts) >= LEAST_ROWS
        && inputs * outputs * 2 * parts <= MOST_NUMBERS
    {
        parts *= 2;
    }
    parts
}

/// The gradients of weight and bias: `xᵀ · gradient`, and the sum of the gradient's rows.
pub(super) fn gradient(x: CubeTensor, gradient: CubeTensor) -> (CubeTensor, CubeTensor) {
    in_parts(x, gradient, DType::F32, product::product)
}

/// The same of numbers that are rounded to `compute`, but in the sum. By our kernels that is one launch, and another that adds up parts;
/// else by `product` and a sum of its own.
fn in_parts(
    x: CubeTensor,
    gradient: CubeTensor,
    compute: DType,
    product: impl Fn(CubeTensor, CubeTensor) -> CubeTensor,
) -> (CubeTensor, CubeTensor) {
    type Ops = CubeBackend;
    let (rows, inputs) = (x.meta.shape()[0], x.meta.shape()[1]);
    let outputs = gradient.meta.shape()[1];
    let parts = parts(rows, inputs, outputs);
    let (x, gradient) = (into_contiguous(x), into_contiguous(gradient));
    let flat = |tensor, shape| <Ops as FloatTensorOps<Ops>>::float_reshape(tensor, shape);
    let added = |product, numbers| {
        let product = flat(product, Shape::new([parts, numbers]));
        if parts > 1 { total(product) } else { flat(product, Shape::new([numbers])) }
    };
    let matrix = Shape::new([inputs, outputs]);
    if let Some(both) = product::product_and_sum(&x, &gradient, parts, compute) {
        // The bias's gradient is one more row.
        let both = added(both, (inputs + 1) * outputs);
        let weight = part(both.clone(), 0, inputs * outputs);
        return (flat(weight, matrix), part(both, inputs * outputs, outputs));
    }
    let bias = column_sums(gradient.clone());
    let split = |tensor, width: usize| flat(tensor, Shape::new([parts, rows / parts, width]));
    let (x, gradient) = (split(x, inputs), split(gradient, outputs));
    let product = into_contiguous(product(turned(x), gradient));
    (flat(added(product, inputs * outputs), matrix), bias)
}

/// See [`super::multiplies_in`].
pub(super) fn has_matrix_units(tensor: &CubeTensor, dtype: DType) -> bool {
    let kind = match dtype {
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => return false,
    };
    let (half, full) = (ElemType::Float(kind), ElemType::Float(FloatKind::F32));
    let units = &tensor.client.properties().features.matmul.cmma;
    units.iter().any(|unit| unit.a_type == half && unit.b_type == half && unit.cd_type == full)
}

/// A product of numbers in f32 that are rounded to `compute`: in one launch on matrix units, or by Burn's kernel for half precision. If
/// that has none, the product is of the rounded numbers in f32.
fn half_product(left: CubeTensor, right: CubeTensor, compute: DType) -> CubeTensor {
    if let Some(out) = product::product_in(compute, [&left, &right], None, None) {
        return out;
    }
    let (left, right) = (cast(left, compute), cast(right, compute));
    let made = matmul(left.clone(), right.clone(), None, MatmulStrategy::default(), DType::F32);
    made.unwrap_or_else(|_| product::product(cast(left, DType::F32), cast(right, DType::F32)))
}

/// `x · weight + bias`, with a residual, whose product is made of numbers in `compute`.
pub(super) fn half_forward(
    x: CubeTensor,
    weight: CubeTensor,
    bias: CubeTensor,
    around: Option<CubeTensor>,
    compute: DType,
) -> CubeTensor {
    let made = product::product_in(compute, [&x, &weight], Some(&bias), around.as_ref());
    made.unwrap_or_else(|| with_bias(half_product(x, weight, compute), bias, around))
}

/// The gradients of that by x, weight and bias.
pub(super) fn half_backward(
    x: CubeTensor,
    weight: CubeTensor,
    gradient: CubeTensor,
    compute: DType,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let of_x = half_product(gradient.clone(), turned(weight), compute);
    let product = |left, right| half_product(left, right, compute);
    let (of_weight, of_bias) = in_parts(x, gradient, compute, product);
    (of_x, of_weight, of_bias)
}
