//! Loops over numbers that the compiler turns into vector instructions.
//!
//! Everything here is inlined into a closure given to [`fast`], which is compiled once for each
//! sort of processor. Sums run over [`LANES`] separate numbers, so their order is fixed. Anyone may call these functions: they are right
//! without vector instructions too.

use pulp::WithSimd;
use rayon::prelude::*;

use crate::processor::arch;

/// Runs a loop with the best instructions that this processor has.
#[inline(always)]
pub fn fast<R>(work: impl FnOnce() -> R) -> R {
    struct Work<F>(F);
    impl<R, F: FnOnce() -> R> WithSimd for Work<F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _simd: S) -> R {
            (self.0)()
        }
    }
    arch().dispatch(Work(work))
}

/// A kernel's call with what it needs for vectors of 16, 8 and 4 numbers: all that kernels are written for. The last form names a
/// constant that is the number of lanes.
macro_rules! by_lanes {
    ($simd:ty, 16 => $widest:expr, 8 => $middle:expr, 4 => $least:expr $(,)?) => {
        match <$simd as ::pulp::Simd>::F32_LANES {
            16 => $widest,
            8 => $middle,
            4 => $least,
            lanes => $crate::processor::no_kernel_for(lanes),
        }
    };
    ($simd:ty, $lanes:ident => $call:expr) => {
        $crate::math::by_lanes!(
            $simd,
            16 => { const $lanes: usize = 16; $call },
            8 => { const $lanes: usize = 8; $call },
            4 => { const $lanes: usize = 4; $call },
        )
    };
}
pub(crate) use by_lanes;

/// A copy of sums, to be taken when they are complete. Sums that are later read by a loop's counter would be kept in memory, not in
/// registers, and be written there in each turn of the loop that makes them: a third of the speed.
#[inline(always)]
pub(crate) fn copied<V: Copy, const WIDE: usize, const ROWS: usize>(
    sums: &[[V; WIDE]; ROWS],
) -> [[V; WIDE]; ROWS] {
    let mut copy = [[sums[0][0]; WIDE]; ROWS];
    for row in 0..ROWS {
        for at in 0..WIDE {
            copy[row][at] = sums[row][at];
        }
    }
    copy
}

/// Numbers that are summed side by side: a vector of the widest sort.
pub const LANES: usize = 16;

/// Several sums over the numbers at each place of some slices of the same length.
#[inline(always)]
pub fn sums<const K: usize, const N: usize>(
    inputs: [&[f32]; K],
    of: impl Fn([f32; K]) -> [f32; N],
) -> [f32; N] {
    let mut lanes = [[0f32; LANES]; N];
    let count = inputs[0].len();
    let whole = count / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let parts = inputs.map(|input| &input[start..start + LANES]);
        for lane in 0..LANES {
            let terms = of(parts.map(|part| part[lane]));
            for (lanes, term) in lanes.iter_mut().zip(terms) {
                lanes[lane] += term;
            }
        }
    }
    for at in whole..count {
        let terms = of(inputs.map(|input| input[at]));
        for (lanes, term) in lanes.iter_mut().zip(terms) {
            lanes[at - whole] += term;
        }
    }
    lanes.map(|lanes| {
        let halves: [f32; LANES / 2] = std::array::from_fn(|at| lanes[at] + lanes[at + LANES / 2]);
        let quarters: [f32; LANES / 4] =
            std::array::from_fn(|at| halves[at] + halves[at + LANES / 4]);
        (quarters[0] + quarters[1]) + (quarters[2] + quarters[3])
    })
}

/// Fills a slice from the numbers at each place of others of the same length.
#[inline(always)]
pub fn each<const K: usize>(out: &mut [f32], inputs: [&[f32]; K], of: impl Fn([f32; K]) -> f32) {
    let whole = out.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let out = &mut out[start..start + LANES];
        let parts = inputs.map(|input| &input[start..start + LANES]);
        for lane in 0..LANES {
            out[lane] = of(parts.map(|part| part[lane]));
        }
    }
    for at in whole..out.len() {
        out[at] = of(inputs.map(|input| input[at]));
    }
}

/// New numbers, each from the one at its place, made by all threads and written once: nothing is zeroed before.
pub fn map(numbers: &[f32], of: impl Fn(f32) -> f32 + Sync) -> Vec<f32> {
    const PIECE: usize = 512;
    let work = |numbers: &[f32]| {
        let mut out = [0.0; PIECE];
        fast(
            #[inline(always)]
            || each(&mut out[..numbers.len()], [numbers], |[x]| of(x)),
        );
        out
    };
    let (pieces, rest) = numbers.as_chunks::<PIECE>();
    let mut out = Vec::with_capacity(pieces.len() + 1);
    let pieces = pieces.par_iter().with_min_len(TASK / PIECE);
    pieces.map(|numbers| work(numbers)).collect_into_vec(&mut out);
    let mut out = out.into_flattened();
    out.extend_from_slice(&work(rest)[..rest.len()]);
    out
}

