//! How fast data goes to a device and back.

use std::time::Instant;

use burn::tensor::{Tensor, TensorData};

use crate::device::{Backend, DeviceKind, OpenDevice};
use crate::fault::{Fault, from_error};

const ROUNDS: usize = 5;

pub(super) fn copies(device: &OpenDevice) -> Result<String, Fault> {
    // A software device copies with the CPU: less shows as much.
    let bytes = if device.info.kind == DeviceKind::SoftwareGpu { 16 << 20 } else { 64 << 20 };
    let data = TensorData::new(vec![1.5f32; bytes / 4], [bytes / 4]);
    let (mut up, mut down) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let copy = data.clone();
        let started = Instant::now();
        let tensor = Tensor::<1>::from_data(copy, device.burn());
        // Reading one value waits until the data has arrived.
        read(tensor.clone().slice([0..1]))?;
        up = up.min(started.elapsed().as_secs_f64());
        let started = Instant::now();
        read(tensor)?;
        down = down.min(started.elapsed().as_secs_f64());
    }
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    // The CPU takes the memory as it is: there is no copy to time.
    let there = match device.name().backend {
        Backend::Cpu => "handed over without a copy".to_owned(),
        _ => format!("{:.1} GB/s to the device", rate(up)),
    };
    Ok(format!("{there}, {:.1} GB/s back", rate(down)))
}

fn read(tensor: Tensor<1>) -> Result<(), Fault> {
    let data = tensor.try_into_data().map_err(|error| from_error("copy", error))?;
    // A backend on the host may hand its own memory over; touching it makes the copy real.
    let values = data.try_to_vec::<f32>().map_err(|error| from_error("copy", error))?;
    std::hint::black_box(values);
    Ok(())
}
