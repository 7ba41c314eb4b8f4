//! Work over a batch that may run in parts.

use super::batch::{Join, Part, Splittable};
use super::{Confirm, Outcome, Rung, Step, Task};
use crate::engine::Engine;
use crate::fault::{BoxError, Fault};
use crate::place::Place;

/// A piece of work over a batch: made by [`Task::split`]. If memory runs out, the batch is run in
/// parts and the parts' results are joined.
#[derive(Debug)]
pub struct Split<'f, E: Engine, B> {
    task: Task<'f, E>,
    batch: B,
}

impl<'f, E: Engine, B: Splittable<E>> Split<'f, E, B> {
    pub(super) fn new(task: Task<'f, E>, batch: B) -> Self {
        Self { task, batch }
    }

    /// What every part needs whole, such as weights. It is placed on the device of each try.
    #[must_use]
    pub fn with<P: Place<E>>(self, fixed: P) -> SplitWith<'f, E, B, P> {
        SplitWith { split: self, fixed }
    }

    /// Runs `work` on the batch, or on each of its parts, and concatenates the results.
    pub fn run<T: Confirm<E> + Join<E>>(
        self,
        work: impl FnMut(&Step<'_, E>, B) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        self.run_and_join(work, concatenate)
    }

    /// Like [`Split::run`], with a way of one's own to put the parts' results together so that they
    /// equal the whole batch's: a mean weighted by samples, say.
    pub fn run_and_join<T: Confirm<E>>(
        self,
        mut work: impl FnMut(&Step<'_, E>, B) -> Result<T, BoxError>,
        join: impl Fn(Vec<Part<T>>) -> T,
    ) -> Result<Outcome<T>, Fault> {
        let Self { task, batch } = self;
        task.can(Rung::Split).descend(batch.samples().max(1), None, |step| {
            parts_of(step, &batch, |part| work(step, part)).map(&join)
        })
    }
}

/// A [`Split`] with something that every part needs whole: made by [`Split::with`].
#[derive(Debug)]
pub struct SplitWith<'f, E: Engine, B, P> {
    split: Split<'f, E, B>,
    fixed: P,
}

impl<E: Engine, B: Splittable<E>, P: Place<E>> SplitWith<'_, E, B, P> {
    /// Like [`Split::run`].
    pub fn run<T: Confirm<E> + Join<E>>(
        self,
        work: impl FnMut(&Step<'_, E>, P, B) -> Result<T, BoxError>,
    ) -> Result<Outcome<T>, Fault> {
        self.run_and_join(work, concatenate)
    }

    /// Like [`Split::run_and_join`].
    pub fn run_and_join<T: Confirm<E>>(
        self,
        mut work: impl FnMut(&Step<'_, E>, P, B) -> Result<T, BoxError>,
        join: impl Fn(Vec<Part<T>>) -> T,
    ) -> Result<Outcome<T>, Fault> {
        let Self { split: Split { task, batch }, fixed } = self;
        task.can(Rung::Split).descend(batch.samples().max(1), None, |step| {
            let fixed = step.place(fixed.clone())?;
            parts_of(step, &batch, |part| work(step, fixed.clone(), part)).map(&join)
        })
    }
}

fn concatenate<E: Engine, T: Join<E>>(parts: Vec<Part<T>>) -> T {
    T::join(parts.into_iter().map(|part| part.value).collect())
}

/// Runs `work` on each part of this try.
fn parts_of<E: Engine, B: Splittable<E>, T: Confirm<E>>(
    step: &Step<'_, E>,
    batch: &B,
    mut work: impl FnMut(B) -> Result<T, BoxError>,
) -> Result<Vec<Part<T>>, BoxError> {
    batch.check(step.operation())?;
    let mut parts = Vec::with_capacity(step.parts());
    for range in step.ranges(batch.samples()) {
        let samples = range.len();
        let value = work(step.place(batch.part(range))?)?;
        if step.parts() > 1 {
            // A part's memory is only free for the next one once it is done.
            value.confirm(step.operation())?;
        }
        parts.push(Part { value, samples });
    }
    Ok(parts)
}
