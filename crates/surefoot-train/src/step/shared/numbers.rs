//! Gradients as numbers on the host: how they are gathered from tensors, and how long they are together.
//!
//! Each is one pass over the numbers, since a step passes over all of them.

/// Numbers that are summed side by side, so that the compiler can use vector instructions. The
/// order of a sum depends on its length alone.
const LANES: usize = 16;
/// Numbers whose squares are summed in f32 before the sum is taken over in f64.
const BLOCK: usize = 64 * LANES;

/// Appends `values` times `factor` to `numbers`, and says whether all of them are finite.
pub(super) fn append(numbers: &mut Vec<f32>, values: &[f32], factor: f32) -> bool {
    // Infinity and NaN times 0 are NaN, which stays in a sum.
    let mut zeros = [0.0_f32; LANES];
    for part in values.chunks(BLOCK) {
        let start = numbers.len();
        numbers.extend(part.iter().map(|value| value * factor));
        let (lanes, rest) = numbers[start..].as_chunks::<LANES>();
        for lane in lanes {
            for (zero, value) in zeros.iter_mut().zip(lane) {
                *zero += value * 0.0;
            }
        }
        for (zero, value) in zeros.iter_mut().zip(rest) {
            *zero += value * 0.0;
        }
    }
    zeros.iter().all(|zero| *zero == 0.0)
}

/// The sum of the squares.
pub(super) fn squares(values: &[f32]) -> f64 {
    let block = |block: &[f32]| -> f64 {
        let mut sums = [0.0_f32; LANES];
        let (lanes, rest) = block.as_chunks::<LANES>();
        for lane in lanes {
            for (sum, value) in sums.iter_mut().zip(lane) {
                *sum += value * value;
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            *sum += value * value;
        }
        sums.iter().map(|sum| f64::from(*sum)).sum()
    };
    values.chunks(BLOCK).map(block).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_appended_times_the_factor() {
        let values: Vec<f32> = (0..3000).map(|at| at as f32).collect();
        let mut numbers = vec![-1.0];
        assert!(append(&mut numbers, &values, 2.0));
        let expected: Vec<f32> =
            std::iter::once(-1.0).chain(values.iter().map(|value| 2.0 * value)).collect();
        assert_eq!(numbers, expected);
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_is() {
        for length in [1, LANES, BLOCK, 2 * BLOCK + LANES + 3] {
            for at in [0, length / 2, length - 1] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = vec![1.0; length];
                    assert!(append(&mut Vec::new(), &values, 0.5));
                    values[at] = bad;
                    assert!(!append(&mut Vec::new(), &values, 0.5), "{bad} at {at} of {length}");
                }
            }
        }
        // Finite before it is multiplied.
        assert!(!append(&mut Vec::new(), &[1.0, f32::MAX], 2.0));
    }

    #[test]
    fn squares_are_those_of_all_numbers() {
        for length in [0, 1, LANES + 1, BLOCK, 3 * BLOCK + 5] {
            let values: Vec<f32> = (0..length).map(|at| (at % 10) as f32 - 4.5).collect();
            let expected: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            let found = squares(&values);
            assert!((found - expected).abs() <= 1e-5 * expected, "{length}: {found} {expected}");
        }
        assert!(!squares(&[1.0, f32::NAN]).is_finite());
    }
}