/// Changes a slice by its own numbers and those at each place of others of the same length.
#[inline(always)]
pub fn change<const K: usize>(
    values: &mut [f32],
    inputs: [&[f32]; K],
    of: impl Fn(f32, [f32; K]) -> f32,
) {
    let whole = values.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let values = &mut values[start..start + LANES];
        let parts = inputs.map(|input| &input[start..start + LANES]);
        for lane in 0..LANES {
            values[lane] = of(values[lane], parts.map(|part| part[lane]));
        }
    }
    for at in whole..values.len() {
        values[at] = of(values[at], inputs.map(|input| input[at]));
    }
}

/// Adds up rows of `width` numbers, in blocks whose size depends on `width` alone, so that the
/// sum is the same with any number of threads. `term` makes a block's rows.
pub fn column_sums<const N: usize>(
    rows: usize,
    width: usize,
    add: impl Fn(std::ops::Range<usize>, &mut [Vec<f32>; N]) + Sync,
) -> [Vec<f32>; N] {
    let block = rows_at_once(width);
    let parts: Vec<[Vec<f32>; N]> = (0..rows.div_ceil(block))
        .into_par_iter()
        .map(|at| {
            let mut sums = std::array::from_fn(|_| vec![0.0; width]);
            add(at * block..((at + 1) * block).min(rows), &mut sums);
            sums
        })
        .collect();
    let mut total: [Vec<f32>; N] = std::array::from_fn(|_| vec![0.0; width]);
    for part in parts {
        for (total, part) in total.iter_mut().zip(part) {
            total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
        }
    }
    total
}

/// Rows that a thread takes at once: enough to be worth its while.
pub fn rows_at_once(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

/// Numbers that a thread takes at once.
pub const TASK: usize = 16 << 10;

/// `e^x` without branches: 2^n · e^r with |r| ≤ ln 2 / 2, where the series of e^r is cut after
/// its eighth term. Below -87 it is 0, since a smaller power has no normal number.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ leaves no room for a fraction: the sum is rounded to a whole number, which
    // then stands in its lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + factor;
    }
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let value = series * f32::from_bits(power);
    let value = if x < -87.0 { 0.0 } else { value };
    // Comparisons with NaN are false, and a clamp keeps it.
    if x > 88.0 { f32::INFINITY } else { value }
}

/// The normal distribution Φ(x), and its density φ(x), from one power of e
/// (Abramowitz and Stegun, 7.1.26, which is right to 1.5e-7).
#[inline(always)]
pub fn normal(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let power = exp(-z * z);
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut series = 1.061_405_4f32;
    for factor in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        series = series * t + factor;
    }
    let tail = 0.5 * series * t * power;
    let cdf = if x > 0.0 { 1.0 - tail } else { tail };
    const DENSITY_AT_0: f32 = 0.398_942_3;
    (cdf, DENSITY_AT_0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn powers_of_e_are_right(x in -86f32..88.0) {
            let right = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) / right - 1.0).abs() < 3e-7, "{x}");
        }

        #[test]
        fn the_normal_distribution_is_right(x in -6f64..6.0) {
            let (cdf, density) = normal(x as f32);
            // Simpson's rule from far below.
            let steps = 4000;
            let phi = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let width = (x + 12.0) / f64::from(steps);
            let at = |step: i32| phi(-12.0 + width * f64::from(step));
            let inner: f64 =
                (1..steps).map(|step| if step % 2 == 1 { 4.0 } else { 2.0 } * at(step)).sum();
            let right = width / 3.0 * (at(0) + inner + at(steps));
            // The approximation is seen to be off by 3.2e-7; its largest error was not searched for.
            prop_assert!((f64::from(cdf) - right).abs() < 6e-7, "{cdf} {right}");
            prop_assert!((f64::from(density) - phi(x)).abs() < 6e-7);
        }

        #[test]
        fn sums_are_right(numbers in prop::collection::vec(-1f32..1.0, 0..100)) {
            let right: f64 = numbers.iter().map(|number| f64::from(*number)).sum();
            let [is] = sums([&numbers], |[number]| [number]);
            prop_assert!((f64::from(is) - right).abs() < 1e-5);
        }
    }

    #[test]
    fn powers_of_e_end_well() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
