//! Opening a device, once per process, and what is known of it then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::memory;
use super::{Backend, DeviceName};
use crate::fault::{Fault, FaultKind, catch, from_panic};
use crate::place::{Dtype, float_dtype};

/// What sort of hardware a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// A GPU with memory of its own.
    DiscreteGpu,
    /// A GPU that shares the CPU's memory.
    IntegratedGpu,
    /// A share of a GPU, passed through by a hypervisor.
    VirtualGpu,
    /// A graphics driver that computes on the CPU.
    SoftwareGpu,
}

/// What a device is, as far as that is known without computing on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// What it is called in `--device`.
    pub name: DeviceName,
    /// The hardware's own name.
    pub label: String,
    /// What sort of hardware it is.
    pub kind: DeviceKind,
    /// The API it is reached through, with its driver.
    pub driver: String,
    /// All of its memory, where the system reports it.
    pub memory_total: Option<u64>,
    /// What of that is in use: by this process on the CPU, by anyone on a GPU that reports it.
    pub memory_used: Option<u64>,
    /// Whether it shares its memory with the CPU.
    pub unified_memory: bool,
    /// The largest single buffer, where there is such a limit.
    pub max_buffer: Option<u64>,
    /// The dtypes that the backend promises to compute in. A probe may find less.
    pub dtypes: Vec<Dtype>,
}

/// A device that answered. Opened once per process; clones of the inner handle are cheap.
#[derive(Debug)]
pub struct OpenDevice {
    /// What it is.
    pub info: DeviceInfo,
    device: Device,
    peak: AtomicU64,
}

impl OpenDevice {
    pub(super) fn new(mut info: DeviceInfo, device: Device) -> Self {
        info.dtypes = Dtype::ALL
            .into_iter()
            .filter(|dtype| device.supports_dtype(float_dtype(*dtype)))
            .collect();
        Self { info, device, peak: AtomicU64::new(0) }
    }

    /// Burn's handle.
    pub fn burn(&self) -> &Device {
        &self.device
    }

    /// What it is called in `--device`.
    pub fn name(&self) -> DeviceName {
        self.info.name
    }

    /// Whether work goes on after a call returned, so that its errors only show when a result
    /// is read.
    pub fn is_asynchronous(&self) -> bool {
        self.info.name.backend != Backend::Cpu
    }

    /// Bytes in use now: this process's resident set on the CPU, the pool on a GPU.
    pub fn memory_in_use(&self) -> u64 {
        let used = match self.device.memory_pool_usage() {
            Some(usage) => usage.bytes_reserved,
            None => memory::resident(),
        };
        self.peak.fetch_max(used, Ordering::Relaxed);
        used
    }

    /// The most bytes that were ever in use: kept by the system for the CPU, the largest
    /// measurement for a GPU.
    pub fn memory_peak(&self) -> u64 {
        let seen = self.memory_in_use().max(self.peak.load(Ordering::Relaxed));
        match self.info.name.backend {
            Backend::Cpu => memory::peak_resident().map_or(seen, |peak| peak.max(seen)),
            _ => seen,
        }
    }

    /// Runs `work` and gives the most bytes that were in use meanwhile. What was in use earlier
    /// and is free again doesn't count, where the system can forget it.
    pub fn peak_during<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let on_cpu = self.info.name.backend == Backend::Cpu;
        // The system has one figure: what it has seen so far is kept for `memory_peak`.
        self.peak.fetch_max(self.memory_peak(), Ordering::Relaxed);
        if on_cpu {
            memory::forget_peak_resident();
        }
        let result = work();
        let used = self.memory_in_use();
        let system = memory::peak_resident().filter(|_| on_cpu);
        (result, system.map_or(used, |peak| peak.max(used)))
    }

    /// The bytes that an allocation may take before it would be refused or take the process
    /// down: what the host has available on the CPU and on unified memory, the rest of its own
    /// memory elsewhere.
    pub fn memory_available(&self) -> Option<u64> {
        if self.info.unified_memory {
            return Some(memory::host_memory().available);
        }
        self.info.memory_total.map(|total| total.saturating_sub(self.memory_in_use()))
    }

    /// Returns memory that nothing uses. Gives the bytes that came back.
    pub fn reclaim(&self) -> u64 {
        let before = self.memory_in_use();
        // Memory is only returned once the work that used it has left the queue.
        let _ = catch(|| {
            let _ = self.device.sync();
            self.device.memory_cleanup();
            let _ = self.device.sync();
        });
        before.saturating_sub(self.memory_in_use())
    }
}

