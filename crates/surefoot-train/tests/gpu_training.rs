//! Short runs on a GPU: moved to the CPU, and resumed there; and updates of all parameters in one launch.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "training/harness.rs"]
#[allow(dead_code)] // The processor's tests use all of it.
mod harness;

use burn::tensor::{Device, Tensor, TensorData};
use harness::Trial;
use std::sync::{Mutex, MutexGuard, PoisonError};
use surefoot::device::DeviceName;
use surefoot_ops::Clip;
use surefoot_train::TrainEvent;
use surefoot_train::optimizer::{Moments, PackedGradients, Slice, UpdateRule};

/// Two devices add floats up in different orders.
const TOLERANCE: f64 = 1e-3;
const LAST: u64 = 11;

/// The GPU, for one test at a time: on a software device they only slow each other down.
fn gpu() -> Option<(DeviceName, MutexGuard<'static, ()>)> {
    static DEVICE: Mutex<()> = Mutex::new(());
    let device = testkit::gpu()?;
    Some((device.name(), DEVICE.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn steps(news: &[TrainEvent]) -> Vec<u64> {
    let step = |news: &TrainEvent| match news {
        TrainEvent::Step { step, .. } => Some(*step),
        _ => None,
    };
    news.iter().filter_map(step).collect()
}

#[test]
fn a_lost_gpu_hands_the_run_to_the_processor_and_no_step_is_lost_or_done_twice() {
    let Some((gpu, _alone)) = gpu() else { return };
    let expected = harness::undisturbed();
    for step in [0, 5, LAST] {
        let folder = tempfile::tempdir().unwrap();
        let drill = format!("device_lost:step={step},count=99,device=gpu,op=train step");
        let devices = vec![gpu, DeviceName::CPU];
        let (report, news) =
            Trial { drill: &drill, devices, ..Trial::new(folder.path()) }.run().unwrap();
        assert_eq!(report.device, "cpu", "{drill}");
        assert_eq!(steps(&news), (1..=LAST + 1).collect::<Vec<_>>(), "{drill}");
        let error = (report.test_loss - expected).abs();
        assert!(error < TOLERANCE, "{drill}: {error}");
    }
}

#[test]
fn a_run_that_was_stopped_on_the_gpu_goes_on_on_the_processor() {
    let Some((gpu, _alone)) = gpu() else { return };
    let expected = harness::undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial { devices: vec![gpu], stop_after: Some(5), ..Trial::new(folder.path()) };
    // Batches go to the device ahead of their step, as where its memory is its own.
    let (first, _) = trial.set("staging", "on").run().unwrap();
    assert!(first.interrupted && first.device == "gpu", "{}", first.device);
    let (second, _) =
        Trial { resume: Some(&first.checkpoint), ..Trial::new(folder.path()) }.run().unwrap();
    assert_eq!((second.device.as_str(), second.steps), ("cpu", LAST + 1));
    let error = (second.test_loss - expected).abs();
    assert!(error < TOLERANCE, "{error}");
}

/// Parameters of these sizes; the third has no gradient in the first step, and only the first two decay.
const SIZES: [usize; 4] = [300, 64, 5, 129];
const RULE: UpdateRule =
    UpdateRule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.5 };
const LR: f64 = 0.1;
const LONGEST: f64 = 0.7;

fn tensor(seed: usize, size: usize, device: &Device) -> Tensor<1> {
    let numbers: Vec<f32> =
        (0..size).map(|at| ((at * 37 + seed * 11) % 23) as f32 * 0.1 - 1.0).collect();
    Tensor::<1>::from_data(TensorData::new(numbers, [size]), device)
}

fn decays(at: usize) -> bool {
    at < 2
}

/// What the parameters and their moments are after three steps, by a function that does one.
fn after_steps(
    device: &Device,
    mut step: impl FnMut(Vec<Tensor<1>>, Vec<Option<Tensor<1>>>, &Moments) -> (Vec<Tensor<1>>, Moments),
) -> Vec<Vec<f32>> {
    let mut values: Vec<Tensor<1>> =
        (0..).zip(SIZES).map(|(seed, size)| tensor(seed, size, device)).collect();
    let mut moments = Moments::default();
    for number in 0..3 {
        let gradient = |(at, size): (usize, usize)| {
            (number > 0 || at != 2).then(|| tensor(10 * number + at, size, device))
        };
        let gradients = (0..).zip(SIZES).map(gradient).collect();
        (values, moments) = step(values, gradients, &moments);
    }
    let moments = moments.first.into_iter().chain(moments.second).flatten();
    values.into_iter().chain(moments).map(|t| t.into_data().try_to_vec::<f32>().unwrap()).collect()
}

#[test]
fn a_packed_update_on_the_gpu_is_that_of_each_parameter_on_the_processor() {
    let Some(device) = testkit::gpu() else { return };
    let is = after_steps(device.burn(), |values, gradients, moments| {
        let packed = PackedGradients::new(&gradients, decays).unwrap();
        let clip = Some(Clip { squares: packed.sum(true), longest: LONGEST });
        let updated = RULE.update_packed(LR, 0.5, clip, values, &packed, moments).unwrap();
        (updated.values, updated.moments)
    });
    let should = after_steps(&Device::flex(), |values, gradients, moments| {
        let squares =
            |gradient: &Tensor<1>| (gradient.clone() * gradient.clone()).sum().into_scalar::<f32>();
        let squares: f32 = gradients.iter().flatten().map(squares).sum();
        let length = 0.5 * f64::from(squares).sqrt();
        assert!(length > LONGEST, "{length}");
        let slices = values.into_iter().zip(gradients).enumerate();
        let slices = slices
            .map(|(at, (value, gradient))| Slice { value, gradient, decays: decays(at) })
            .collect();
        RULE.update(LR, 0.5 * LONGEST / length, slices, moments)
    });
    assert_eq!(is.len(), should.len());
    for (at, (is, should)) in is.iter().zip(&should).enumerate() {
        assert_eq!(is.len(), should.len(), "{at}");
        for (is, should) in is.iter().zip(should) {
            assert!((is - should).abs() < 1e-4, "{at}: {is}, not {should}");
        }
    }
}
