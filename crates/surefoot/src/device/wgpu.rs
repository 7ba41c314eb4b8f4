//! GPUs through wgpu: Metal on macOS, Vulkan elsewhere.
//!
//! Devices are opened by `wgpu_options().init()`, which returns an error where Burn's plain
//! constructors panic at first use. Adapters are listed best first, so that `gpu` is the
//! fastest one and a software rasteriser comes last.

use std::sync::OnceLock;

use burn::tensor::wgpu::{WgpuBackend, wgpu};
use burn::tensor::{Device, DeviceKind as Adapter, read_sync};

use super::memory::host_memory;
use super::{DeviceInfo, DeviceKind, DeviceName, OpenDevice};
use crate::fault::{Fault, FaultKind, from_error};

#[cfg(target_os = "macos")]
const API: (WgpuBackend, wgpu::Backends, &str) =
    (WgpuBackend::Metal, wgpu::Backends::METAL, "Metal");
#[cfg(not(target_os = "macos"))]
const API: (WgpuBackend, wgpu::Backends, &str) =
    (WgpuBackend::Vulkan, wgpu::Backends::VULKAN, "Vulkan");

/// The adapters, best first, with the selector that opens each.
fn adapters() -> &'static [(Adapter, wgpu::AdapterInfo)] {
    // The instance is kept: the Vulkan loader crashes when instances come and go while another
    // thread makes one.
    static ADAPTERS: OnceLock<(wgpu::Instance, Vec<(Adapter, wgpu::AdapterInfo)>)> =
        OnceLock::new();
    let (_, adapters) = ADAPTERS.get_or_init(|| {
        let (_, backends, _) = API;
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let found = read_sync(instance.enumerate_adapters(backends));
        let mut adapters = with_selectors(found.iter().map(wgpu::Adapter::get_info).collect());
        adapters.sort_by_key(|(selector, _)| rank(selector));
        (instance, adapters)
    });
    adapters
}

/// Each kind of adapter counts from zero on its own.
fn with_selectors(infos: Vec<wgpu::AdapterInfo>) -> Vec<(Adapter, wgpu::AdapterInfo)> {
    let (mut discrete, mut integrated, mut shared) = (0.., 0.., 0..);
    let mut software_seen = false;
    infos
        .into_iter()
        .filter_map(|info| {
            let selector = match info.device_type {
                wgpu::DeviceType::DiscreteGpu => Adapter::DiscreteGpu(discrete.next()?),
                wgpu::DeviceType::IntegratedGpu => Adapter::IntegratedGpu(integrated.next()?),
                wgpu::DeviceType::VirtualGpu => Adapter::VirtualGpu(shared.next()?),
                // Burn can select only one of these.
                wgpu::DeviceType::Cpu if !std::mem::replace(&mut software_seen, true) => {
                    Adapter::Cpu
                }
                wgpu::DeviceType::Cpu | wgpu::DeviceType::Other => return None,
            };
            Some((selector, info))
        })
        .collect()
}

fn rank(selector: &Adapter) -> u8 {
    match selector {
        Adapter::DiscreteGpu(_) => 0,
        Adapter::IntegratedGpu(_) => 1,
        Adapter::VirtualGpu(_) => 2,
        _ => 3,
    }
}

/// How many adapters there are.
pub(super) fn count() -> usize {
    adapters().len()
}

pub(super) fn open(name: DeviceName) -> Result<OpenDevice, Fault> {
    let (api, _, api_name) = API;
    let found = adapters();
    let Some((selector, adapter)) = found.get(name.index) else {
        return Err(Fault::new(FaultKind::DriverOrInit, "open", missing(name, found.len())));
    };
    let (device, setup) = Device::wgpu_options()
        .device_kind(selector.clone())
        .graphics_api(api)
        .init_with_setup()
        .map_err(|error| from_error("open", error))?;
    let limits = setup.device.limits();
    let kind = match selector {
        Adapter::DiscreteGpu(_) => DeviceKind::DiscreteGpu,
        Adapter::IntegratedGpu(_) => DeviceKind::IntegratedGpu,
        Adapter::VirtualGpu(_) => DeviceKind::VirtualGpu,
        _ => DeviceKind::SoftwareGpu,
    };
    let unified_memory = matches!(kind, DeviceKind::IntegratedGpu | DeviceKind::SoftwareGpu);
    let (memory_total, memory_used) = if unified_memory {
        let host = host_memory();
        (Some(host.total), Some(host.total.saturating_sub(host.available)))
    } else {
        card_memory(adapter)
    };
    let info = DeviceInfo {
        name,
        label: adapter.name.clone(),
        kind,
        driver: format!("{api_name}, {} {}", adapter.driver, adapter.driver_info).trim().to_owned(),
        memory_total,
        memory_used,
        unified_memory,
        max_buffer: Some(limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)),
        dtypes: Vec::new(),
    };
    Ok(OpenDevice::new(info, device))
}

fn missing(name: DeviceName, found: usize) -> String {
    let (_, _, api) = API;
    match found {
        0 if cfg!(target_os = "macos") => format!("{api} finds no GPU"),
        0 => format!(
            "{api} finds no device: either the loader (libvulkan.so.1, Debian's libvulkan1) or a \
             driver for it is missing (NVIDIA's, or Debian's mesa-vulkan-drivers), or the driver \
             sees no GPU; `vulkaninfo --summary` says which"
        ),
        1 => format!("there is one such device, {}", DeviceName { index: 0, ..name }),
        found => format!(
            "there are {found} such devices, {} to {}",
            DeviceName { index: 0, ..name },
            DeviceName { index: found - 1, ..name },
        ),
    }
}

/// A card's own memory, in total and in use. wgpu does not report it, the vendor's driver does.
fn card_memory(adapter: &wgpu::AdapterInfo) -> (Option<u64>, Option<u64>) {
    const NVIDIA: u32 = 0x10de;
    #[cfg(feature = "gpu")]
    if adapter.vendor == NVIDIA
        && let Some((total, used)) = nvidia_memory(&adapter.device_pci_bus_id)
    {
        return (Some(total), Some(used));
    }
    let read = |what: &str| {
        let path = format!("/sys/bus/pci/devices/{}/{what}", adapter.device_pci_bus_id);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    (read("mem_info_vram_total"), read("mem_info_vram_used"))
}

#[cfg(feature = "gpu")]
fn nvidia_memory(bus: &str) -> Option<(u64, u64)> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    let memory = nvml.device_by_pci_bus_id(bus).ok()?.memory_info().ok()?;
    Some((memory.total, memory.used))
}
