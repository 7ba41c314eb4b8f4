//! Every kind of fault at the first, a middle and the last step: the run ends with the loss of
//! the undisturbed run, or stops as the policy asked and goes on from there later.

use crate::harness::{SPARE, Trial, undisturbed};
use surefoot::FaultKind;
use surefoot::device::DeviceName;
use surefoot::recover::{Policy, Rung};
use surefoot_train::{TrainError, TrainEvent};

/// Splitting changes the order in which floats are added, and nothing else.
pub(crate) const TOLERANCE: f64 = 1e-4;
const STEPS: [u64; 3] = [0, 5, 11];

/// What training does about each kind of fault by default, written down by hand: whether a fault
/// that strikes once on the only device is survived, and whether one that keeps striking makes
/// the run go on with the next device.
pub(crate) const EXPECTED: [(&str, bool, bool); 16] = [
    // kind, survived where it is, moves on
    ("out_of_memory", true, true),
    ("device_mismatch", true, false),
    ("dtype_mismatch", true, false),
    ("unsupported_dtype", false, true),
    ("unsupported_op", false, true),
    ("placeholder_storage", true, true),
    ("device_lost", false, true),
    ("driver_or_init", false, true),
    ("kernel_compile", false, true),
    ("command_buffer", true, true),
    ("shape_mismatch", false, false),
    ("numeric", false, false),
    ("data_loading", false, false),
    ("model_loading", false, false),
    ("state_lost", false, false),
    ("not_device_related", false, false),
];

#[test]
fn every_kind_of_fault_is_in_the_table() {
    let kinds = FaultKind::ALL.map(|kind| kind.to_string());
    let missing: Vec<&String> =
        kinds.iter().filter(|kind| EXPECTED.iter().all(|(name, ..)| name != kind)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(EXPECTED.len(), kinds.len());
}

#[test]
fn every_fault_is_survived_or_stops_the_run_so_that_it_can_go_on() {
    let expected = undisturbed();
    for (kind, survivable, _) in EXPECTED {
        for step in STEPS {
            let folder = tempfile::tempdir().unwrap();
            let drill = format!("{kind}:step={step},op=train step");
            let outcome = Trial { drill: &drill, ..Trial::new(folder.path()) }.run();
            match outcome {
                Ok((report, _)) => {
                    assert!(survivable, "{drill}");
                    assert_eq!(report.test_loss, expected, "{drill}");
                    assert_eq!((report.faults, report.steps), (1, 12), "{drill}");
                    assert_eq!(report.fault_log[0].step, step + 1, "{drill}");
                }
                Err(TrainError::Fault { fault, step: at, saved }) => {
                    assert!(!survivable, "{drill}: {fault}");
                    assert_eq!((fault.kind.as_str(), at), (kind, step), "{drill}");
                    assert_eq!(saved.is_some(), step > 0, "{drill}");
                    let again = Trial { resume: saved.as_deref(), ..Trial::new(folder.path()) };
                    assert_eq!(again.run().unwrap().0.test_loss, expected, "{drill}");
                }
                Err(other) => panic!("{drill}: {other}"),
            }
        }
    }
}

#[test]
fn a_lost_device_hands_the_run_to_the_next_and_no_step_is_lost_or_done_twice() {
    let expected = undisturbed();
    for (kind, ..) in EXPECTED.iter().filter(|(_, _, moves)| *moves) {
        for step in STEPS {
            let folder = tempfile::tempdir().unwrap();
            let drill = format!("{kind}:step={step},count=99,device=cpu:1,op=train step");
            let devices = vec![SPARE, DeviceName::CPU];
            let trial = Trial { drill: &drill, devices, ..Trial::new(folder.path()) };
            let (report, news) = trial.run().unwrap();
            assert_eq!(report.steps, 12, "{drill}");
            assert_eq!(report.device, "cpu", "{drill}");
            assert!((report.test_loss - expected).abs() < TOLERANCE, "{drill}");
            let steps: Vec<u64> = news
                .iter()
                .filter_map(|news| match news {
                    TrainEvent::Step { step, .. } => Some(*step),
                    _ => None,
                })
                .collect();
            assert_eq!(steps, (1..=12).collect::<Vec<_>>(), "{drill}");
            // The run stays where it went, though the first device was only out of memory.
            let moves = report.fault_log.iter().filter(|fault| fault.step > step + 1).count();
            assert_eq!(moves, 0, "{drill}: {:?}", report.fault_log);
        }
    }
}

#[test]
fn a_fault_that_would_be_the_same_anywhere_does_not_move_the_run() {
    // A state that is lost is made again from the host's copy, which unit tests of `run` drill.
    let stays = |(kind, _, moves): &&(&str, bool, bool)| !moves && *kind != "state_lost";
    for (kind, ..) in EXPECTED.iter().filter(stays) {
        let folder = tempfile::tempdir().unwrap();
        let drill = format!("{kind}:step=5,count=99,device=cpu:1,op=train step");
        let devices = vec![SPARE, DeviceName::CPU];
        let trial = Trial { drill: &drill, devices, ..Trial::new(folder.path()) };
        let Err(TrainError::Fault { fault, step, .. }) = trial.run() else { panic!("{drill}") };
        assert_eq!((fault.kind.as_str(), step), (*kind, 5), "{drill}");
        assert_eq!(fault.device.as_deref(), Some("cpu:1"), "{drill}");
    }
}

#[test]
fn out_of_memory_splits_the_step_and_the_curve_stays_the_same() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let drill = "out_of_memory:step=2,count=4,op=train step";
    let (report, news) = Trial { drill, ..Trial::new(folder.path()) }.run().unwrap();
    let parts: Vec<u64> = news
        .iter()
        .filter_map(|news| match news {
            TrainEvent::Recovery { parts, .. } => Some(*parts),
            _ => None,
        })
        .collect();
    assert_eq!(parts, [1, 2, 4, 8], "reclaim, then halves");
    assert!((report.test_loss - expected).abs() < TOLERANCE, "{} {expected}", report.test_loss);
    assert!(report.test_loss != 0.0 && report.faults == 4);
}

