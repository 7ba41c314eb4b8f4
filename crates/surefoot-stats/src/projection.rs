//! From the activations of one challenge at one site to a fixed number of projections.
//!
//! 1. Each row (one token) is divided by its scale, the square of the mean root of its absolute
//!    numbers, and squashed: `v / (1 + |v| / 4)`. A few dimensions of trained models are a hundred
//!    times larger than the rest; they neither make the scale nor, squashed, hide a change in all
//!    others. The scale itself is kept beside it, in the profile.
//! 2. The rows are added up with seeded signs, up to eight times with other signs.
//! 3. Each sum goes through `H·S₂·H·S₁`: seeded signs and Walsh–Hadamard transforms, twice, over
//!    the next power of two. That is a projection on directions which no sparse vector is close
//!    to, in `n log n` steps.
//!
//! Every sum has a fixed order and nothing is fused, so the numbers are the same on every
//! machine and for every number of threads, whatever vectors its processor has.

use pulp::Arch;

use crate::keyed_stream::{self, KeyedStream};

/// At most so many sums of rows.
const SUMS: usize = 8;
/// Where squashing sets in, in units of the scale.
const KNEE: f32 = 4.0;
/// Short rows are padded to this width.
const LEAST_WIDTH: usize = 64;

/// Projects rows of one width.
pub struct Projector {
    width: usize,
    count: usize,
    /// A transform's inputs: a power of two.
    padded: usize,
    /// `[block][round]`, the signs of a transform's inputs.
    signs: Vec<[Vec<f32>; 2]>,
    /// `[sum][row]`.
    row_signs: Vec<Vec<f32>>,
}

/// The profile of the rows: their scale and how it is spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationProfile {
    /// The mean over rows of the scale.
    pub scale: f32,
    /// The mean over rows of the variance.
    pub variance: f32,
}

impl Projector {
    /// For `count` projections (a power of two) of up to `rows` rows of `width` numbers.
    pub fn new(count: usize, width: usize, rows: usize) -> Self {
        let padded = width.next_power_of_two().max(LEAST_WIDTH);
        let blocks = count.div_ceil(padded);
        let key = keyed_stream::public_key("surefoot projections, first edition");
        let signs = |what: &[u8], number: usize, count: usize| {
            let number = (number as u64).to_le_bytes();
            KeyedStream::new(&key, &[what, &number]).signs(count)
        };
        Self {
            width,
            count,
            padded,
            signs: (0..blocks)
                .map(|block| [signs(b"first", block, padded), signs(b"second", block, padded)])
                .collect(),
            row_signs: (0..blocks.min(SUMS)).map(|sum| signs(b"rows", sum, rows)).collect(),
        }
    }

    /// The projections of `rows`, row after row, and their level; nothing if a number is not
    /// finite.
    pub fn project(&self, rows: &[f32]) -> Option<(Vec<f32>, ActivationProfile)> {
        Arch::new().dispatch(|| self.projected(rows))
    }

    #[inline(always)]
    fn projected(&self, rows: &[f32]) -> Option<(Vec<f32>, ActivationProfile)> {
        let count = rows.len() / self.width;
        let mut sums = vec![vec![0.0_f32; self.padded]; self.row_signs.len()];
        let mut squashed = vec![0.0_f32; self.width];
        let (mut scales, mut variances) = (0.0_f32, 0.0_f32);
        for (number, row) in rows.chunks_exact(self.width).enumerate() {
            let root = sum(row, |x| x.abs().sqrt()) / self.width as f32;
            let scale = root * root;
            let mean = sum(row, |x| x) / self.width as f32;
            let square = sum(row, |x| (x - mean) * (x - mean)) / self.width as f32;
            if !scale.is_finite() || !square.is_finite() {
                return None;
            }
            scales += scale;
            variances += square;
            // A row of zeros stays one.
            let inverse = if scale > f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
            for (squashed, x) in squashed.iter_mut().zip(row) {
                let v = x * inverse;
                *squashed = v / (1.0 + v.abs() / KNEE);
            }
            for (sum, signs) in sums.iter_mut().zip(&self.row_signs) {
                let sign = signs[number];
                for (sum, v) in sum.iter_mut().zip(&squashed) {
                    *sum += sign * v;
                }
            }
        }
        let mut projected = Vec::with_capacity(self.signs.len() * self.padded);
        let mut work = vec![0.0_f32; self.padded];
        for (block, [first, second]) in self.signs.iter().enumerate() {
            work.copy_from_slice(&sums[block % sums.len()]);
            for signs in [first, second] {
                work.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
                hadamard(&mut work);
            }
            projected.extend_from_slice(&work[..self.padded.min(self.count)]);
        }
        let rows = count.max(1) as f32;
        Some((projected, ActivationProfile { scale: scales / rows, variance: variances / rows }))
    }

