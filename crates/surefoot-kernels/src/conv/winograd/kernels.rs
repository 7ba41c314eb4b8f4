//! Weights of 3 × 3 at the points of the transform, and their gradient back from there.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::transform::{POINTS, REACH, weight_gradient, weights};
use crate::math::by_lanes;
use crate::processor::arch;

/// Weights of a kernel.
pub(super) const TAPS: usize = 9;

/// For each output channel the points, in each the input channels.
pub(super) fn at_points(numbers: &[f32], inputs: usize, flipped: bool) -> Vec<f32> {
    let mut out = vec![0.0; numbers.len() / TAPS * POINTS];
    out.par_chunks_mut(inputs * POINTS)
        .zip(numbers.par_chunks(inputs * TAPS))
        .with_min_len(1024_usize.div_ceil(inputs))
        .for_each(|(out, numbers)| arch().dispatch(Weights { numbers, flipped, out }));
    out
}

/// The weights of one output channel.
struct Weights<'a> {
    numbers: &'a [f32],
    /// Whether the last weight comes first.
    flipped: bool,
    out: &'a mut [f32],
}

impl WithSimd for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        by_lanes!(S, LANES => weights_at_points::<S, LANES>(simd, self))
    }
}

#[inline(always)]
fn weights_at_points<S: Simd, const LANES: usize>(simd: S, work: Weights<'_>) {
    let Weights { numbers, flipped, out } = work;
    let inputs = numbers.len() / TAPS;
    for first in (0..inputs).step_by(LANES) {
        let have = LANES.min(inputs - first);
        let mut taps = [[0f32; LANES]; TAPS];
        for (nth, kernel) in numbers[first * TAPS..].chunks_exact(TAPS).take(have).enumerate() {
            for (at, weight) in kernel.iter().enumerate() {
                taps[if flipped { TAPS - 1 - at } else { at }][nth] = *weight;
            }
        }
        let mut tall = [[simd.splat_f32s(0.0); 3]; REACH];
        for x in 0..3 {
            let mut column = [simd.splat_f32s(0.0); 3];
            for (y, value) in column.iter_mut().enumerate() {
                *value = S::as_simd_f32s(&taps[y * 3 + x]).0[0];
            }
            for (tall, value) in tall.iter_mut().zip(weights(simd, column)) {
                tall[x] = value;
            }
        }
        for (y, tall) in tall.iter().enumerate() {
            for (x, value) in weights(simd, *tall).iter().enumerate() {
                let to = &mut out[(y * REACH + x) * inputs + first..][..have];
                to.copy_from_slice(
                    &pulp::bytemuck::cast_slice(std::slice::from_ref(value))[..have],
                );
            }
        }
    }
}

/// The weights' gradient by that at the points: for each point the output channels, in each the input channels.
pub(super) fn from_points(points: &[f32], plane: usize, inputs: usize, outputs: usize) -> Vec<f32> {
    let mut out = vec![0.0; inputs * outputs * TAPS];
    for (channel, out) in out.chunks_exact_mut(inputs * TAPS).enumerate() {
        arch().dispatch(Gradient { points, plane, start: channel * inputs, out });
    }
    out
}

/// The gradient of one output channel's weights.
struct Gradient<'a> {
    points: &'a [f32],
    plane: usize,
    start: usize,
    out: &'a mut [f32],
}

impl WithSimd for Gradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        by_lanes!(S, LANES => gradient_from_points::<S, LANES>(simd, self))
    }
}

#[inline(always)]
fn gradient_from_points<S: Simd, const LANES: usize>(simd: S, work: Gradient<'_>) {
    let Gradient { points, plane, start, out } = work;
    let inputs = out.len() / TAPS;
    for first in (0..inputs).step_by(LANES) {
        let have = LANES.min(inputs - first);
        let mut narrow = [[simd.splat_f32s(0.0); 3]; REACH];
        for (y, narrow) in narrow.iter_mut().enumerate() {
            let mut values = [simd.splat_f32s(0.0); REACH];
            for (x, value) in values.iter_mut().enumerate() {
                let from = &points[(y * REACH + x) * plane + start + first..][..have];
                let mut numbers = [0f32; LANES];
                numbers[..have].copy_from_slice(from);
                *value = S::as_simd_f32s(&numbers).0[0];
            }
            *narrow = weight_gradient(simd, values);
        }
        let mut taps = [[0f32; LANES]; TAPS];
        for x in 0..3 {
            let mut column = [simd.splat_f32s(0.0); REACH];
            for (value, narrow) in column.iter_mut().zip(&narrow) {
                *value = narrow[x];
            }
            for (y, value) in weight_gradient(simd, column).iter().enumerate() {
                S::as_mut_simd_f32s(&mut taps[y * 3 + x]).0[0] = *value;
            }
        }
        for (nth, kernel) in out[first * TAPS..].chunks_exact_mut(TAPS).take(have).enumerate() {
            for (weight, tap) in kernel.iter_mut().zip(&taps) {
                *weight = tap[nth];
            }
        }
    }
}
