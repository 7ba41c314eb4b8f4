//! GELU on Cube devices: one launch each way.
#![allow(unstable_name_collisions, reason = "inside a kernel `erf` is CubeCL's")]

use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty};

/// `1 / √2`.
const INVERSE_ROOT_OF_2: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// `1 / √(2π)`.
const DENSITY_AT_0: f32 = 0.398_942_3;

#[cube]
fn normal_share(x: f32) -> f32 {
    0.5f32 * (1.0f32 + (x * INVERSE_ROOT_OF_2).erf())
}

#[cube(launch)]
fn gelu_kernel(x: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS < out.len() {
        let x = x[ABSOLUTE_POS];
        out[ABSOLUTE_POS] = x * normal_share(x);
    }
}

#[cube(launch)]
fn gelu_gradient(x: &[f32], gradient: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS < out.len() {
        let x = x[ABSOLUTE_POS];
        let density = DENSITY_AT_0 * (x * x * -0.5f32).exp();
        out[ABSOLUTE_POS] = gradient[ABSOLUTE_POS] * (normal_share(x) + x * density);
    }
}

/// `x · Φ(x)`.
pub(super) fn forward(x: CubeTensor) -> CubeTensor {
    let x = into_contiguous(x);
    let out = empty(&x, x.meta.shape().clone());
    let client = x.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    gelu_kernel::launch(&client, count, dim, x.into_buffer_arg(), out.clone().into_buffer_arg());
    out
}

/// The gradient by x.
pub(super) fn backward(x: CubeTensor, gradient: CubeTensor) -> CubeTensor {
    let (x, gradient) = (into_contiguous(x), into_contiguous(gradient));
    let out = empty(&x, x.meta.shape().clone());
    let client = x.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    let args = (x.into_buffer_arg(), gradient.into_buffer_arg(), out.clone().into_buffer_arg());
    gelu_gradient::launch(&client, count, dim, args.0, args.1, args.2);
    out
}
