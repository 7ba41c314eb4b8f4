//! Segments that a device can't run: remembered, so that each is found out only once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::device::DeviceName;
use crate::engine::Engine;
use crate::place::{Place, Spot};

/// What makes a segment's run the same as an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SegmentKey {
    operation: String,
    device: DeviceName,
    inputs: Vec<(String, Vec<usize>)>,
}

impl SegmentKey {
    pub(super) fn new<E: Engine>(
        operation: &str,
        device: DeviceName,
        inputs: &impl Place<E>,
    ) -> Self {
        let mut seen = Vec::new();
        inputs.survey(&mut |spot: Spot<E>| seen.push((format!("{:?}", spot.dtype), spot.shape)));
        Self { operation: operation.to_owned(), device, inputs: seen }
    }
}

/// The segments that run on the CPU because their device can't run them.
#[derive(Debug, Default)]
pub(crate) struct CpuSegments(Mutex<HashSet<SegmentKey>>);

impl CpuSegments {
    pub(super) fn runs_on_cpu(&self, key: &SegmentKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    pub(super) fn remember(&self, key: SegmentKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }
}
