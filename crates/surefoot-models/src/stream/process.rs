//! How much memory this process uses, and how much it can.

use surefoot::device::memory::host_memory;

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
    Some(Memory { now: status("VmRSS:")?, peak: status("VmHWM:")? })
}

/// The most bytes that this process ever held; a small program's size where the system does not
/// tell.
pub fn peak_bytes() -> u64 {
    memory().map_or(32 << 20, |memory| memory.peak)
}

fn status(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The most this process could come to hold: what is free of the machine's or the cgroup's
/// memory, or of the address space if that is limited (`ulimit -v`).
pub fn limit() -> u64 {
    let host = host_memory();
    let free = host.resident + host.available;
    address_space().map_or(free, |space| free.min(space))
}

/// Address space for the stacks of threads and what else is not memory in use.
const RESERVES: u64 = 48 << 20;

/// Whether the address space is limited. An allocator that reserves some for every thread then
/// takes most of it, so such a process should begin with `MALLOC_ARENA_MAX=1`.
pub fn is_address_space_limited() -> bool {
    address_space().is_some()
}

fn address_space() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    // Threads that will be started for the work take their share now.
    rayon::current_num_threads();
    let taken = status("VmSize:")?.saturating_sub(status("VmRSS:")?);
    Some(limit.saturating_sub(taken + RESERVES))
}
