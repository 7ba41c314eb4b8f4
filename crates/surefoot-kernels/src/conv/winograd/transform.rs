//! The transforms of F(4×4, 3×3) along one axis, by Toom and Cook.
//!
//! A tile's six values and three weights are taken as polynomials and evaluated at six points, where the convolution is a product of
//! two numbers. The points are 0, ±3/4, ±3/2 and infinity: all factors but those of [`weights`] are exact in f32, and errors are less than
//! half as large as with the usual 0, ±1, ±2.

use pulp::Simd;

/// Outputs of a tile along one axis.
pub(super) const SIDE: usize = 4;
/// Inputs of a tile along one axis, and the points.
pub(super) const REACH: usize = 6;
/// Points of a tile.
pub(super) const POINTS: usize = REACH * REACH;

/// The points besides 0 and infinity are ±`NEAR` and ±`FAR`.
const NEAR: f32 = 0.75;
const FAR: f32 = 1.5;
const NEAR_SQUARE: f32 = NEAR * NEAR;
const FAR_SQUARE: f32 = FAR * FAR;
/// What weights are divided by at 0, ±`NEAR` and ±`FAR`.
const AT_ZERO: f32 = 1.0 / (NEAR_SQUARE * FAR_SQUARE);
const AT_NEAR: f32 = 1.0 / (2.0 * NEAR_SQUARE * (NEAR_SQUARE - FAR_SQUARE));
const AT_FAR: f32 = 1.0 / (2.0 * FAR_SQUARE * (FAR_SQUARE - NEAR_SQUARE));

/// `sum + factor · x`.
#[inline(always)]
fn plus<S: Simd>(simd: S, sum: S::f32s, factor: f32, x: S::f32s) -> S::f32s {
    simd.mul_add_f32s(simd.splat_f32s(factor), x, sum)
}

/// `even ± factor · odd`.
#[inline(always)]
fn both<S: Simd>(simd: S, even: S::f32s, factor: f32, odd: S::f32s) -> [S::f32s; 2] {
    [plus(simd, even, factor, odd), plus(simd, even, -factor, odd)]
}

/// Six inputs at the points.
#[inline(always)]
pub(super) fn inputs<S: Simd>(simd: S, d: [S::f32s; REACH]) -> [S::f32s; REACH] {
    const SUM: f32 = NEAR_SQUARE + FAR_SQUARE;
    const PRODUCT: f32 = NEAR_SQUARE * FAR_SQUARE;
    let zero = plus(simd, plus(simd, d[4], -SUM, d[2]), PRODUCT, d[0]);
    let even = plus(simd, d[4], -FAR_SQUARE, d[2]);
    let odd = plus(simd, d[3], -FAR_SQUARE, d[1]);
    let near = both(simd, even, NEAR, odd);
    let even = plus(simd, d[4], -NEAR_SQUARE, d[2]);
    let odd = plus(simd, d[3], -NEAR_SQUARE, d[1]);
    let far = both(simd, even, FAR, odd);
    let infinite = plus(simd, plus(simd, d[5], -SUM, d[3]), PRODUCT, d[1]);
    [zero, near[0], near[1], far[0], far[1], infinite]
}

/// Four outputs of what was multiplied at the points.
#[inline(always)]
pub(super) fn outputs<S: Simd>(simd: S, m: [S::f32s; REACH]) -> [S::f32s; SIDE] {
    let (near_even, near_odd) = (simd.add_f32s(m[1], m[2]), simd.sub_f32s(m[1], m[2]));
    let (far_even, far_odd) = (simd.add_f32s(m[3], m[4]), simd.sub_f32s(m[3], m[4]));
    let times = |factor: f32, x: S::f32s| simd.mul_f32s(simd.splat_f32s(factor), x);
    [
        simd.add_f32s(m[0], simd.add_f32s(near_even, far_even)),
        plus(simd, times(NEAR, near_odd), FAR, far_odd),
        plus(simd, times(NEAR_SQUARE, near_even), FAR_SQUARE, far_even),
        plus(simd, plus(simd, m[5], NEAR * NEAR_SQUARE, near_odd), FAR * FAR_SQUARE, far_odd),
    ]
}

/// The gradient by the points of four outputs' gradient: [`outputs`] turned round.
#[inline(always)]
pub(super) fn output_gradient<S: Simd>(simd: S, y: [S::f32s; SIDE]) -> [S::f32s; REACH] {
    let near =
        both(simd, plus(simd, y[0], NEAR_SQUARE, y[2]), NEAR, plus(simd, y[1], NEAR_SQUARE, y[3]));
    let far =
        both(simd, plus(simd, y[0], FAR_SQUARE, y[2]), FAR, plus(simd, y[1], FAR_SQUARE, y[3]));
    [y[0], near[0], near[1], far[0], far[1], y[3]]
}

/// Three weights at the points.
#[inline(always)]
pub(super) fn weights<S: Simd>(simd: S, w: [S::f32s; 3]) -> [S::f32s; REACH] {
    let times = |factor: f32, x: S::f32s| simd.mul_f32s(simd.splat_f32s(factor), x);
    let near = plus(simd, w[0], NEAR_SQUARE, w[2]);
    let near = both(simd, times(AT_NEAR, near), NEAR * AT_NEAR, w[1]);
    let far = plus(simd, w[0], FAR_SQUARE, w[2]);
    let far = both(simd, times(AT_FAR, far), FAR * AT_FAR, w[1]);
    [times(AT_ZERO, w[0]), near[0], near[1], far[0], far[1], w[2]]
}

/// The gradient of three weights by that at the points: [`weights`] turned round.
#[inline(always)]
pub(super) fn weight_gradient<S: Simd>(simd: S, u: [S::f32s; REACH]) -> [S::f32s; 3] {
    let times = |factor: f32, x: S::f32s| simd.mul_f32s(simd.splat_f32s(factor), x);
    let (near_even, near_odd) = (simd.add_f32s(u[1], u[2]), simd.sub_f32s(u[1], u[2]));
    let (far_even, far_odd) = (simd.add_f32s(u[3], u[4]), simd.sub_f32s(u[3], u[4]));
    [
        plus(simd, plus(simd, times(AT_ZERO, u[0]), AT_NEAR, near_even), AT_FAR, far_even),
        plus(simd, times(NEAR * AT_NEAR, near_odd), FAR * AT_FAR, far_odd),
        plus(
            simd,
            plus(simd, u[5], NEAR_SQUARE * AT_NEAR, near_even),
            FAR_SQUARE * AT_FAR,
            far_even,
        ),
    ]
}
