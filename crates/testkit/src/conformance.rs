//! What must hold on every device of Burn's, beyond what [`suite`](crate::suite) says of engines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use surefoot::device::health::Health;
use surefoot::device::probe::probe;
use surefoot::device::{OpenDevice, Selector};
use surefoot::place::{
    Dtype, DtypeSupport, Place, Precision, Weights, dtype_of, probe_dtype, target,
};
use surefoot::recover::{Drill, Part, Policy, Rung, Step, StepExt};
use surefoot::{FaultKind, Footing};

/// Two results in fp32 from different kernels differ by no more than this.
const TOLERANCE: f32 = 1e-4;

/// Held by cases that use or measure much memory, so that they don't disturb each other.
fn memory_to_myself() -> MutexGuard<'static, ()> {
    static MEMORY: Mutex<()> = Mutex::new(());
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn footing(device: &OpenDevice) -> Footing {
    footing_with(device, Drill::default())
}

fn footing_with(device: &OpenDevice, drill: Drill) -> Footing {
    Footing::builder()
        .devices(Selector::only(device.name()))
        .precision(Precision::Fp32)
        .policy(Policy::default().verify_recovery(true))
        .drill(drill)
        .build()
        .expect("the device opens")
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.to_data_as::<f32>().try_to_vec().expect("fp32")
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= TOLERANCE * scale, "element {at}: {a} for {b}");
    }
}

/// A small network on the host with its input and the output that is right for it.
fn network() -> (Linear, Tensor<2>, Vec<f32>) {
    let host = Device::flex();
    host.seed(7);
    let model = LinearConfig::new(12, 6).init(&host);
    let x = Tensor::random([16, 12], Distribution::Uniform(-1.0, 1.0), &host);
    let y = numbers(model.forward(x.clone()));
    (model, x, y)
}

/// The doctor's own probe.
pub fn probe_finds_it_healthy(device: &Arc<OpenDevice>) {
    let _guard = memory_to_myself();
    let report = probe(device, |_| ());
    assert!(report.is_healthy(), "{report:#?}");
}

/// Burn hands out data before a device has computed it; a guarded run ends when it has.
pub fn a_guarded_run_ends_when_its_work_is_done(device: &Arc<OpenDevice>) {
    let _guard = memory_to_myself();
    let footing = footing(device);
    let ones = Tensor::<2>::ones([256, 256], device.burn());
    let times: Vec<_> = (0..6)
        .map(|_| {
            let started = Instant::now();
            let product = footing
                .run("products", |_| {
                    Ok((0..16).fold(ones.clone(), |x, _| x.matmul(ones.clone()) / 256.0))
                })
                .expect("it runs")
                .value;
            let guarded = started.elapsed();
            let started = Instant::now();
            assert_close(&numbers(product.slice([0..1, 0..1])), &[1.0]);
            (guarded, started.elapsed())
        })
        .collect();
    // Another process may hold up a read, but not each of them.
    assert!(times.iter().any(|(guarded, read)| *read * 4 < *guarded), "{times:?}");
}

/// Weights and inputs from the host are placed, and the moves are recorded.
pub fn inputs_on_another_device_are_brought_here(device: &Arc<OpenDevice>) {
    let (model, x, expected) = network();
    let y = footing(device)
        .task("forward")
        .run_with((Weights(model), x), |step, (model, x)| {
            assert_eq!(x.device(), *step.device());
            Ok(model.forward(x))
        })
        .expect("it runs")
        .value;
    assert_eq!(y.device(), *device.burn());
    assert_close(&numbers(y), &expected);
}

