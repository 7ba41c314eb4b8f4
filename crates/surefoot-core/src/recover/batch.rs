//! Batches that can be run in parts, and results of parts that can be joined.

use std::ops::Range;

use crate::engine::Engine;
use crate::fault::{Fault, FaultKind};
use crate::place::Place;

/// Samples that can be taken apart along their first dimension.
pub trait Splittable<E: Engine>: Place<E> {
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

/// Results that can be joined along their first dimension, so that the parts' results equal the
/// whole batch's.
pub trait Join<E: Engine>: Sized {
    /// Joins results of consecutive parts; there is at least one.
    fn join(parts: Vec<Self>) -> Self;
}

impl<E: Engine, T> Join<E> for Vec<T> {
    fn join(parts: Vec<Self>) -> Self {
        parts.into_iter().flatten().collect()
    }
}

impl<E: Engine> Join<E> for () {
    fn join(_parts: Vec<Self>) -> Self {}
}

impl<E: Engine, A: Join<E>, B: Join<E>> Join<E> for (A, B) {
    fn join(parts: Vec<Self>) -> Self {
        let (first, second) = parts.into_iter().unzip();
        (A::join(first), B::join(second))
    }
}

impl<E: Engine, A: Splittable<E>, B: Splittable<E>> Splittable<E> for (A, B) {
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
        let message = format!("batch sizes differ: {first} and {second}");
        Err(Fault::new(FaultKind::ShapeMismatch, operation, message)
            .advise("give both the same length in their first dimension"))
    }
}

/// The ranges of `samples` in `parts` parts that differ by at most one sample.
pub(crate) fn ranges(samples: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.clamp(1, samples.max(1));
    (0..parts).map(move |i| (i * samples / parts)..((i + 1) * samples / parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
