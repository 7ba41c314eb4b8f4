//! Which dtype a run computes in on one of Burn's devices.

use surefoot_core::precision::{Precision, Resolved};

use super::{Dtype, DtypeSupport, probe_dtype};
use crate::device::{DeviceKind, OpenDevice};
use crate::fault::{Fault, FaultKind};

/// Settles on a dtype that `device` was seen to compute right numbers in. A precision that was
/// asked for by name and doesn't work is a fault, not a silent change.
pub(crate) fn settle(device: &OpenDevice, wanted: Precision) -> Result<Resolved, Fault> {
    let works = |dtype| probe_dtype(device, dtype) == DtypeSupport::Works;
    let asked = |dtype: Dtype| match probe_dtype(device, dtype) {
        DtypeSupport::Works => {
            Ok(Resolved { compute: dtype, reason: format!("{dtype} was asked for") })
        }
        support => Err(Fault::new(
            FaultKind::UnsupportedDtype,
            "precision",
            format!("{} ({}): {dtype} is {support}", device.name(), device.info.label),
        )
        .on(device.name().to_string())
        .advise("use --precision auto or fp32")),
    };
    match wanted {
        Precision::Fp32 => asked(Dtype::F32),
        Precision::Fp16 => asked(Dtype::F16),
        Precision::Bf16 => asked(Dtype::BF16),
        Precision::Auto => {
            let (compute, reason) = match device.info.kind {
                DeviceKind::Cpu | DeviceKind::SoftwareGpu => {
                    (Dtype::F32, "the CPU converts half precision to fp32 and back")
                }
                _ if works(Dtype::BF16) => {
                    (Dtype::BF16, "bf16 works here and has the range of fp32")
                }
                _ if works(Dtype::F16) => (Dtype::F16, "fp16 works here, bf16 doesn't"),
                _ => (Dtype::F32, "neither fp16 nor bf16 works here"),
            };
            Ok(Resolved { compute, reason: reason.to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceName, open};

    #[test]
    fn auto_on_the_cpu_is_fp32_and_says_why() {
        let cpu = open(DeviceName::CPU).unwrap();
        let resolved = settle(&cpu, Precision::Auto).unwrap();
        assert_eq!(resolved.compute, Dtype::F32);
        assert!(!resolved.reason.is_empty());
    }
}
