//! How much memory this process uses.

use surefoot::device::memory::{address_space_limit, peak_resident, resident};

/// Resident bytes of this process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Now.
    pub now: u64,
    /// The most there ever was.
    pub peak: u64,
}

/// Asks the system; nothing where it doesn't say.
pub fn memory() -> Option<Memory> {
    Some(Memory { now: resident(), peak: peak_resident()? })
}

/// The most bytes that this process ever held; a small program's size where the system does not
/// tell.
pub fn peak_bytes() -> u64 {
    memory().map_or(32 << 20, |memory| memory.peak)
}

/// Whether the address space is limited (`ulimit -v`). An allocator that reserves some for every
/// thread then takes most of it, so such a process should begin with `MALLOC_ARENA_MAX=1`.
pub fn is_address_space_limited() -> bool {
    address_space_limit().is_some()
}
