//! Storage: what is written comes back, what was not written can't be read, what doesn't fit is
//! refused and the device lives on.

use burn::tensor::{Tensor, TensorData};

use super::arithmetic;
use crate::device::memory::{Budget, Bytes};
use crate::device::{Backend, OpenDevice};
use crate::fault::{Fault, FaultKind, from_error};
use crate::place::Slot;
use crate::recover::Confirm;

pub(super) fn round_trip(device: &OpenDevice) -> Result<String, Fault> {
    // Odd length, so that nothing is aligned by luck.
    let values: Vec<f32> =
        (0..262_147u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as f32).collect();
    let length = values.len();
    let tensor = Tensor::<1>::from_data(TensorData::new(values.clone(), [length]), device.burn());
    let back = tensor
        .try_into_data()
        .map_err(|error| from_error("read back", error))?
        .try_to_vec::<f32>()
        .map_err(|error| from_error("read back", error))?;
    match back == values {
        true => Ok(format!("{} came back the same", Bytes(4 * length as u64))),
        false => Err(Fault::new(FaultKind::Numeric, "read back", "other numbers came back")),
    }
}

pub(super) fn unwritten(device: &OpenDevice) -> Result<String, Fault> {
    let mut slot = Slot::new("storage", [4, 4]);
    let Err(refusal) = slot.read() else {
        let message = "storage that was never written could be read";
        return Err(Fault::new(FaultKind::PlaceholderStorage, "read", message));
    };
    slot.write(Tensor::ones([4, 4], device.burn()))?;
    let sum = slot.read()?.sum().try_into_data();
    sum.map_err(|error| from_error("read", error))?;
    Ok(format!("as {}", refusal.kind))
}

pub(super) fn over_limit(device: &OpenDevice) -> Result<String, Fault> {
    let refusal = match device.name().backend {
        // An allocation that the host can't give aborts the process: it is refused before.
        Backend::Cpu => {
            let limit = device.info.memory_total.unwrap_or(u64::MAX / 2);
            Budget::new(limit).admit("allocate", limit + 1, 0).map(drop).err()
        }
        _ => {
            let limit = device.info.max_buffer.or(device.info.memory_total).unwrap_or(1 << 40);
            let elements = (limit / 4 + 1024) as usize;
            let tensor = Tensor::<1>::zeros([elements], device.burn());
            tensor.confirm("allocate").err()
        }
    };
    let refusal = refusal.ok_or_else(|| {
        Fault::new(FaultKind::OutOfMemory, "allocate", "more than the limit was promised")
    })?;
    if refusal.kind != FaultKind::OutOfMemory {
        return Err(refusal.context("refused, but for another reason than memory"));
    }
    arithmetic::matmul(device).map_err(|fault| fault.context("the device fails afterwards"))?;
    Ok(format!("as {}; the device works afterwards", refusal.kind))
}