/// f16 weights and f32 inputs: Burn on wgpu computes wrong numbers without an error.
pub fn a_mix_of_dtypes_is_repaired_before_the_device_sees_it(device: &Arc<OpenDevice>) {
    if probe_dtype(device, Dtype::F16) == DtypeSupport::Refused {
        return;
    }
    let (model, x, expected) = network();
    let halved = x.cast(FloatDType::F16);
    let rounded = numbers(model.forward(halved.clone().cast(FloatDType::F32)));
    let y = footing(device)
        .task("forward")
        .run_with((Weights(model), halved), |_, (model, x)| Ok(model.forward(x)))
        .expect("it runs")
        .value;
    assert_eq!(y.dtype(), DType::F32);
    let found = numbers(y);
    assert_close(&found, &rounded);
    assert_ne!(found, expected, "the half-precision input was used");
}

/// A target can be made in a dtype only if the device computes right numbers in it; fp32 it must.
pub fn a_dtype_it_cannot_compute_in_is_refused(device: &Arc<OpenDevice>) {
    for dtype in Dtype::ALL {
        match target(device, dtype) {
            Ok(target) => {
                let x = Tensor::<2>::from_floats([[1.0, -2.0], [3.0, 0.5]], &Device::flex());
                let x = x.place(&target);
                // [[1, -2], [3, 0.5]] squared; all of it is exact in every dtype.
                let square = x.clone().matmul(x);
                assert_eq!(dtype_of(square.dtype()), Some(dtype));
                assert_eq!(numbers(square), [-5.0, -3.0, 4.5, -5.75], "{dtype}");
            }
            Err(fault) => {
                assert_ne!(dtype, Dtype::F32, "{fault}");
                assert_eq!(fault.kind, FaultKind::UnsupportedDtype, "{dtype}");
            }
        }
    }
}

/// Gradients of a mean loss, accumulated over parts by their share of the samples.
pub fn split_gradients_equal_the_whole_batches(device: &Arc<OpenDevice>) {
    let (model, x, _) = network();
    let gradients = |drill: Drill| {
        let footing = footing_with(device, drill);
        let work = |step: &Step<'_>, model: Weights<Linear>, x: Tensor<2>| {
            let device = step.autodiff_device();
            let model = model.0.to_device(&device).train();
            let x = Tensor::<2>::from_data(x.try_into_data()?, &device);
            let loss = model.forward(x).powf_scalar(2.0).mean();
            let gradients = loss.backward();
            model.weight.val().grad(&gradients).ok_or_else(|| "no gradient".into())
        };
        let weighted_mean = |parts: Vec<Part<Tensor<2>>>| {
            let samples: usize = parts.iter().map(|part| part.samples).sum();
            let share = |part: &Part<Tensor<2>>| part.samples as f32 / samples as f32;
            let weighted = parts.iter().map(|part| part.value.clone() * share(part));
            weighted.reduce(|a, b| a + b).expect("there is a part")
        };
        let task = footing.task("step").split(x.clone()).with(Weights(model.clone()));
        let total = task.run_and_join(work, weighted_mean);
        numbers(total.unwrap_or_else(|fault| panic!("{fault}")).value)
    };
    let whole = gradients(Drill::default());
    let split = gradients(Drill::times(FaultKind::OutOfMemory, 3));
    assert_close(&split, &whole);
}

/// A wrong shape panics inside Burn; it is reported as the caller's, and the device is fine.
pub fn a_callers_mistake_is_reported_at_once_and_costs_no_health(device: &Arc<OpenDevice>) {
    let footing = footing(device);
    let mut tries = 0;
    let fault = footing
        .run("mistake", |step| {
            tries += 1;
            let a = Tensor::<2>::ones([2, 3], step.device());
            let b = Tensor::<2>::ones([2, 3], step.device());
            Ok(a.matmul(b))
        })
        .expect_err("the shapes don't fit");
    assert_eq!(fault.kind, FaultKind::ShapeMismatch, "{fault}");
    assert_eq!(tries, 1, "it was not retried");
    assert_eq!(footing.health()[0].1, Health::Healthy);
    let ones = footing.run("after", |step| Ok(Tensor::<2>::ones([2, 2], step.device())));
    assert_eq!(numbers(ones.expect("the device is fine").value), [1.0; 4]);
}

