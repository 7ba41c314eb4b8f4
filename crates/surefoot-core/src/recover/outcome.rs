//! What a guarded run gives back: its value, and what happened on the way.

use std::time::Duration;

use super::Rung;
use crate::device::DeviceName;
use crate::fault::Fault;

/// The value of a guarded run, and what happened on the way. The journal records the same facts;
/// nobody has to read them back from there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome<T> {
    /// What the work returned.
    pub value: T,
    /// The faults that were recovered from, oldest first. Each says which rung answered it.
    pub faults: Vec<Fault>,
    /// The rungs that were taken, in order.
    pub rungs: Vec<Rung>,
    /// The device that the value was computed on.
    pub device: DeviceName,
    /// How often the work was tried, the last time included.
    pub attempts: u32,
    /// In how many parts the batch was run in the end.
    pub parts: usize,
    /// From the start of the first try to the end of the last.
    pub elapsed: Duration,
}

impl<T> Outcome<T> {
    /// Whether a fault was recovered from.
    pub fn recovered(&self) -> bool {
        !self.faults.is_empty()
    }

    /// The same outcome with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        Outcome {
            value: change(self.value),
            faults: self.faults,
            rungs: self.rungs,
            device: self.device,
            attempts: self.attempts,
            parts: self.parts,
            elapsed: self.elapsed,
        }
    }
}
