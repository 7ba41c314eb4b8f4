//! The best rates of a device: large matrix products for its arithmetic, and for its memory an
//! element-wise addition or the product of a row and a large matrix. Workloads are reported as a share
//! of these.

use std::time::{Duration, Instant};

use surefoot::Fault;
use surefoot::device::{DeviceKind, OpenDevice};
use surefoot::fault::{catch, from_panic};
use surefoot::place::Dtype;

use crate::report::Peak;
use crate::workload::{AddOne, Job, Matmul, RowByMatrix};

const SIZES: [usize; 5] = [512, 1024, 2048, 4096, 8192];
/// Runs of each size; the best one counts.
const RUNS: u32 = 3;

/// Measures a device in a precision. Sizes grow until one run takes `longest`.
pub(crate) fn measure(device: &OpenDevice, precision: Dtype, longest: Duration) -> Peak {
    let mut peak = Peak { device: device.name(), precision, flops: None, size: 0, bandwidth: None };
    for size in SIZES {
        if device.info.kind == DeviceKind::SoftwareGpu && size > 1024 {
            break;
        }
        let Ok((seconds, _)) = best(|| Box::new(Matmul::new(device, precision, size))) else {
            break;
        };
        let flops = 2.0 * (size as f64).powi(3) / seconds;
        if peak.flops.is_none_or(|known| flops > known) {
            (peak.flops, peak.size) = (Some(flops), size);
        }
        // The next one has eight times the work.
        if 8.0 * seconds > longest.as_secs_f64() {
            break;
        }
    }
    peak.bandwidth = [
        rate(|| Box::new(AddOne::new(device, precision))),
        rate(|| Box::new(RowByMatrix::new(device, precision))),
    ]
    .into_iter()
    .flatten()
    .reduce(f64::max);
    peak
}

/// Bytes per second.
fn rate(prepare: impl FnOnce() -> Box<dyn Job>) -> Option<f64> {
    let (seconds, bytes) = best(prepare).ok()?;
    Some(bytes? / seconds)
}

/// The shortest of a few runs, after one to warm up; several in a row where they are short.
fn best(prepare: impl FnOnce() -> Box<dyn Job>) -> Result<(f64, Option<f64>), Fault> {
    let measured = catch(|| {
        let mut job = prepare();
        job.run(1)?;
        let started = Instant::now();
        job.run(1)?;
        let once = started.elapsed().as_secs_f64();
        let repeats = (0.004 / once).ceil().clamp(1.0, 64.0) as u32;
        let mut best = once;
        for _ in 0..RUNS {
            let started = Instant::now();
            job.run(repeats)?;
            best = best.min(started.elapsed().as_secs_f64() / f64::from(repeats));
        }
        Ok((best, job.amount().bytes))
    });
    measured.unwrap_or_else(|record| Err(from_panic("peak", &record)))
}
