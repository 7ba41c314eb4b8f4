//! What a device can do in a dtype, as a list a person or a planner can read.

use serde::Serialize;

use super::{Dtype, DtypeSupport, probe_dtype};
use crate::device::{DeviceName, OpenDevice};

/// The limits of a device and dtype.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// The device.
    pub device: DeviceName,
    /// The dtype.
    pub dtype: Dtype,
    /// What the device does with it, found by trying.
    pub support: DtypeSupport,
    /// The largest single buffer in bytes, if there is a limit.
    pub max_buffer: Option<u64>,
    /// The most elements of this dtype in one tensor, if there is a limit.
    pub max_elements: Option<u64>,
    /// The largest finite number.
    pub largest: f64,
    /// The gap between 1 and the next number.
    pub epsilon: f64,
    /// What to look out for.
    pub notes: Vec<String>,
}

/// Lists the limits of `device` in `dtype`.
pub fn check_limits(device: &OpenDevice, dtype: Dtype) -> Limits {
    let support = probe_dtype(device, dtype);
    let mut notes = Vec::new();
    match (dtype, support) {
        (Dtype::F16, DtypeSupport::Works) => notes.push(
            "numbers above 65504 overflow: train with loss scaling, keep norms and the loss in \
             fp32"
                .to_owned(),
        ),
        (Dtype::BF16, DtypeSupport::Works) => notes.push(
            "8 bits of precision: keep the master weights, norms and the loss in fp32".to_owned(),
        ),
        (_, DtypeSupport::StoredOnly) => notes.push(format!(
            "tensors can be kept in {dtype} but must be cast to fp32 to compute: the device's \
             own arithmetic in it gives wrong numbers or none"
        )),
        (_, DtypeSupport::Refused) => notes.push(format!("{} can't hold {dtype}", device.name())),
        _ => {}
    }
    Limits {
        device: device.name(),
        dtype,
        support,
        max_buffer: device.info.max_buffer,
        max_elements: device.info.max_buffer.map(|bytes| bytes / dtype.size() as u64),
        largest: dtype.largest(),
        epsilon: dtype.epsilon(),
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::open;

    #[test]
    fn limits_of_the_cpu_are_those_of_the_dtype() {
        let cpu = open(DeviceName::CPU).unwrap();
        let limits = check_limits(&cpu, Dtype::F16);
        assert_eq!(limits.largest, 65_504.0);
        assert_eq!(limits.max_buffer, None);
        assert_eq!(check_limits(&cpu, Dtype::F32).support, DtypeSupport::Works);
    }
}
