//! Products in plain Rust: what processors without one of the other kernels run, and, compiled for ARM's
//! dot products, what those with them run.
//!
//! Both factors are signed bytes, since that is the form that the compiler has dot-product instructions for (`.ci/neon` looks for
//! them): integers of weights are below 128, but for those of [`Blocks::ZERO`] 128, which are signed by taking it off.

use super::activations::{ActivationGroup, Activations};
use super::group::WeightGroup;
use crate::block::Blocks;

/// Every kernel that has nothing better has a copy of it, compiled for its instructions.
#[inline(always)]
pub(super) fn multiply<B: Blocks>(
    rows: &[u8],
    row_bytes: usize,
    x: &Activations,
    out: &mut [&mut [f32]],
) {
    let mut weights = WeightGroup::EMPTY;
    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (at, blocks) in row.chunks(WeightGroup::bytes::<B>()).enumerate() {
            weights.unpack::<B>(blocks);
            for (column, out) in out.iter_mut().enumerate() {
                let sum = dot::<B>(&weights, &x.column(column)[at]);
                out[number] = if at == 0 { sum } else { out[number] + sum };
            }
        }
    }
}

#[inline(always)]
fn dot<B: Blocks>(weights: &WeightGroup, x: &ActivationGroup) -> f32 {
    let mut sum = 0.0;
    let subs = weights.q.chunks_exact(B::SUB).zip(x.q.chunks_exact(B::SUB));
    for (at, (q, x_q)) in subs.enumerate() {
        // Taking 128 off flips the highest bit.
        let (flipped, taken_off) = if B::ZERO == 128 { (0x80, 128.0) } else { (0, 0.0) };
        let signed = |q: u8| i32::from((q ^ flipped) as i8);
        let integers: i32 = q.iter().zip(x_q).map(|(q, x)| signed(*q) * i32::from(*x)).sum();
        let (x_scale, x_sum) = match B::SUB {
            16 => (x.scale[at / 2], x.sum16[at]),
            _ => (x.scale[at], x.sum32[at]),
        };
        let offset = weights.offset[at] + taken_off * weights.scale[at];
        sum += weights.scale[at] * x_scale * integers as f32 + offset * x_sum;
    }
    sum
}