    /// `count` of the projections, evenly from all sums.
    pub fn some(&self, projected: &[f32], count: usize) -> Vec<f32> {
        let sums = self.row_signs.len();
        let block = self.padded.min(self.count);
        // So that the size doesn't follow from the width: a transform multiplies by its root.
        let scale = 1.0 / self.padded as f32;
        (0..count).map(|at| projected[(at % sums) * block + at / sums] * scale).collect()
    }
}

/// A sum over lanes in fixed order: fast, and the same everywhere.
#[inline(always)]
fn sum(row: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += of(*x);
        }
    }
    let rest: f32 = rest.iter().map(|x| of(*x)).sum();
    lanes.into_iter().sum::<f32>() + rest
}

/// The Walsh–Hadamard transform, unscaled.
#[inline(always)]
fn hadamard(numbers: &mut [f32]) {
    let mut half = 1;
    while half < numbers.len() {
        for pair in numbers.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_its_own_inverse_up_to_the_length() {
        let original: Vec<f32> = (0..128).map(|x| (x as f32 * 0.37).sin()).collect();
        let mut twice = original.clone();
        hadamard(&mut twice);
        assert_ne!(twice, original);
        hadamard(&mut twice);
        for (a, b) in twice.iter().zip(&original) {
            assert!((a / 128.0 - b).abs() < 1e-5);
        }
    }

    fn wave(seed: f32, count: usize) -> Vec<f32> {
        (0..count).map(|x| (x as f32 * seed).sin()).collect()
    }

    #[test]
    fn projections_are_the_same_for_any_scale_but_the_level_is_not() {
        let projector = Projector::new(1024, 48, 4);
        let rows = wave(0.77, 4 * 48);
        let doubled: Vec<f32> = rows.iter().map(|x| x * 2.0).collect();
        let (a, level_a) = projector.project(&rows).unwrap();
        let (b, level_b) = projector.project(&doubled).unwrap();
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3));
        assert!((level_b.scale / level_a.scale - 2.0).abs() < 1e-5);
        assert!((level_b.variance / level_a.variance - 4.0).abs() < 1e-4);
    }

    #[test]
    fn distances_of_projections_follow_those_of_the_rows() {
        let projector = Projector::new(8192, 96, 8);
        let rows = wave(0.31, 8 * 96);
        let apart = |size: f32| {
            let noise = wave(1.71, 8 * 96);
            let near: Vec<f32> = rows.iter().zip(noise).map(|(x, n)| x + size * n).collect();
            let (a, b) = (projector.project(&rows).unwrap().0, projector.project(&near).unwrap().0);
            let square = |x: &f32| f64::from(*x) * f64::from(*x);
            let distance: f64 = a.iter().zip(&b).map(|(a, b)| square(&(a - b))).sum();
            (distance / a.iter().map(square).sum::<f64>()).sqrt()
        };
        let (small, large) = (apart(0.001), apart(0.01));
        assert!((8.0..12.0).contains(&(large / small)), "{small} {large}");
        assert!((0.0003..0.003).contains(&small), "{small}");
    }

    #[test]
    fn a_huge_dimension_does_not_hide_the_others() {
        let projector = Projector::new(1024, 64, 1);
        let mut rows = wave(0.9, 64);
        rows[5] = 500.0;
        let mut other = wave(1.3, 64);
        other[5] = 500.0;
        let (a, b) = (projector.project(&rows).unwrap().0, projector.project(&other).unwrap().0);
        let agree = a.iter().zip(&b).filter(|(a, b)| (**a > 0.0) == (**b > 0.0)).count();
        assert!(agree < 900, "{agree} of 1024 signs agree");
    }

    #[test]
    fn numbers_that_are_not_finite_are_told() {
        let projector = Projector::new(1024, 4, 1);
        assert!(projector.project(&[1.0, f32::NAN, 2.0, 3.0]).is_none());
        assert!(projector.project(&[1.0, f32::INFINITY, 2.0, 3.0]).is_none());
        assert!(projector.project(&[0.0; 4]).unwrap().0.iter().all(|x| *x == 0.0));
    }
}
