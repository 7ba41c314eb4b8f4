//! Short runs on a GPU: moved to the CPU, and resumed there. `fault_matrix.rs` runs on a GPU too.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "training/harness.rs"]
#[allow(dead_code)] // The processor's tests use all of it.
mod harness;

use harness::Trial;
use std::sync::{Mutex, MutexGuard, PoisonError};
use surefoot::device::DeviceName;
use surefoot_train::TrainEvent;

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
