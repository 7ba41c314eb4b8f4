//! Many threads on one device: each has its own input and must get its own result.

use std::sync::Barrier;
use std::time::Instant;

use burn::tensor::{Tensor, TensorData};

use super::arithmetic::{has_tf32, judge};
use super::reference::{Matrix, wave};
use crate::device::OpenDevice;
use crate::fault::{Fault, FaultKind, catch, from_error, from_panic};

const THREADS: usize = 8;

pub(super) fn cold(device: &OpenDevice) -> Result<String, Fault> {
    race(device, 1)
}

pub(super) fn warm(device: &OpenDevice) -> Result<String, Fault> {
    race(device, 8)
}

fn race(device: &OpenDevice, rounds: usize) -> Result<String, Fault> {
    let barrier = Barrier::new(THREADS);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let runners: Vec<_> = (0..THREADS)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    catch(|| (0..rounds).try_for_each(|round| product(device, thread, round)))
                        .unwrap_or_else(|record| Err(from_panic("threads", &record)))
                })
            })
            .collect();
        runners.into_iter().try_for_each(|runner| {
            runner.join().unwrap_or_else(|_| {
                Err(Fault::new(FaultKind::DeviceLost, "threads", "a thread did not come back"))
            })
        })
    })?;
    let each = started.elapsed().as_secs_f64() * 1e3 / rounds as f64;
    Ok(format!("{} right results, {each:.1} ms a round", THREADS * rounds))
}

fn product(device: &OpenDevice, thread: usize, round: usize) -> Result<(), Fault> {
    let seed = (thread * 31 + round) as f64;
    let a = Matrix::new(32, 48, wave(seed));
    let b = Matrix::new(48, 16, wave(seed + 0.5));
    let on = |m: &Matrix| {
        Tensor::<2>::from_data(TensorData::new(m.f32s(), [m.rows, m.columns]), device.burn())
    };
    let found = on(&a)
        .matmul(on(&b))
        .try_into_data()
        .map_err(|error| from_error("threads", error))?
        .try_to_vec::<f32>()
        .map_err(|error| from_error("threads", error))?;
    judge("threads", has_tf32(device), &found, &a.times(&b).values, 1e-5)
        .map(drop)
        .map_err(|fault| fault.context(format!("in thread {thread}")))
}
