//! How much memory this process uses.

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
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    };
    Some(Memory { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}
