//! Memory: what the machine and the process have, how to write a number of bytes, and the
//! budget that admits allocations before they happen.
//!
//! Running out of host memory aborts a process, so an allocation of note asks first:
//! [`Budget::admit`] gives a [`Reservation`] or an out-of-memory fault. What is in use is
//! measured (the process's resident set, the device's pool), what is promised is reserved.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::control_group::memory_limit;
use crate::fault::{Fault, FaultKind};

/// A number of bytes that reads and writes as people do: `2GiB`, `512 MiB`, `1.5G`, `1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, f64); 5] = [
    ("TiB", 1_099_511_627_776.0),
    ("GiB", 1_073_741_824.0),
    ("MiB", 1_048_576.0),
    ("KiB", 1024.0),
    ("B", 1.0),
];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let (unit, size) = UNITS.into_iter().find(|(_, size)| bytes >= *size).unwrap_or(("B", 1.0));
        let value = bytes / size;
        let text = match unit {
            "B" => format!("{} B", self.0),
            _ if value < 10.0 => format!("{value:.2} {unit}"),
            _ if value < 100.0 => format!("{value:.1} {unit}"),
            _ => format!("{value:.0} {unit}"),
        };
        f.pad(&text)
    }
}

/// A text that is no number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotBytes {
    /// It is not a number with a unit.
    #[error("'{0}' is not an amount of memory; write it as 2GiB, 512MiB or a number of bytes")]
    Syntax(String),
    /// It is one, of less than a byte.
    #[error("'{0}' is less than one byte; write an amount of memory such as 512MiB")]
    TooSmall(String),
    /// It is one that no machine has.
    #[error("'{0}' is more memory than any machine has (the most that is accepted is 1048576TiB)")]
    TooLarge(String),
}

impl FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Self, NotBytes> {
        let wrong = || NotBytes::Syntax(text.to_owned());
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kib" => 1024.0,
            "m" | "mib" => 1_048_576.0,
            "g" | "gib" => 1_073_741_824.0,
            "t" | "tib" => 1_099_511_627_776.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = number * factor;
        if bytes < 1.0 {
            return Err(NotBytes::TooSmall(text.to_owned()));
        }
        if bytes > 2f64.powi(60) {
            return Err(NotBytes::TooLarge(text.to_owned()));
        }
        Ok(Self(bytes as u64))
    }
}

/// What the machine and this process use, measured now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// All of the machine's memory, or the control groups' limit if that is lower.
    pub total: u64,
    /// What could still be allocated: of the machine's memory, of the control groups' limit, and of
    /// the process's address space if that is limited (`ulimit -v`).
    pub available: u64,
    /// What this process holds.
    pub resident: u64,
}

/// Measures the host's memory.
pub fn host_memory() -> HostMemory {
    let resident = resident();
    let Ok(mut system) = sysinfo::System::new() else {
        // A system that reports nothing is taken to have just what is in use.
        return HostMemory { total: resident, available: 0, resident };
    };
    system.refresh_memory();
    let (mut total, mut available) = (system.total_memory(), system.available_memory());
    if let Some(limit) = memory_limit() {
        total = total.min(limit.total);
        available = available.min(limit.free);
    }
    if let Some(left) = address_space_left() {
        available = available.min(left);
    }
    HostMemory { total, available, resident }
}

/// The bytes of this process that are in memory.
pub fn resident() -> u64 {
    memory_stats::memory_stats().map_or(0, |stats| stats.physical_mem as u64)
}

/// The most bytes that this process ever had in memory, where the system keeps that figure.
pub fn peak_resident() -> Option<u64> {
    process_status("VmHWM:")
}

