//! The one authority for memory: how many bytes may still be allocated on a device and on the host.
//! Plans of models, admission, a server's cache and training's estimates all ask it.

use super::{Footing, Ready};
use crate::device::DeviceName;
use crate::device::memory::{Reservation, host_memory};
use crate::engine::Engine;
use crate::fault::Fault;
use crate::journal::{Event, EventKind};

/// Bytes that may still be allocated, by the one authority that plans, admission, caches and
/// training ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// On the device.
    pub device: u64,
    /// On the host: the same bytes, where the device shares the host's memory.
    pub host: u64,
    /// Whether the two are the same memory.
    pub is_shared: bool,
    /// Bytes that this process holds on the device.
    pub device_in_use: u64,
    /// Bytes that this process holds on the host.
    pub host_in_use: u64,
}

impl Room {
    /// The most bytes that this process may come to hold on the device.
    pub fn device_limit(&self) -> u64 {
        self.device_in_use.saturating_add(self.device)
    }

    /// The most bytes that this process may come to hold on the host.
    pub fn host_limit(&self) -> u64 {
        self.host_in_use.saturating_add(self.host)
    }
}

impl<E: Engine> Footing<E> {
    /// What the opened devices use and used at most.
    pub fn memory(&self) -> Vec<(DeviceName, u64, u64)> {
        let measure = |ready: &Ready<E>| {
            let device = &ready.device;
            (ready.target.name, self.engine.memory_in_use(device), self.engine.memory_peak(device))
        };
        self.opened().map(measure).collect()
    }

    /// How many bytes may still be allocated on the device that work starts on, and on the host.
    pub fn room(&self) -> Result<Room, Fault> {
        let at = self.usable_from(0).ok_or_else(|| self.nothing_left())?;
        Ok(self.room_on(self.ready(at)?))
    }

    /// How many bytes may still be allocated on a device of the chain, and on the host.
    pub fn room_of(&self, name: DeviceName) -> Result<Room, Fault> {
        Ok(self.room_on(self.ready_named(name)?))
    }

    /// How many bytes may still be allocated on a device: what is left of the budget, of the
    /// device and, where they share memory, of the host. The budget is for each device, and the
    /// host is one.
    pub(crate) fn room_on(&self, ready: &Ready<E>) -> Room {
        let host = host_memory();
        let budget_left =
            self.memory.map_or(u64::MAX, |budget| budget.saturating_sub(host.resident));
        let on_host = host.available.min(budget_left);
        let device_in_use = self.engine.memory_in_use(&ready.device);
        let promised = ready.budget.reserved();
        let within = ready.budget.limit().saturating_sub(device_in_use).saturating_sub(promised);
        let available = self.engine.memory_available(&ready.device).unwrap_or(u64::MAX);
        let on_device = within.min(available.saturating_sub(promised));
        let is_shared = self.engine.shares_host_memory(&ready.device);
        let (device, host_room, host_in_use) = match is_shared {
            // The two were measured one after the other: with the smaller one, memory that another thread allocated
            // in between would be missing from the limit.
            true => {
                let room = on_device.min(on_host);
                (room, room, host.resident.max(device_in_use))
            }
            false => (on_device, on_host, host.resident),
        };
        Room { device, host: host_room, is_shared, device_in_use, host_in_use }
    }

    /// Reserves bytes on the device that work starts on, before they are allocated: an
    /// out-of-memory fault if they would exceed the budget or what there is.
    pub fn reserve(&self, operation: &str, bytes: u64) -> Result<Reservation, Fault> {
        let at = self.usable_from(0).ok_or_else(|| self.nothing_left())?;
        self.reserve_on(self.ready(at)?, operation, bytes)
    }

    pub(crate) fn reserve_on(
        &self,
        ready: &Ready<E>,
        operation: &str,
        bytes: u64,
    ) -> Result<Reservation, Fault> {
        let in_use = self.engine.memory_in_use(&ready.device);
        // Other programs take from the same memory: what they hold counts as in use.
        let available = self.engine.memory_available(&ready.device).unwrap_or(u64::MAX);
        let in_use = in_use.max(ready.budget.limit().saturating_sub(available));
        ready.budget.admit(operation, bytes, in_use).map_err(|fault| fault.on(&ready.label))
    }

    /// Returns unused memory on every opened device; gives the bytes that came back.
    pub fn reclaim(&self) -> u64 {
        self.opened().map(|ready| self.reclaim_on(ready)).sum()
    }

    pub(crate) fn reclaim_on(&self, ready: &Ready<E>) -> u64 {
        let returned = self.engine.reclaim(&ready.device);
        self.journal.with(|| {
            Event::new(EventKind::Cleanup, "reclaim")
                .device(ready.label.clone())
                .bytes(returned)
                .context("in_use", self.engine.memory_in_use(&ready.device))
        });
        returned
    }
}
