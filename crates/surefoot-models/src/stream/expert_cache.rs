//! Matrices of experts that do not stay: the ones that were used last are kept, within a number of bytes.
//!
//! A matrix that is taken out of the cache while a product uses it is freed when the product is done; the plan counts one
//! such matrix beside the cache.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

use super::meter::Meter;
use crate::error::ModelError;
use crate::weights::weight::Weight;

/// A cache of matrices by their number; the one that was used longest ago leaves first.
#[derive(Debug)]
pub(crate) struct ExpertCache {
    capacity: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    clock: u64,
    entries: HashMap<usize, Entry>,
}

#[derive(Debug)]
struct Entry {
    weight: Weight,
    bytes: u64,
    used_at: u64,
}

impl ExpertCache {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, state: Mutex::default() }
    }

    /// The matrix with this number on `device`, of so many bytes; loaded if it is not there.
    pub(crate) fn get(
        &self,
        matrix: usize,
        device: &Device,
        bytes: u64,
        meter: &Meter,
        load: impl FnOnce() -> Result<Weight, ModelError>,
    ) -> Result<Weight, ModelError> {
        let found = self.with(|state| {
            state.clock += 1;
            let clock = state.clock;
            let entry =
                state.entries.get_mut(&matrix).filter(|it| it.weight.device() == *device)?;
            entry.used_at = clock;
            Some(entry.weight.clone())
        });
        meter.expert(found.is_some());
        if let Some(weight) = found {
            return Ok(weight);
        }
        // Room first, so that the cache and the new one are never more than the plan counts.
        if bytes <= self.capacity {
            self.with(|state| state.make_room(self.capacity - bytes));
        }
        let weight = load()?;
        if bytes <= self.capacity {
            self.with(|state| {
                state.make_room(self.capacity - bytes);
                let entry = Entry { weight: weight.clone(), bytes, used_at: state.clock };
                state.used += bytes;
                if let Some(old) = state.entries.insert(matrix, entry) {
                    state.used -= old.bytes;
                }
            });
        }
        Ok(weight)
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // Counts and entries are changed together by code that does not panic.
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    /// Removes entries until no more than `most` bytes are used.
    fn make_room(&mut self, most: u64) {
        while self.used > most {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used_at);
            let Some(oldest) = oldest.map(|(matrix, _)| *matrix) else { return };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.used -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Tensor;

    #[test]
    fn the_matrix_that_was_used_longest_ago_leaves_first() {
        let (cache, meter, device) = (ExpertCache::new(20), Meter::default(), Device::flex());
        let needed = |matrix: usize, bytes: u64| {
            let before = meter.read().expert_hits;
            let weight = || Ok(Weight::Tensor(Tensor::zeros([1, 1], &device)));
            cache.get(matrix, &device, bytes, &meter, weight).unwrap();
            meter.read().expert_hits > before
        };
        assert!(!needed(1, 10) && !needed(2, 10), "nothing is there at first");
        assert!(needed(1, 10) && needed(2, 10) && needed(1, 10));
        assert!(!needed(3, 10), "and 2 leaves");
        assert!(needed(1, 10) && !needed(2, 10), "and 3 leaves");
        assert!(!needed(4, 30) && !needed(4, 30), "what is larger than the cache is not kept");
        assert!(needed(2, 10));
        assert_eq!((meter.read().expert_hits, meter.read().expert_loads), (5, 6));
        let failed = cache.get(9, &device, 5, &meter, || Err(ModelError::request("no")));
        assert!(failed.is_err());
    }
}
