//! Batches that can be run in parts.

use std::ops::Range;

use burn::tensor::{Bool, Float, Int, Tensor};

use crate::fault::{Fault, FaultKind};
use crate::place::Place;

/// Samples that can be taken apart along their first dimension.
pub trait Batch: Place {
    /// How many samples there are.
    fn samples(&self) -> usize;

    /// The samples of a range.
    #[must_use]
    fn part(&self, range: Range<usize>) -> Self;

    /// Checks that what belongs together has the same number of samples.
    fn check(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }
}

/// A result for some of the samples.
#[derive(Clone, Debug)]
pub struct Part<T> {
    /// The result.
    pub value: T,
    /// How many samples it is of.
    pub samples: usize,
}

fn rows<const D: usize, K: burn::tensor::kind::Basic>(
    tensor: &Tensor<D, K>,
    range: Range<usize>,
) -> Tensor<D, K> {
    tensor.clone().narrow(0, range.start, range.len())
}

macro_rules! batch_of_rows {
    ($($kind:ty),+) => {$(
        impl<const D: usize> Batch for Tensor<D, $kind> {
            fn samples(&self) -> usize {
                self.dims()[0]
            }

            fn part(&self, range: Range<usize>) -> Self {
                rows(self, range)
            }
        }
    )+};
}
batch_of_rows!(Float, Int, Bool);

impl<A: Batch, B: Batch> Batch for (A, B) {
    fn samples(&self) -> usize {
        self.0.samples().min(self.1.samples())
    }

    fn part(&self, range: Range<usize>) -> Self {
        (self.0.part(range.clone()), self.1.part(range))
    }

    fn check(&self, operation: &str) -> Result<(), Fault> {
        self.0.check(operation)?;
        self.1.check(operation)?;
        let (first, second) = (self.0.samples(), self.1.samples());
        if first == second {
            return Ok(());
        }
        let message = format!("a batch has {first} samples beside {second} that belong to them");
        Err(Fault::new(FaultKind::ShapeMismatch, operation, message)
            .advise("give both the same length in their first dimension"))
    }
}

/// The ranges of `samples` in `parts` parts that differ by at most one sample.
pub(super) fn ranges(samples: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.clamp(1, samples.max(1));
    (0..parts).map(move |i| (i * samples / parts)..((i + 1) * samples / parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use proptest::prelude::*;

    #[test]
    fn a_pair_is_taken_apart_alike() {
        let device = Device::flex();
        let x = Tensor::<2>::from_floats([[1.0], [2.0], [3.0]], &device);
        let y = Tensor::<1, Int>::from_data([7, 8, 9], &device);
        let (x, y) = (x, y).part(1..3);
        assert_eq!(x.to_data_as::<f32>().try_to_vec::<f32>().unwrap(), [2.0, 3.0]);
        assert_eq!(y.to_data_as::<i64>().try_to_vec::<i64>().unwrap(), [8, 9]);
    }

    proptest! {
        #[test]
        fn parts_cover_every_sample_once_and_differ_by_at_most_one(
            samples in 0usize..200, parts in 1usize..40,
        ) {
            let ranges: Vec<_> = ranges(samples, parts).collect();
            let covered: Vec<usize> = ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..samples).collect::<Vec<_>>());
            let sizes: Vec<_> = ranges.iter().map(Range::len).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }
}