#[test]
fn where_splitting_is_not_enough_activations_are_recomputed() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    // Reclaim, 2, 4, 8, 16, 32, 64, 128 and 160 parts; then checkpointing.
    let drill = "out_of_memory:count=10,op=train step";
    let (report, news) = Trial { drill, ..Trial::new(folder.path()) }.run().unwrap();
    let rungs: Vec<&str> = news
        .iter()
        .filter_map(|news| match news {
            TrainEvent::Recovery { rung, .. } => Some(rung.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(rungs.last(), Some(&"checkpoint"), "{rungs:?}");
    assert!((report.test_loss - expected).abs() < TOLERANCE, "{} {expected}", report.test_loss);
}

#[test]
fn on_fault_fail_stops_at_the_first_fault() {
    let folder = tempfile::tempdir().unwrap();
    let drill = "out_of_memory:step=3,op=train step";
    let trial = Trial { drill, policy: Policy::fail(), ..Trial::new(folder.path()) };
    let Err(TrainError::Fault { fault, step, saved }) = trial.run() else { panic!() };
    assert_eq!((fault.kind, step), (FaultKind::OutOfMemory, 3));
    assert!(saved.is_some_and(|path| path.is_file()));
}

#[test]
fn a_fault_while_testing_is_survived_too() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let drill = "out_of_memory:step=1,count=3,op=evaluate";
    let (report, _) = Trial { drill, ..Trial::new(folder.path()) }.run().unwrap();
    assert!((report.test_loss - expected).abs() < TOLERANCE);
    assert_eq!(report.faults, 3);
}

#[test]
fn accumulated_batches_train_like_one_large_batch() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial::new(folder.path()).set("batch_size", "40").set("accumulate", "4");
    let (report, _) = trial.run().unwrap();
    assert!((report.test_loss - expected).abs() < TOLERANCE, "{} {expected}", report.test_loss);
}

#[test]
fn every_model_trains_the_same_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, "the quick brown fox jumps over the lazy dog. ".repeat(40)).unwrap();
    let text = format!(
        "{{data: {{kind: text, length: 16, path: '{}'}}, model: {{kind: gpt, layers: 2, heads: 2, \
         width: 32}}, batch_size: 24, steps: 4, clip_norm: 1}}",
        file.display()
    );
    let images = "{data: {kind: digits}, model: {kind: cnn, width: 8}, batch_size: 48, steps: 4}";
    let recompute = || Policy::default().ladder(FaultKind::OutOfMemory, [Rung::Checkpoint]);
    for config in [images, &text] {
        let run = |drill: &str, policy: Policy| {
            Trial { config, drill, policy, ..Trial::new(folder.path()) }.run().unwrap().0
        };
        let whole = run("", Policy::default());
        let split = run("out_of_memory:count=3,op=train step", Policy::default());
        let recomputed = run("out_of_memory:op=train step", recompute());
        assert_eq!((split.faults, recomputed.faults), (3, 1), "{config}");
        for report in [split, recomputed] {
            let error = (report.test_loss - whole.test_loss).abs();
            assert!(error < TOLERANCE, "{config}: {error}");
        }
    }
}
