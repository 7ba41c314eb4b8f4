//! Float dtypes by name, and which one a run computes in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A float dtype, by the name people use for its precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dtype {
    /// 32 bits: the reference.
    #[serde(rename = "fp32")]
    F32,
    /// 16 bits with 5 for the exponent: up to 65,504.
    #[serde(rename = "fp16")]
    F16,
    /// 16 bits with the range of fp32 and 8 bits of precision.
    #[serde(rename = "bf16")]
    BF16,
    /// 64 bits.
    #[serde(rename = "fp64")]
    F64,
}

impl Dtype {
    /// Every dtype.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::BF16, Self::F64];

    /// Its name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::F16 => "fp16",
            Self::BF16 => "bf16",
            Self::F64 => "fp64",
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The gap between 1 and the next number.
    pub fn epsilon(self) -> f64 {
        match self {
            Self::F64 => f64::EPSILON,
            Self::F32 => f64::from(f32::EPSILON),
            Self::F16 => 2f64.powi(-10),
            Self::BF16 => 2f64.powi(-7),
        }
    }

    /// The largest finite number.
    pub fn largest(self) -> f64 {
        match self {
            Self::F64 => f64::MAX,
            Self::F32 => f64::from(f32::MAX),
            Self::F16 => 65_504.0,
            Self::BF16 => 3.389_531_389_251_535e38,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

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

/// The precision that was settled for a device, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// The dtype of heavy operations.
    pub compute: Dtype,
    /// Why this one.
    pub reason: String,
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

    #[test]
    fn names_are_the_same_in_text_and_json() {
        for dtype in Dtype::ALL {
            assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.as_str());
        }
    }

    #[test]
    fn a_precision_reads_as_it_is_written() {
        for text in ["auto", "fp32", "fp16", "bf16"] {
            assert_eq!(text.parse::<Precision>().unwrap().to_string(), text);
        }
        assert!("int8".parse::<Precision>().unwrap_err().to_string().contains("'int8'"));
    }
}
