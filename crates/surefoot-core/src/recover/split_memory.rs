//! The part size that fits, remembered per operation and device, and tried larger again later.
//!
//! Why this is not one of the tuners by speed (`surefoot_lanes::LaneTuner`, `pass_size.rs` of the server,
//! `fit.rs` of training): the only measurement here is whether memory ran out, which costs a failed run,
//! so the size grows seldom and one step at a time instead of being searched for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::device::DeviceName;

/// After this many good runs in parts, half as many parts are tried.
const PATIENCE: u32 = 50;

#[derive(Clone, Copy, Debug)]
struct Known {
    parts: usize,
    good_runs: u32,
    /// Doubles each time that fewer parts failed again, so that trying costs ever less.
    patience: u32,
}

/// What is known of operations that had to be split.
#[derive(Debug, Default)]
pub(crate) struct SplitMemory(Mutex<HashMap<(String, DeviceName), Known>>);

impl SplitMemory {
    /// In how many parts to start.
    pub(super) fn parts(&self, operation: &str, device: DeviceName) -> usize {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(&(operation.to_owned(), device)) {
            Some(known) if known.good_runs >= known.patience => (known.parts / 2).max(1),
            Some(known) => known.parts,
            None => 1,
        }
    }

    /// Notes that `operation` worked in `parts` parts.
    pub(super) fn worked(&self, operation: &str, device: DeviceName, parts: usize) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (operation.to_owned(), device);
        match memory.get_mut(&key) {
            None if parts == 1 => {}
            None => {
                memory.insert(key, Known { parts, good_runs: 0, patience: PATIENCE });
            }
            Some(known) if parts < known.parts => {
                *known = Known { parts, good_runs: 0, patience: known.patience };
                if parts == 1 {
                    memory.remove(&key);
                }
            }
            Some(known) if known.good_runs >= known.patience => {
                // Fewer parts were tried and failed: wait longer before the next try.
                let patience = known.patience.saturating_mul(2);
                *known = Known { parts, good_runs: 0, patience };
            }
            Some(known) => {
                known.parts = parts;
                known.good_runs += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_that_fits_is_remembered_and_tried_larger_later() {
        let memory = SplitMemory::default();
        let cpu = DeviceName::CPU;
        assert_eq!(memory.parts("step", cpu), 1);
        memory.worked("step", cpu, 4);
        assert_eq!(memory.parts("step", cpu), 4);
        assert_eq!(memory.parts("other", cpu), 1);
        for _ in 0..PATIENCE {
            assert_eq!(memory.parts("step", cpu), 4);
            memory.worked("step", cpu, 4);
        }
        assert_eq!(memory.parts("step", cpu), 2, "half as many parts are tried");
        memory.worked("step", cpu, 4);
        for _ in 0..=PATIENCE {
            assert_eq!(memory.parts("step", cpu), 4, "the next try is farther away");
            memory.worked("step", cpu, 4);
        }
        memory.worked("step", cpu, 1);
        assert_eq!(memory.parts("step", cpu), 1);
    }
}