/// Opens `name`, or gives the handle from when it was opened before.
///
/// Never panics: no loader, no driver, no adapter, an index beyond the last device all give a
/// [`FaultKind::DriverOrInit`] that says which.
pub fn open(name: DeviceName) -> Result<Arc<OpenDevice>, Fault> {
    static OPEN: OnceLock<Mutex<HashMap<DeviceName, Arc<OpenDevice>>>> = OnceLock::new();
    let registry = OPEN.get_or_init(Mutex::default);
    // Held while opening: a runtime can be registered only once, and the Vulkan loader does not
    // like instances that come and go on several threads.
    let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = registry.get(&name) {
        return Ok(Arc::clone(device));
    }
    let opened = catch(|| open_new(name))
        .unwrap_or_else(|record| Err(from_panic("open", &record)))
        .map_err(|fault| as_init_fault(fault, name))?;
    let opened = Arc::new(opened);
    registry.insert(name, Arc::clone(&opened));
    Ok(opened)
}

/// Whatever stopped a device from opening, it is a failure to bring it up.
fn as_init_fault(mut fault: Fault, name: DeviceName) -> Fault {
    let device = name.to_string();
    let chain = std::mem::take(&mut fault.chain);
    let mut init = Fault::new(FaultKind::DriverOrInit, "open", String::new()).on(device);
    init.chain = chain;
    init.chain.insert(0, format!("{name} is not available"));
    init
}

fn open_new(name: DeviceName) -> Result<OpenDevice, Fault> {
    #[cfg(any(feature = "gpu", feature = "cuda", target_os = "macos"))]
    if name.backend != Backend::Cpu {
        super::kernel_cache::keep_compiled();
    }
    match name.backend {
        Backend::Cpu => Ok(super::cpu::open(name)),
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        Backend::Metal | Backend::Vulkan | Backend::Gpu => super::wgpu::open(name),
        #[cfg(feature = "cuda")]
        Backend::Cuda => super::cuda::open(name),
        #[allow(unreachable_patterns)]
        other => Err(Fault::new(
            FaultKind::DriverOrInit,
            "open",
            format!("this build has no {}", other.as_str()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_opens_and_opens_only_once() {
        let first = open(DeviceName::CPU).unwrap();
        let second = open(DeviceName::CPU).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(first.info.dtypes.contains(&Dtype::F32));
        assert!(first.memory_in_use() > 0 && first.memory_peak() >= first.memory_in_use() / 2);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_peak_is_of_its_own_time_and_the_highest_is_not_forgotten() {
        let cpu = open(DeviceName::CPU).unwrap();
        let take =
            |bytes: usize| cpu.peak_during(|| std::hint::black_box(vec![1u8; bytes]).len()).1;
        let (high, low) = (take(256 << 20), take(1 << 20));
        assert!(low + (128 << 20) < high, "{low} {high}");
        assert!(cpu.memory_peak() >= high);
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_backend_of_another_build_is_a_fault_not_a_panic() {
        let fault = open(DeviceName { backend: Backend::Cuda, index: 0 }).unwrap_err();
        assert_eq!(fault.kind, FaultKind::DriverOrInit);
        assert!(fault.to_string().contains("cuda is not available"), "{fault}");
    }
}
