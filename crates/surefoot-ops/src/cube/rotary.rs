//! Rotary positions on Cube devices: all heads in one launch.

use burn_cubecl::cubecl;
use burn_cubecl::kernel::{into_contiguous, untile};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty};

/// `x` is `[batch, heads, width, each]` in any order in memory; `cos` and `sin` are `[batch or 1, 1, width, pairs]`.
#[cube(launch)]
fn rotate_heads(
    x: &Tensor<f32>,
    cos: &[f32],
    sin: &[f32],
    out: &mut [f32],
    heads: u32,
    width: u32,
    each: u32,
    tables: u32,
    #[comptime] half: usize,
    #[comptime] interleaved: bool,
) {
    let (heads, width, each) = (heads as usize, width as usize, each as usize);
    if ABSOLUTE_POS < out.len() {
        let number = ABSOLUTE_POS % each;
        let token = ABSOLUTE_POS / each % width;
        let head = ABSOLUTE_POS / (each * width) % heads;
        let sample = ABSOLUTE_POS / (each * width * heads);
        let row = sample * x.stride(0) + head * x.stride(1) + token * x.stride(2);
        let step = x.stride(3);
        if number < 2 * half {
            let pair = number % half;
            let mut first = pair;
            let mut second = pair + half;
            if interleaved {
                first = 2 * pair;
                second = 2 * pair + 1;
            }
            let (first, second) = (x[row + first * step], x[row + second * step]);
            // One table for all samples, or one for each.
            let table = sample % tables as usize;
            let at = (table * width + token) * half + pair;
            let (cos, sin) = (cos[at], sin[at]);
            let mut turned = first * cos - second * sin;
            if number >= half {
                turned = second * cos + first * sin;
            }
            out[ABSOLUTE_POS] = turned;
        } else {
            out[ABSOLUTE_POS] = x[row + number * step];
        }
    }
}

/// The first `2 · pairs` numbers of each head, turned; where pairs are neighbours they come out as halves.
pub(super) fn forward(
    x: CubeTensor,
    cos: CubeTensor,
    sin: CubeTensor,
    interleaved: bool,
) -> CubeTensor {
    let (x, cos, sin) = (untile(x), into_contiguous(cos), into_contiguous(sin));
    let shape = x.meta.shape().clone();
    let [heads, width, each] = [shape[1], shape[2], shape[3]];
    let (tables, half) = (cos.meta.shape()[0], cos.meta.shape()[3]);
    let out = empty(&x, shape);
    let client = x.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    rotate_heads::launch(
        &client,
        count,
        dim,
        x.into_tensor_arg(),
        cos.into_buffer_arg(),
        sin.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        heads as u32,
        width as u32,
        each as u32,
        tables as u32,
        half,
        interleaved,
    );
    out
}
