//! The products of [`super`] for many tokens: the norm, the products of all weights, and what is behind them are a launch each. A residual is
//! added with the product on matrix units.
//! Products are made in parts along their depth where tiles would be few, and added up with what is behind them.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::Given;
use crate::cube::launch::{elements, empty, empty_in, row_cubes, turned};
use crate::cube::product::{
    Four, dtype_of, kind_of_tokens, parts_of_depth, product, product_in, tokens_into,
};
use crate::cube::reduce::sum_of_units;
use crate::cube::rms_norm;

/// What is behind the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Behind {
    gated: bool,
    bias: bool,
    residual: bool,
}

/// The sum of a number's parts.
#[cube]
fn sum_of_parts(products: &[f32], place: usize, parts: usize, part: usize) -> f32 {
    let mut sum = 0.0f32;
    for at in 0..parts {
        sum += products[at * part + place];
    }
    sum
}

/// `residual + factor · (product + bias)`, or the first half of the columns gating the second. `products` are `[parts, tokens, columns]`.
#[cube(launch)]
fn behind_products<O: Float>(
    products: &[f32],
    bias: &[f32],
    residual: &[f32],
    out: &mut [O],
    parts: u32,
    part: u32,
    width: u32,
    factor: f32,
    #[comptime] behind: Behind,
    #[define(O)] _dtype: ElemType,
) {
    let (parts, part, width) = (parts as usize, part as usize, width as usize);
    if ABSOLUTE_POS < out.len() {
        if comptime!(behind.gated) {
            let (token, column) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
            let gate = sum_of_parts(products, 2 * token * width + column, parts, part);
            let value = sum_of_parts(products, (2 * token + 1) * width + column, parts, part);
            out[ABSOLUTE_POS] = O::cast_from(gate / (1.0f32 + (0.0f32 - gate).exp()) * value);
        } else {
            let mut number = sum_of_parts(products, ABSOLUTE_POS, parts, part);
            if comptime!(behind.bias) {
                number += bias[ABSOLUTE_POS % width];
            }
            if comptime!(behind.residual) {
                number = residual[ABSOLUTE_POS] + factor * number;
            }
            out[ABSOLUTE_POS] = O::cast_from(number);
        }
    }
}

/// Four numbers of the sum of parts.
#[cube]
fn four_of_parts(products: &[Four], place: usize, part: usize, #[comptime] parts: usize) -> Four {
    let mut sum = products[place];
    #[unroll]
    for at in 1..parts {
        sum += products[at * part + place];
    }
    sum
}

/// `residual + factor · (product + bias)`, and that over its root mean square, times gamma: a cube for each token.
#[cube(launch)]
fn residual_and_norm<O: Float>(
    products: &[Four],
    bias: &[Four],
    residual: &[Four],
    gamma: &[Four],
    out: &mut [Four],
    normed: &mut [Vector<O, Const<4>>],
    tokens: u32,
    fours: u32,
    factor: f32,
    epsilon: f32,
    #[comptime] biased: bool,
    #[comptime] parts: usize,
    #[comptime] units: usize,
    #[define(O)] _dtype: ElemType,
) {
    let token = CUBE_POS;
    let (tokens, fours) = (tokens as usize, fours as usize);
    if token >= tokens {
        terminate!();
    }
    let first = token * fours;
    let mut squares = Four::new(0.0f32);
    let mut at = UNIT_POS as usize;
    while at < fours {
        let mut number = four_of_parts(products, first + at, tokens * fours, parts);
        if comptime!(biased) {
            number += bias[at];
        }
        number = residual[first + at] + Four::new(factor) * number;
        out[first + at] = number;
        squares = fma(number, number, squares);
        at += units;
    }
    let of_unit = (squares.extract(0usize) + squares.extract(1usize))
        + (squares.extract(2usize) + squares.extract(3usize));
    let mean = sum_of_units(of_unit, units) / f32::cast_from(4 * fours as u32);
    let inverse = Four::new(1.0f32 / (mean + epsilon).sqrt());
    let mut at = UNIT_POS as usize;
    while at < fours {
        // A unit reads what it has written itself.
        let number = out[first + at] * inverse * gamma[at];
        normed[first + at] = Vector::<O, Const<4>>::cast_from(number);
        at += units;
    }
}

/// `x · weightᵀ` for sizes that [`tokens_into`] does not take. In f32 no factor is rounded to TF32 unless that is allowed; Burn's own product
/// would round it.
fn of_any_size(x: CubeTensor, weight: &CubeTensor) -> CubeTensor {
    type Ops = CubeBackend;
    let (dtype, turned) = (weight.dtype, turned(weight.clone()));
    let x = if x.dtype == dtype { x } else { cast(x, dtype) };
    if dtype == DType::F32 {
        return product(x, turned);
    }
    let made = <Ops as FloatTensorOps<Ops>>::float_matmul(x, turned);
    if made.dtype == DType::F32 { made } else { cast(made, DType::F32) }
}

/// The products of weights side by side, in parts: `[parts, tokens, outputs]`.
fn side_by_side(x: &CubeTensor, weights: &[CubeTensor]) -> CubeTensor {
    let (tokens, inputs) = (x.meta.shape()[0], x.meta.shape()[1]);
    let outputs: usize = weights.iter().map(|weight| weight.meta.shape()[0]).sum();
    let parts = parts_of_depth(tokens, outputs, inputs);
    let out = empty(x, Shape::new([parts, tokens, outputs]));
    if tokens_into(x, weights, &out) {
        return out;
    }
    let made = weights.iter().map(|weight| of_any_size(x.clone(), weight)).collect();
    let whole = <CubeBackend as FloatTensorOps<CubeBackend>>::float_cat(made, 1);
    let shape = Shape::new([1, tokens, outputs]);
    <CubeBackend as FloatTensorOps<CubeBackend>>::float_reshape(whole, shape)
}