/// NaN in a result.
pub fn nan_is_a_numeric_fault_where_it_is_asked_for(device: &Arc<OpenDevice>) {
    let footing = footing(device);
    let make = || footing.task("log");
    let work = |step: &Step<'_>| Ok(Tensor::<1>::from_floats([1.0, -1.0], step.device()).log());
    assert!(make().run(work).is_ok());
    let fault = make().finite().run(work).expect_err("the log of -1 is no number");
    assert_eq!(fault.kind, FaultKind::Numeric, "{fault}");
}

/// Memory is measured, and comes back after a clean-up.
pub fn memory_in_use_falls_when_tensors_go(device: &Arc<OpenDevice>) {
    const BYTES: u64 = 48 << 20;
    let _guard = memory_to_myself();
    device.reclaim();
    let before = device.memory_in_use();
    let held = Tensor::<1>::ones([BYTES as usize / 4], device.burn()) * 2.0;
    assert_eq!(held.clone().slice([5..6]).into_scalar::<f32>(), 2.0);
    let during = device.memory_in_use();
    assert!(during >= before + BYTES * 9 / 10, "{before} before, {during} with {BYTES} more");
    drop(held);
    device.reclaim();
    let after = device.memory_in_use();
    assert!(after < during - BYTES / 2, "{during} before, {after} after");
    assert!(device.memory_peak() >= during);
}

/// A real failure, not a drill: the host refuses an allocation that half the batch fits in.
pub fn a_failed_host_allocation_is_recovered_by_splitting(device: &Arc<OpenDevice>) {
    let x = Tensor::<2>::ones([4, 2], &Device::flex());
    // The whole batch can't run anywhere, so there is nothing to verify the recovery against.
    let footing =
        Footing::builder().devices(Selector::only(device.name())).build().expect("it opens");
    let rows = footing
        .task("host buffer")
        .split(x)
        .run(|_, part| {
            // More than any address space for four rows, a page for one.
            let bytes = if part.dims()[0] > 1 { usize::MAX / 4 } else { 4096 };
            Vec::<u8>::new().try_reserve_exact(bytes)?;
            Ok(part * 2.0)
        })
        .unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(rows.rungs, [Rung::Reclaim, Rung::Split, Rung::Split]);
    assert_eq!(numbers(rows.value), [2.0; 8]);
}

/// A real failure on the device: one buffer over its limit for the whole batch, none for parts
/// of it. Devices without such a limit have nothing to show here but the result.
pub fn a_buffer_over_the_limit_is_recovered_by_splitting(device: &Arc<OpenDevice>) {
    const ROWS: usize = 8;
    let _guard = memory_to_myself();
    let limit = device.info.max_buffer.unwrap_or(64 << 20);
    let columns = (limit / 4 / ROWS as u64) as usize + 1024;
    let policy = Policy::default().no_fallback();
    let footing = Footing::builder()
        .devices(Selector::only(device.name()))
        .precision(Precision::Fp32)
        .policy(policy)
        .build()
        .expect("the device opens");
    let outcome = footing
        .task("wide")
        .split(Tensor::<2>::ones([ROWS, 1], &Device::flex()))
        .run(|step, part| {
            let wide = Tensor::zeros([part.dims()[0], columns], step.device()) + part;
            Ok(wide.slice([0..1, 0..1]))
        })
        .unwrap_or_else(|fault| panic!("{fault}"));
    assert!(numbers(outcome.value).iter().all(|one| *one == 1.0));
    let split = outcome.rungs.contains(&Rung::Split);
    assert_eq!(split, device.info.max_buffer.is_some(), "{:?}", outcome.rungs);
    if let Some(fault) = outcome.faults.first() {
        assert!(fault.root_cause().contains("alloc"), "its cause is named: {fault}");
    }
    device.reclaim();
}
