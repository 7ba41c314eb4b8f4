//! Gated SiLU (SwiGLU) on Cube devices: one launch.

use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty};

#[cube(launch)]
fn gated_silu(gate: &[f32], value: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS < out.len() {
        let gate = gate[ABSOLUTE_POS];
        out[ABSOLUTE_POS] = gate / (1.0f32 + (0.0f32 - gate).exp()) * value[ABSOLUTE_POS];
    }
}

/// `silu(gate) · value`.
pub(super) fn forward(gate: CubeTensor, value: CubeTensor) -> CubeTensor {
    let (gate, value) = (into_contiguous(gate), into_contiguous(value));
    let out = empty(&gate, gate.meta.shape().clone());
    let client = gate.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    let args = (gate.into_buffer_arg(), value.into_buffer_arg(), out.clone().into_buffer_arg());
    gated_silu::launch(&client, count, dim, args.0, args.1, args.2);
    out
}