/// The product with one weight, and bias and residual with it. None if no kernel does that, or where it is made in parts.
fn with_residual(x: &CubeTensor, given: &Given) -> Option<CubeTensor> {
    let ([weight], Some((residual, factor))) = (&given.weights[..], &given.residual) else {
        return None;
    };
    let [outputs, inputs] = [0, 1].map(|at| weight.meta.shape()[at]);
    if *factor != 1.0 || parts_of_depth(x.meta.shape()[0], outputs, inputs) > 1 {
        return None;
    }
    let turned = turned(weight.clone());
    product_in(weight.dtype, [x, &turned], given.bias.as_ref(), Some(residual))
}

/// The products of all weights with the tokens, normalised if there is a norm, in parts that are to be added up: `[parts · tokens, outputs]`.
pub(in crate::cube) fn in_parts(x: CubeTensor, given: Given) -> CubeTensor {
    let x = normalised(x, given.norm, &given.weights);
    let products = into_contiguous(side_by_side(&x, &given.weights));
    let [parts, tokens, outputs] = [0, 1, 2].map(|at| products.meta.shape()[at]);
    let shape = Shape::new([parts * tokens, outputs]);
    <CubeBackend as FloatTensorOps<CubeBackend>>::float_reshape(products, shape)
}

/// The tokens as products with these weights read them.
fn normalised(
    x: CubeTensor,
    norm: Option<(CubeTensor, f64)>,
    weights: &[CubeTensor],
) -> CubeTensor {
    match (norm, weights.first()) {
        (Some((gamma, epsilon)), Some(weight)) => {
            let kind = kind_of_tokens(&weight.client, weight.dtype, weight.meta.shape()[1]);
            rms_norm::forward_in(x, gamma, epsilon, kind)
        }
        _ => x,
    }
}

/// The product with one weight, with bias and residual, and what the norm behind gives of that for weights in the same dtype.
pub(in crate::cube) fn then_norm(
    x: CubeTensor,
    given: Given,
    (gamma, epsilon): (CubeTensor, f64),
) -> (CubeTensor, CubeTensor) {
    let Given { weights, bias, residual, .. } = given;
    let products = into_contiguous(side_by_side(&x, &weights));
    let [parts, tokens, outputs] = [0, 1, 2].map(|at| products.meta.shape()[at]);
    let dtype = weights.first().map_or(DType::F32, |weight| weight.dtype);
    let kind = kind_of_tokens(&x.client, dtype, outputs);
    let out = empty(&products, Shape::new([tokens, outputs]));
    let normed = empty_in(&products, Shape::new([tokens, outputs]), dtype_of(kind));
    let client = products.client.clone();
    let (count, dim, units) = row_cubes(&client, tokens, outputs);
    let biased = bias.is_some();
    // What is not there is never read.
    let bias = into_contiguous(bias.unwrap_or_else(|| products.clone()));
    let (residual, factor) = residual.unwrap_or_else(|| (products.clone(), 0.0));
    residual_and_norm::launch(
        &client,
        count,
        dim,
        products.into_buffer_arg(),
        bias.into_buffer_arg(),
        into_contiguous(residual).into_buffer_arg(),
        into_contiguous(gamma).into_buffer_arg(),
        out.clone().into_buffer_arg(),
        normed.clone().into_buffer_arg(),
        tokens as u32,
        (outputs / 4) as u32,
        factor as f32,
        epsilon as f32,
        biased,
        parts,
        units,
        ElemType::Float(kind),
    );
    (out, normed)
}

/// See [`super::forward`].
pub(super) fn forward(x: CubeTensor, mut given: Given) -> CubeTensor {
    let x = normalised(x, given.norm.take(), &given.weights);
    if let Some(made) = with_residual(&x, &given) {
        return made;
    }
    let Given { weights, gated, bias, residual, next, .. } = given;
    let tokens = x.meta.shape()[0];
    let products = into_contiguous(side_by_side(&x, &weights));
    let (parts, columns) = (products.meta.shape()[0], products.meta.shape()[2]);
    let behind = Behind { gated, bias: bias.is_some(), residual: residual.is_some() };
    let width = if gated { columns / 2 } else { columns };
    let shape = Shape::new([tokens, width]);
    if parts == 1 && behind == (Behind { gated: false, bias: false, residual: false }) {
        return <CubeBackend as FloatTensorOps<CubeBackend>>::float_reshape(products, shape);
    }
    let client = products.client.clone();
    let next = if gated { next } else { DType::F32 };
    let kind = kind_of_tokens(&client, next, width);
    let out = empty_in(&products, shape, dtype_of(kind));
    let (count, dim) = elements(&client, out.meta.num_elements());
    // What is not there is never read.
    let bias = into_contiguous(bias.unwrap_or_else(|| products.clone()));
    let (residual, factor) = residual.unwrap_or_else(|| (products.clone(), 1.0));
    behind_products::launch(
        &client,
        count,
        dim,
        products.into_buffer_arg(),
        bias.into_buffer_arg(),
        into_contiguous(residual).into_buffer_arg(),
        out.clone().into_buffer_arg(),
        parts as u32,
        (tokens * columns) as u32,
        width as u32,
        factor as f32,
        behind,
        ElemType::Float(kind),
    );
    out
}
