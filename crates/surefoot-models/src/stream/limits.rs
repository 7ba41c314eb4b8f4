//! How much memory a plan may use, for the host and the device apart.
//!
//! A budget is for each memory: on a device with memory of its own the process may hold so much on
//! the host and the model so much on the device; on a device that shares the host's memory it is one
//! amount for both. Without a budget the limit is what the host and the device have. Both come from
//! the footing ([`Room`]), which every planner asks.

use surefoot::Room;

use super::process;

/// Address space for the stacks of threads and what else is not memory in use, where address space
/// is limited.
const ADDRESS_SPACE_RESERVE: u64 = 48 << 20;

/// The most bytes that a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of host memory, for the whole process; unlimited if none.
    pub host: Option<u64>,
    /// Of the device's memory.
    pub device: DeviceMemory,
}

/// Where the memory of a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceMemory {
    /// It is the host's.
    Shared,
    /// It is the device's own.
    Own {
        /// The most bytes of it; unlimited if none, where the device does not report its size.
        limit: Option<u64>,
    },
}

impl MemoryLimits {
    /// One budget for the process on a device that shares the host's memory.
    pub fn shared(budget: Option<u64>) -> Self {
        Self { host: budget, device: DeviceMemory::Shared }
    }

    /// What a budget allows on a device that has `room`.
    pub(crate) fn of_budget(room: &Room, budget: Option<u64>) -> Self {
        let device = match room.is_shared {
            true => DeviceMemory::Shared,
            false => DeviceMemory::Own { limit: budget },
        };
        Self { host: budget, device }
    }

    /// All that a process may come to hold where it has `room`. What it holds now counts in full: a
    /// model is dropped before the next is loaded.
    pub(crate) fn of_room(room: &Room) -> Self {
        let device = match room.is_shared {
            true => DeviceMemory::Shared,
            false => {
                let limit = room.device_limit();
                DeviceMemory::Own { limit: (limit < u64::MAX).then_some(limit) }
            }
        };
        let reserve = match process::is_address_space_limited() {
            true => ADDRESS_SPACE_RESERVE,
            false => 0,
        };
        Self { host: Some(room.host_limit().saturating_sub(reserve)), device }
    }
}
