//! The two loops of a convolution, over buffers that `layout` has laid out.
//!
//! Positions of an output are counted along one axis, row after row and sample after sample, so
//! that a vector holds neighbouring positions and a tap of the kernel is the same shift for all.
//! At positions between rows and samples `correlate` writes values without a meaning, and `products`
//! needs zeros.
//!
//! Written for vectors of 4, 8 or 16 numbers. `direct` alone calls them, with buffers that are as long as the fields' notes say.

use pulp::{Simd, WithSimd};

use crate::math::{by_lanes, copied};
use crate::processor::arch;

/// Output channels that are computed together; weights are packed in blocks of as many.
pub(super) const BLOCK: usize = 8;

/// Positions are a multiple of this: three vectors of the widest sort.
pub(super) const STRIP: usize = 48;

/// `out[c][q] = Σ_k weights[c][k] · source[offsets[k] + q]`.
pub(super) struct Correlate<'a> {
    /// Must reach `STRIP` past the last offset and position.
    pub(super) source: &'a [f32],
    pub(super) offsets: &'a [usize],
    /// Blocks of channels, in each the terms, in each the block's channels.
    pub(super) weights: &'a [f32],
    /// A row of `positions` for each channel of each block.
    pub(super) out: &'a mut [f32],
    pub(super) positions: usize,
}

impl Correlate<'_> {
    pub(super) fn run(self) {
        arch().dispatch(self);
    }
}

impl WithSimd for Correlate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // 8 × 3 sums fit 32 registers, 4 × 2 the 16 of AVX2. There 4 × 3 would leave one register for weights, and the
        // compiler then keeps some of the sums in memory.
        by_lanes!(
            S,
            16 => correlate::<S, BLOCK, 3>(simd, self),
            8 => correlate::<S, 4, 2>(simd, self),
            4 => correlate::<S, BLOCK, 3>(simd, self),
        )
    }
}

/// Terms of a sum that are added up at once, for all channels one after the other: so few that what they read of the source stays in
/// the first-level cache meanwhile.
const TERMS: usize = 256;

#[inline(always)]
fn correlate<S: Simd, const CHANNELS: usize, const WIDE: usize>(simd: S, work: Correlate<'_>) {
    let Correlate { source, offsets, weights, out, positions } = work;
    let (step, terms) = (WIDE * S::F32_LANES, offsets.len());
    // Parts of about the same number of terms.
    let part = terms.div_ceil(terms.div_ceil(TERMS));
    for (nth, offsets) in offsets.chunks(part).enumerate() {
        let used = nth * part * BLOCK..(nth * part + offsets.len()) * BLOCK;
        for at in (0..positions).step_by(step) {
            for (block, weights) in weights.chunks_exact(BLOCK * terms).enumerate() {
                for first in (0..BLOCK).step_by(CHANNELS) {
                    let mut sums = [[simd.splat_f32s(0.0); WIDE]; CHANNELS];
                    let weights = weights[used.clone()].chunks_exact(BLOCK);
                    for (offset, weights) in offsets.iter().zip(weights) {
                        let (values, _) = S::as_simd_f32s(&source[offset + at..][..step]);
                        let weights = &weights[first..][..CHANNELS];
                        for (sums, weight) in sums.iter_mut().zip(weights) {
                            let weight = simd.splat_f32s(*weight);
                            for (sum, value) in sums.iter_mut().zip(values) {
                                *sum = simd.mul_add_e_f32s(weight, *value, *sum);
                            }
                        }
                    }
                    for (channel, sums) in copied(&sums).iter().enumerate() {
                        let channel = block * BLOCK + first + channel;
                        let row = &mut out[channel * positions + at..][..step];
                        for (out, sum) in S::as_mut_simd_f32s(row).0.iter_mut().zip(sums) {
                            *out = if nth == 0 { *sum } else { simd.add_f32s(*out, *sum) };
                        }
                    }
                }
            }
        }
    }
}

/// `out[c][k] = Σ_q grads[c][q] · source[offsets[k] + q]`.
pub(super) struct Products<'a> {
    pub(super) source: &'a [f32],
    pub(super) offsets: &'a [usize],
    /// A row of `positions` for each channel of each block; zero between rows and samples.
    pub(super) grads: &'a [f32],
    pub(super) positions: usize,
    /// A row of terms for each channel.
    pub(super) out: &'a mut [f32],
}

impl Products<'_> {
    pub(super) fn run(self) {
        arch().dispatch(self);
    }
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        by_lanes!(
            S,
            16 => products::<S, 6>(simd, self),
            8 => products::<S, 3>(simd, self),
            4 => products::<S, 6>(simd, self),
        )
    }
}

/// Channels whose sums of products are computed together.
const ROWS: usize = 4;

#[inline(always)]
fn products<S: Simd, const TERMS: usize>(simd: S, work: Products<'_>) {
    let Products { source, offsets, grads, positions, out } = work;
    let terms = offsets.len();
    for (grads, out) in grads.chunks_exact(ROWS * positions).zip(out.chunks_mut(ROWS * terms)) {
        let mut at = 0;
        while at < terms {
            if at + TERMS <= terms {
                let offsets = std::array::from_fn(|term| offsets[at + term]);
                store(out, at, terms, sums::<S, TERMS>(simd, source, offsets, grads, positions));
                at += TERMS;
            } else {
                let sums = sums::<S, 1>(simd, source, [offsets[at]], grads, positions);
                store(out, at, terms, sums);
                at += 1;
            }
        }
    }
}

#[inline(always)]
fn store<const TERMS: usize>(out: &mut [f32], at: usize, terms: usize, sums: [[f32; TERMS]; ROWS]) {
    for (row, sums) in out.chunks_exact_mut(terms).zip(&sums) {
        row[at..at + TERMS].copy_from_slice(sums);
    }
}

#[inline(always)]
fn sums<S: Simd, const TERMS: usize>(
    simd: S,
    source: &[f32],
    offsets: [usize; TERMS],
    grads: &[f32],
    positions: usize,
) -> [[f32; TERMS]; ROWS] {
    let mut sums = [[simd.splat_f32s(0.0); TERMS]; ROWS];
    let rows: [&[S::f32s]; ROWS] =
        std::array::from_fn(|row| S::as_simd_f32s(&grads[row * positions..][..positions]).0);
    let shifted: [&[S::f32s]; TERMS] =
        std::array::from_fn(|term| S::as_simd_f32s(&source[offsets[term]..][..positions]).0);
    let count = rows[0].len();
    for at in 0..count {
        let values: [S::f32s; TERMS] = std::array::from_fn(|term| shifted[term][at]);
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let grad = row[at];
            for (sum, value) in sums.iter_mut().zip(&values) {
                *sum = simd.mul_add_e_f32s(grad, *value, *sum);
            }
        }
    }
    // Loops, since a closure given to `map` would not be compiled for this processor.
    let mut totals = [[0.0; TERMS]; ROWS];
    for (totals, sums) in totals.iter_mut().zip(&sums) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = simd.reduce_sum_f32s(*sum);
        }
    }
    totals
}
