//! Which dtype a run computes in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Dtype, DtypeSupport, probe_dtype};
use crate::device::{DeviceKind, OpenDevice};
use crate::fault::{Fault, FaultKind};

/// What a person asks for with `--precision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// What serves best on the device.
    #[default]
    Auto,
    /// Everything in fp32.
    Fp32,
    /// Heavy operations in fp16, the rest in fp32.
    Fp16,
    /// Heavy operations in bf16, the rest in fp32.
    Bf16,
}

/// A precision settled for a device, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// The dtype of heavy operations.
    pub compute: Dtype,
    /// Why this one.
    pub reason: String,
}

impl Precision {
    /// Settles on a dtype that `device` was seen to compute right numbers in. A precision that
    /// was asked for by name and doesn't work is a fault, not a silent change.
    pub fn resolve(self, device: &OpenDevice) -> Result<Resolved, Fault> {
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
        match self {
            Self::Fp32 => asked(Dtype::F32),
            Self::Fp16 => asked(Dtype::F16),
            Self::Bf16 => asked(Dtype::BF16),
            Self::Auto => {
                let (compute, reason) = match device.info.kind {
                    DeviceKind::Cpu | DeviceKind::SoftwareGpu => {
                        (Dtype::F32, "the processor converts half precision to fp32 and back")
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
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        })
    }
}

/// A text that names no precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a precision; they are auto, fp32, fp16 and bf16")]
pub struct UnknownPrecision(String);

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Self, UnknownPrecision> {
        [Self::Auto, Self::Fp32, Self::Fp16, Self::Bf16]
            .into_iter()
            .find(|precision| precision.to_string() == text.to_ascii_lowercase())
            .ok_or_else(|| UnknownPrecision(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceName, open};

    #[test]
    fn auto_on_the_cpu_is_fp32_and_says_why() {
        let cpu = open(DeviceName::CPU).unwrap();
        let resolved = Precision::Auto.resolve(&cpu).unwrap();
        assert_eq!(resolved.compute, Dtype::F32);
        assert!(!resolved.reason.is_empty());
    }

    #[test]
    fn a_precision_reads_as_it_is_written() {
        for text in ["auto", "fp32", "fp16", "bf16"] {
            assert_eq!(text.parse::<Precision>().unwrap().to_string(), text);
        }
        assert!("int8".parse::<Precision>().unwrap_err().to_string().contains("'int8'"));
    }
}
