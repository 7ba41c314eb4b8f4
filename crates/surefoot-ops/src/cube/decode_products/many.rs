//! The products of [`super`] for many tokens: the norm, a product for each weight, and what is behind them are launches of their own.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Given;
use crate::cube::launch::{elements, empty};
use crate::cube::product::tokens_into;
use crate::cube::{gated, rms_norm};

/// `residual + factor · (product + bias)`.
#[cube(launch)]
fn behind_products(
    product: &[f32],
    bias: &[f32],
    residual: &[f32],
    out: &mut [f32],
    width: u32,
    factor: f32,
    #[comptime] has_bias: bool,
    #[comptime] has_residual: bool,
) {
    if ABSOLUTE_POS < out.len() {
        let mut number = product[ABSOLUTE_POS];
        if comptime!(has_bias) {
            number += bias[ABSOLUTE_POS % width as usize];
        }
        if comptime!(has_residual) {
            number = residual[ABSOLUTE_POS] + factor * number;
        }
        out[ABSOLUTE_POS] = number;
    }
}

/// `x · weightᵀ`, by Burn.
fn by_burn(x: CubeTensor, weight: &CubeTensor) -> CubeTensor {
    type Ops = CubeBackend;
    let dtype = weight.dtype;
    let turned = <Ops as FloatTensorOps<Ops>>::float_swap_dims(weight.clone(), 0, 1);
    let x = if x.dtype == dtype { x } else { cast(x, dtype) };
    let made = <Ops as FloatTensorOps<Ops>>::float_matmul(x, turned);
    if made.dtype == DType::F32 { made } else { cast(made, DType::F32) }
}

/// The products of weights side by side.
fn side_by_side(x: &CubeTensor, weights: &[CubeTensor]) -> CubeTensor {
    let tokens = x.meta.shape()[0];
    let outputs: usize = weights.iter().map(|weight| weight.meta.shape()[0]).sum();
    let out = empty(x, Shape::new([tokens, outputs]));
    let mut first = 0;
    let ours = weights.iter().all(|weight| {
        let written = tokens_into(x, weight, &out, first);
        first += weight.meta.shape()[0];
        written
    });
    if ours {
        return out;
    }
    let parts = weights.iter().map(|weight| by_burn(x.clone(), weight)).collect();
    <CubeBackend as FloatTensorOps<CubeBackend>>::float_cat(parts, 1)
}

/// See [`super::forward`].
pub(super) fn forward(x: CubeTensor, given: Given) -> CubeTensor {
    let Given { norm, weights, gated, bias, residual } = given;
    let x = match norm {
        Some((gamma, epsilon)) => rms_norm::forward(x, gamma, epsilon),
        None => x,
    };
    if gated && let [gate, value] = &weights[..] {
        let [gate, value] =
            [gate, value].map(|weight| side_by_side(&x, std::slice::from_ref(weight)));
        return gated::forward(gate, value);
    }
    let product = side_by_side(&x, &weights);
    if bias.is_none() && residual.is_none() {
        return product;
    }
    let product = into_contiguous(product);
    let out = empty(&product, product.meta.shape().clone());
    let client = product.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    let has = (bias.is_some(), residual.is_some());
    let width = product.meta.shape()[1] as u32;
    // What is not there is never read.
    let bias = into_contiguous(bias.unwrap_or_else(|| product.clone()));
    let (residual, factor) = residual.unwrap_or_else(|| (product.clone(), 1.0));
    behind_products::launch(
        &client,
        count,
        dim,
        product.into_buffer_arg(),
        bias.into_buffer_arg(),
        into_contiguous(residual).into_buffer_arg(),
        out.clone().into_buffer_arg(),
        width,
        factor as f32,
        has.0,
        has.1,
    );
    out
}
