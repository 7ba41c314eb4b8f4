//! The processor, through Burn's flex backend.

use burn::tensor::Device;

use super::memory::host_memory;
use super::{DeviceInfo, DeviceKind, DeviceName, OpenDevice};

pub(super) fn open() -> OpenDevice {
    OpenDevice::new(info(), Device::flex())
}

pub(super) fn info() -> DeviceInfo {
    let host = host_memory();
    DeviceInfo {
        name: DeviceName::CPU,
        label: label(),
        kind: DeviceKind::Cpu,
        driver: "Burn flex".to_owned(),
        memory_total: Some(host.total),
        memory_used: Some(host.resident),
        unified_memory: true,
        max_buffer: None,
        dtypes: Vec::new(),
    }
}

fn label() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let brand = sysinfo::System::new().ok().and_then(|mut system| {
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        system.cpus().first().map(|cpu| cpu.brand().trim().to_owned())
    });
    let brand = brand
        .filter(|brand| !brand.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{brand}, {cores} core{}", if cores == 1 { "" } else { "s" })
}
