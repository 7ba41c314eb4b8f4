//! A linear layer on Cube devices: the product with bias and residual in one launch, or in two where the sizes ask for Burn's
//! product; and the gradients of bias and weight.
//!
//! A weight's gradient is a product over all rows of a batch, with a small result: few cubes would each go over all of them. So
//! it is made in parts that are added up.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty};
use super::product;
use super::reduce::{column_sums, total};

#[cube(launch)]
fn add_bias(product: &[f32], bias: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS < out.len() {
        out[ABSOLUTE_POS] = product[ABSOLUTE_POS] + bias[ABSOLUTE_POS % bias.len()];
    }
}

#[cube(launch)]
fn add_bias_and_residual(product: &[f32], bias: &[f32], around: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS < out.len() {
        let sum = product[ABSOLUTE_POS] + bias[ABSOLUTE_POS % bias.len()];
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
    let product = product::product(x, weight);
    let (product, bias) = (into_contiguous(product), into_contiguous(bias));
    let out = empty(&product, product.meta.shape().clone());
    let client = product.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    let (product, bias) = (product.into_buffer_arg(), bias.into_buffer_arg());
    let to = out.clone().into_buffer_arg();
    match around {
        None => add_bias::launch(&client, count, dim, product, bias, to),
        Some(around) => {
            let around = into_contiguous(around).into_buffer_arg();
            add_bias_and_residual::launch(&client, count, dim, product, bias, around, to);
        }
    }
    out
}

/// The bias's gradient.
pub(super) fn sum_of_rows(gradient: CubeTensor) -> CubeTensor {
    column_sums(into_contiguous(gradient))
}

/// Numbers that the parts of a weight's gradient have together at most, and parts at most.
const MOST_NUMBERS: usize = 8 << 20;
const MOST_PARTS: usize = 16;
/// Rows that a part has at least.
const LEAST_ROWS: usize = 64;

/// How many parts a product over so many rows is made in: a power of two that divides the rows.
fn parts(rows: usize, numbers: usize) -> usize {
    let fits = |parts: &usize| {
        rows.is_multiple_of(*parts) && rows / parts >= LEAST_ROWS && numbers * parts <= MOST_NUMBERS
    };
    std::iter::successors(Some(MOST_PARTS), |parts| Some(parts / 2))
        .take_while(|parts| *parts > 1)
        .find(fits)
        .unwrap_or(1)
}

/// `xᵀ · gradient`: the weight's gradient.
pub(super) fn product_over_rows(x: CubeTensor, gradient: CubeTensor) -> CubeTensor {
    type Ops = CubeBackend;
    let (rows, inputs) = (x.meta.shape()[0], x.meta.shape()[1]);
    let outputs = gradient.meta.shape()[1];
    let parts = parts(rows, inputs * outputs);
    let split = |tensor: CubeTensor, width: usize| {
        let shape = Shape::new([parts, rows / parts, width]);
        <Ops as FloatTensorOps<Ops>>::float_reshape(into_contiguous(tensor), shape)
    };
    let (x, gradient) = (split(x, inputs), split(gradient, outputs));
    let x = <Ops as FloatTensorOps<Ops>>::float_swap_dims(x, 1, 2);
    let product = into_contiguous(product::product(x, gradient));
    let flat = |tensor, shape| <Ops as FloatTensorOps<Ops>>::float_reshape(tensor, shape);
    let product = flat(product, Shape::new([parts, inputs * outputs]));
    let sum = if parts > 1 { total(product) } else { product };
    flat(sum, Shape::new([inputs, outputs]))
}
