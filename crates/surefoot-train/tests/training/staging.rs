//! Batches that are brought to the device ahead of their step change nothing but the time.

use crate::harness::{SPARE, Trial, undisturbed};
use surefoot::device::DeviceName;
use surefoot_train::TrainEvent;

#[test]
fn staged_batches_train_to_the_same_bits() {
    let expected = undisturbed();
    for workers in ["0", "1", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let trial = Trial::new(folder.path()).set("staging", "on").set("workers", workers);
        let (report, _) = trial.run().unwrap();
        assert_eq!(report.test_loss.to_bits(), expected.to_bits(), "{workers}");
    }
}

#[test]
fn a_fault_with_a_batch_on_the_stage_costs_nothing() {
    let expected = undisturbed();
    for drill in [
        "out_of_memory:step=5,count=4,op=train step",
        "device_lost:step=5,count=99,device=cpu:1,op=train step",
        "command_buffer:step=0,op=train step",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let devices = vec![SPARE, DeviceName::CPU];
        let trial = Trial { drill, devices, ..Trial::new(folder.path()) };
        let (report, _) = trial.set("staging", "on").run().unwrap();
        assert_eq!(report.steps, 12, "{drill}");
        assert!((report.test_loss - expected).abs() < 1e-4, "{drill}");
    }
}

#[test]
fn how_batches_are_loaded_is_chosen_by_the_steps_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let (_, news) = Trial::new(folder.path()).set("workers", "2").run().unwrap();
    let chosen = news.iter().find_map(|news| match news {
        TrainEvent::Loading { loading, step_seconds } => Some((*loading, *step_seconds)),
        _ => None,
    });
    let (loading, step_seconds) = chosen.unwrap();
    assert!(loading.workers == 2 && !loading.staging && step_seconds > 0.0);
    assert!((2..=3).contains(&loading.prefetch), "{loading:?}");
    assert_eq!(loading.batches_in_memory(), loading.prefetch + 1);
}
