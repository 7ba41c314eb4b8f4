//! How many bytes of streamed weights may be in memory at once. A thread that loads a piece takes
//! a permit first and waits if there is no room; the permit is returned when the piece's memory is freed.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

use crate::folder::mapped::MappedRange;

/// Counts bytes that are in flight.
#[derive(Debug)]
pub(crate) struct Gate {
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    closed: bool,
    /// Memory of pieces that left, for those to come: new pages cost more than converting does.
    spare: Vec<MmapMut>,
    /// Parts of files that left and are still mapped.
    left: Vec<MappedRange>,
}

impl Gate {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default(), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The counts hold whatever a panicking thread did: it changes them in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room. A piece larger than the gate passes alone. Nothing once it is closed.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let mut state = self.state();
        loop {
            if !state.left.is_empty() {
                let left = std::mem::take(&mut state.left);
                drop(state);
                drop(left);
                state = self.state();
                continue;
            }
            if state.closed || state.used == 0 || state.used + bytes <= self.limit {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        state.used += bytes;
        Some(Permit { gate: Arc::clone(self), bytes })
    }

    /// Lets everyone who waits go away empty-handed.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.spare.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Memory of at least `size` bytes, used before or new. One that fits badly is let go, so
    /// that all there is stays near what is in flight.
    pub(crate) fn memory(&self, size: usize) -> io::Result<MmapMut> {
        let used = {
            let mut state = self.state();
            let used = state
                .spare
                .iter()
                .position(|memory| memory.len() >= size && memory.len() <= size + size / 8)
                .map(|at| state.spare.swap_remove(at));
            if used.is_none() {
                state.spare.pop();
            }
            used
        };
        used.map_or_else(|| MmapMut::map_anon(size), Ok)
    }

    /// Keeps memory for another piece.
    pub(crate) fn keep(&self, memory: MmapMut) {
        let mut state = self.state();
        if !state.closed {
            state.spare.push(memory);
        }
    }
}

impl Permit {
    /// The gate it is for.
    pub(crate) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Gives the room back and leaves it to the next who enters to unmap `memory`: the system
    /// lets nobody unmap while another maps, and who computes should not wait for that.
    pub(crate) fn leave(self, memory: MappedRange) {
        self.gate.state().left.push(memory);
    }
}

/// Room for some bytes, given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Arc<Gate>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.state().used -= self.bytes;
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_waits_until_another_left() {
        let gate = Gate::new(10);
        let first = gate.enter(8).unwrap();
        let waiting = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.enter(8).is_some())
        };
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn a_piece_larger_than_the_gate_passes_alone() {
        let gate = Gate::new(10);
        drop(gate.enter(100).unwrap());
        let _small = gate.enter(1).unwrap();
        gate.close();
        assert!(gate.enter(100).is_none());
    }
}
