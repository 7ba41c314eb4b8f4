//! Burn's float dtypes for ours, and what a device really does with them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use serde::{Deserialize, Serialize};
pub use surefoot_core::precision::Dtype;

use crate::device::{DeviceName, OpenDevice};
use crate::fault::catch;

/// Our dtype for one of Burn's; none for an integer, bool or quantised one.
pub fn dtype_of(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F64 => Some(Dtype::F64),
        DType::F32 | DType::Flex32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

/// Burn's float dtype for ours.
pub fn float_dtype(dtype: Dtype) -> FloatDType {
    match dtype {
        Dtype::F64 => FloatDType::F64,
        Dtype::F32 => FloatDType::F32,
        Dtype::F16 => FloatDType::F16,
        Dtype::BF16 => FloatDType::BF16,
    }
}

/// What a device does with a dtype, found by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DtypeSupport {
    /// Stores it and computes right numbers in it.
    Works,
    /// Keeps and converts it, but its arithmetic is wrong or missing.
    StoredOnly,
    /// Can't hold it.
    Refused,
}

impl fmt::Display for DtypeSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Works => "works",
            Self::StoredOnly => "stored only",
            Self::Refused => "refused",
        })
    }
}

/// Tries `dtype` on `device`: stores numbers and reads them back, then multiplies matrices,
/// adds and casts, against the same sums on the host. Done once per device and dtype.
///
/// Where the backend itself says that it can't compute in the dtype, arithmetic is not tried:
/// its numbers would be an accident of the driver.
pub fn probe_dtype(device: &OpenDevice, dtype: Dtype) -> DtypeSupport {
    static KNOWN: OnceLock<Mutex<HashMap<(DeviceName, Dtype), DtypeSupport>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let key = (device.name(), dtype);
    if let Some(support) = known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return *support;
    }
    let support = if !stores(device, dtype) {
        DtypeSupport::Refused
    } else if device.info.dtypes.contains(&dtype) && computes(device, dtype) {
        DtypeSupport::Works
    } else {
        DtypeSupport::StoredOnly
    };
    known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, support);
    support
}

fn burn_dtype(dtype: Dtype) -> DType {
    float_dtype(dtype).into()
}

/// Small integers, which every float dtype holds exactly.
fn numbers() -> Vec<f32> {
    (0..16).map(|i| (i % 7) as f32 - 3.0).collect()
}

fn stores(device: &OpenDevice, dtype: Dtype) -> bool {
    let read = catch(|| {
        let data = TensorData::new(numbers(), [4, 4]).convert_dtype(burn_dtype(dtype));
        let tensor = Tensor::<2>::from_data(data, (device.burn(), burn_dtype(dtype)));
        tensor.try_into_data().ok()?.try_cast_as::<f32>().ok()?.try_to_vec::<f32>().ok()
    });
    matches!(read, Ok(Some(values)) if values == numbers())
}

fn computes(device: &OpenDevice, dtype: Dtype) -> bool {
    let (a, expected) = (numbers(), host_square_plus_self(&numbers()));
    let read = catch(|| {
        let data = TensorData::new(a, [4, 4]).convert_dtype(burn_dtype(dtype));
        let tensor = Tensor::<2>::from_data(data, (device.burn(), burn_dtype(dtype)));
        let result = tensor.clone().matmul(tensor.clone()) + tensor;
        result.try_into_data().ok()?.try_cast_as::<f32>().ok()?.try_to_vec::<f32>().ok()
    });
    // All numbers are small integers, so the result is exact in every dtype.
    matches!(read, Ok(Some(values)) if values == expected) && casts(device, dtype)
}

/// Whether numbers survive being cast to `dtype` and back on the device.
fn casts(device: &OpenDevice, dtype: Dtype) -> bool {
    let read = catch(|| {
        let tensor = Tensor::<2>::from_data(TensorData::new(numbers(), [4, 4]), device.burn());
        let back = tensor.cast(float_dtype(dtype)).cast(FloatDType::F32);
        back.try_into_data().ok()?.try_to_vec::<f32>().ok()
    });
    matches!(read, Ok(Some(values)) if values == numbers())
}

fn host_square_plus_self(a: &[f32]) -> Vec<f32> {
    (0..16)
        .map(|at| {
            let (row, column) = (at / 4, at % 4);
            (0..4).map(|k| a[row * 4 + k] * a[k * 4 + column]).sum::<f32>() + a[at]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::open;

    #[test]
    fn the_cpu_computes_in_fp32_and_fp64() {
        let cpu = open(DeviceName::CPU).unwrap();
        assert_eq!(probe_dtype(&cpu, Dtype::F32), DtypeSupport::Works);
        assert_eq!(probe_dtype(&cpu, Dtype::F64), DtypeSupport::Works);
        for dtype in [Dtype::F16, Dtype::BF16] {
            assert_ne!(probe_dtype(&cpu, dtype), DtypeSupport::Refused, "{dtype}");
        }
    }
}
