//! The most likely token of each row of logits, found on the device: what is read of a row is a hundred numbers and not a vocabulary.

use burn::tensor::Tensor;

/// Vocabularies beyond have places that a number in f32 can't tell apart.
#[cfg(any(feature = "gpu", target_os = "macos"))]
const LARGEST_WIDTH: usize = 1 << 24;

/// What [`first_largest`] takes, for each row of `logits · factor`. None on the processor and under autodiff.
pub fn largest_of_rows(logits: &Tensor<2>, factor: f64) -> Option<Tensor<2>> {
    #[cfg(any(feature = "gpu", target_os = "macos"))]
    return launched::largest(logits, factor);
    #[cfg(not(any(feature = "gpu", target_os = "macos")))]
    {
        let _ = (logits, factor);
        None
    }
}

/// The place of the first of a row's largest numbers, given the row of [`largest_of_rows`]. None if not all of its numbers are finite.
pub fn first_largest(parts: &[f32]) -> Option<u32> {
    let mut best = (f32::NEG_INFINITY, 0.0);
    for part in parts.as_chunks::<3>().0 {
        let [number, place, not_finite] = *part;
        if not_finite != 0.0 {
            return None;
        }
        // Parts are in the order of the row, so the first of equals stays.
        if number > best.0 {
            best = (number, place);
        }
    }
    Some(best.1 as u32)
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod launched {
    use burn::backend::Dispatch;
    use burn::tensor::Tensor;

    use super::LARGEST_WIDTH;
    use crate::cube::CubeKernels;
    use crate::inference::launched::is_ours;

    pub(super) fn largest(logits: &Tensor<2>, factor: f64) -> Option<Tensor<2>> {
        let [rows, width] = logits.dims();
        let fits = is_ours(logits) && rows > 0 && (1..LARGEST_WIDTH).contains(&width);
        fits.then(|| {
            let logits = logits.clone().into_dispatch();
            Tensor::from_dispatch(<Dispatch as CubeKernels>::largest_of_rows(logits, factor))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_parts_is_taken_and_none_where_a_number_is_not_finite() {
        assert_eq!(first_largest(&[1.0, 3.0, 0.0, 2.0, 7.0, 0.0, 2.0, 9.0, 0.0]), Some(7));
        assert_eq!(first_largest(&[1.0, 3.0, 0.0, 2.0, 7.0, 1.0]), None);
    }
}
