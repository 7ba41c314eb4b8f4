//! GELU by a hyperbolic tangent, number by number. It is inlined into loops of [`math`](crate::math); anyone may call it.

use crate::math::exp;

/// Factor of x³ in the tangent.
pub const CUBE: f64 = 0.044_715;
/// √(2/π), the factor of the whole.
pub const SLOPE: f64 = 0.797_884_560_802_865_4;

/// What the approximation takes for the normal distribution Φ(x), and its slope:
/// `(1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))`.
#[inline(always)]
pub fn tanh_cdf_and_slope(x: f32) -> (f32, f32) {
    const FACTOR: f32 = (2.0 * SLOPE) as f32;
    const INNER: f32 = CUBE as f32;
    // Far out the square would be infinite, and its product with a slope of 0 no number.
    let square = (x * x).min(1e9);
    let cdf = 1.0 / (1.0 + exp(-FACTOR * x * (1.0 + INNER * square)));
    (cdf, cdf * (1.0 - cdf) * FACTOR * (1.0 + 3.0 * INNER * square))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_approximation_and_its_slope_are_what_the_formula_says(x in -9f32..9.0) {
            let tanh = |x: f64| (SLOPE * (x + CUBE * x * x * x)).tanh();
            let (cdf, slope) = tanh_cdf_and_slope(x);
            let x = f64::from(x);
            let right = (1.0 + tanh(x)) / 2.0;
            let right_slope = (tanh(x + 1e-4) - tanh(x - 1e-4)) / 4e-4;
            prop_assert!((f64::from(cdf) - right).abs() < 1e-6, "{cdf} {right}");
            prop_assert!((f64::from(slope) - right_slope).abs() < 1e-6, "{slope} {right_slope}");
        }
    }

    #[test]
    fn the_approximation_is_finite_far_out() {
        assert_eq!(tanh_cdf_and_slope(-1e30), (0.0, 0.0));
        assert_eq!(tanh_cdf_and_slope(1e30), (1.0, 0.0));
    }
}
