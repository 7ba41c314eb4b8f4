//! NVIDIA GPUs through CUDA. Burn's constructor panics where the hardware is absent, so the
//! index is checked against the devices that are there first.

use burn::tensor::{Device, DeviceType};

use super::{DeviceInfo, DeviceKind, DeviceName, OpenDevice};
use crate::fault::{Fault, FaultKind};

/// How many CUDA devices there are.
pub(super) fn count() -> usize {
    Device::enumerate(DeviceType::Cuda).len()
}

pub(super) fn open(name: DeviceName) -> Result<OpenDevice, Fault> {
    let there = count();
    if name.index >= there {
        let message = match there {
            0 => "CUDA finds no device: no NVIDIA driver, or none that it can use".to_owned(),
            there => format!("CUDA has {there} device(s), cuda:0 to cuda:{}", there - 1),
        };
        return Err(Fault::new(FaultKind::DriverOrInit, "open", message));
    }
    let device = Device::cuda(name.index);
    let label = device.identity().map_or_else(|| "NVIDIA GPU".to_owned(), |id| id.name);
    let info = DeviceInfo {
        name,
        label,
        kind: DeviceKind::DiscreteGpu,
        driver: "CUDA".to_owned(),
        memory_total: None,
        memory_used: None,
        unified_memory: false,
        max_buffer: None,
        dtypes: Vec::new(),
    };
    Ok(OpenDevice::new(info, device))
}
