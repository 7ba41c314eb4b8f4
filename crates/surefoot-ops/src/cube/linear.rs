//! What goes beside the products of a linear layer on Cube devices: bias and residual in one launch, and the bias's gradient.

use burn::backend::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty};
use super::reduce::column_sums;

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
    let product = <CubeBackend as FloatTensorOps<CubeBackend>>::float_matmul(x, weight);
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