/// A figure of `/proc/self/status` in bytes, where there is one.
fn process_status(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let figure = status.lines().find_map(|line| line.strip_prefix(field))?;
    figure.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The limit on this process's address space, if there is one (`ulimit -v`).
pub fn address_space_limit() -> Option<u64> {
    soft_address_space_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// The most address space that this process ever had, where the system keeps that figure. It is
/// more than its memory: each thread reserves some for its stack and its allocations.
pub fn address_space_peak() -> Option<u64> {
    process_status("VmPeak:")
}

/// What a limit on address space leaves, where there is one.
fn address_space_left() -> Option<u64> {
    let in_use = process_status("VmSize:").unwrap_or(0);
    address_space_limit().map(|limit| limit.saturating_sub(in_use))
}

/// The soft limit in the text of `/proc/self/limits`, if it is not unlimited.
fn soft_address_space_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Makes [`peak_resident`] count from now on, where the system lets it.
pub fn forget_peak_resident() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// A limit on bytes, with what is promised but not yet in use.
#[derive(Clone, Debug)]
pub struct Budget {
    limit: u64,
    reserved: Arc<AtomicU64>,
}

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, reserved: Arc::default() }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What is promised to work that has not allocated it yet.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Promises `bytes` to `operation`, or says why that can't be. `in_use` is what the device
    /// holds now.
    pub fn admit(&self, operation: &str, bytes: u64, in_use: u64) -> Result<Reservation, Fault> {
        let room =
            |reserved: u64| in_use.saturating_add(reserved).saturating_add(bytes) <= self.limit;
        self.reserved
            .try_update(Ordering::AcqRel, Ordering::Acquire, |reserved| {
                room(reserved).then(|| reserved + bytes)
            })
            .map(|_| Reservation { bytes, reserved: Arc::clone(&self.reserved) })
            .map_err(|reserved| {
                let never = bytes > self.limit;
                Fault::new(
                    FaultKind::OutOfMemory,
                    operation,
                    format!(
                        "{} were asked for; the budget is {} of which {} are in use and {} \
                         promised{}",
                        Bytes(bytes),
                        Bytes(self.limit),
                        Bytes(in_use),
                        Bytes(reserved),
                        if never { ": this can never fit" } else { "" },
                    ),
                )
            })
    }
}

/// Bytes promised to a piece of work; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    bytes: u64,
    reserved: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_read_as_people_write_them() {
        for (text, bytes) in [
            ("2GiB", 2 << 30),
            ("512 MiB", 512 << 20),
            ("1.5G", 3 << 29),
            ("1000", 1000),
            ("2GB", 2_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in ["", "GiB", "-1", "1e3", "nan", "2 gigs"] {
            let error = wrong.parse::<Bytes>().unwrap_err();
            assert!(matches!(error, NotBytes::Syntax(_)), "{wrong}: {error:?}");
        }
        assert!(matches!("0".parse::<Bytes>(), Err(NotBytes::TooSmall(_))));
        assert!(matches!("99999999999GiB".parse::<Bytes>(), Err(NotBytes::TooLarge(_))));
    }

    #[test]
    fn a_reservation_is_given_back_when_dropped() {
        let budget = Budget::new(100);
        let first = budget.admit("a", 60, 10).unwrap();
        let fault = budget.admit("b", 40, 10).unwrap_err();
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
        drop(first);
        assert!(budget.admit("b", 40, 10).is_ok());
        assert!(budget.admit("c", 101, 0).unwrap_err().root_cause().contains("never fit"));
    }

    #[test]
    fn the_host_and_the_process_are_measured() {
        let host = host_memory();
        assert!(host.total > 0 && host.available <= host.total, "{host:?}");
        assert!(host.resident > 0 && host.resident < host.total, "{host:?}");
    }

    #[test]
    fn a_limit_on_address_space_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max address space         460800000            unlimited            bytes     \n";
        assert_eq!(soft_address_space_limit(limits), Some(460_800_000));
        assert_eq!(soft_address_space_limit(&limits.replace("460800000", "unlimited")), None);
    }

    proptest! {
        #[test]
        fn threads_never_overdraw_a_budget(sizes in prop::collection::vec(1u64..50, 1..20)) {
            let budget = Budget::new(200);
            let held: Vec<_> = sizes.iter().filter_map(|&n| budget.admit("x", n, 0).ok()).collect();
            prop_assert!(budget.reserved() <= 200);
            drop(held);
            prop_assert_eq!(budget.reserved(), 0);
        }

        #[test]
        fn what_is_shown_reads_back_to_about_the_same(bytes in 1u64..(1 << 50)) {
            let shown = Bytes(bytes).to_string().parse::<Bytes>().unwrap().0;
            prop_assert!((shown as f64 / bytes as f64 - 1.0).abs() < 0.01 || bytes < 1024);
        }
    }
}
