//! What holds for training holds for fine-tuning: every kind of fault at the first, a middle and the last step, at every moment
//! of a step, and stopping anywhere, for adapters (with dropout), whole models and heads.

use std::path::{Path, PathBuf};

use crate::faults::{EXPECTED, TOLERANCE};
use crate::harness::{SPARE, Trial};
use safetensors::SafeTensors;
use surefoot::device::DeviceName;
use surefoot_train::{TrainError, TrainReport};

const STEPS: u64 = 6;

/// What is trained, as keys of `model`.
const TUNES: [&str; 3] = ["tune: lora, rank: 2, dropout: 0.1", "tune: full", "tune: head"];

pub(crate) fn config(folder: &Path, tune: &str) -> String {
    let data = folder.join("data.jsonl");
    let line = |at| format!("{{\"prompt\": \"item {at}\", \"completion\": \" is {}\"}}\n", at % 3);
    std::fs::write(&data, (0..24).map(line).collect::<String>()).unwrap();
    let model: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/llama-tiny");
    format!(
        "{{data: {{kind: jsonl, path: {data:?}, length: 48}}, model: {{kind: pretrained, path: {model:?}, {tune}}}, \
         batch_size: 4, steps: {STEPS}, optimizer: {{lr: 0.01}}, clip_norm: 1.0, workers: 1, \
         checkpoint: {{every: 2, keep: 9}}}}"
    )
}

/// The tensors of the last checkpoint, as bytes.
fn bits(report: &TrainReport) -> Vec<(String, Vec<u8>)> {
    let bytes = std::fs::read(&report.checkpoint).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<(String, Vec<u8>)> =
        read.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
    all.sort();
    all
}

fn undisturbed(config: &str) -> TrainReport {
    let folder = tempfile::tempdir().unwrap();
    let report = Trial { config, ..Trial::new(folder.path()) }.run().unwrap().0;
    // The folder goes with its checkpoint.
    let kept = folder.keep();
    assert!(report.checkpoint.starts_with(&kept));
    report
}

/// Runs `trial` of each way of tuning beside a run that nothing disturbs.
fn each(trial: impl Fn(&str, &str, &TrainReport)) {
    let folder = tempfile::tempdir().unwrap();
    for tune in TUNES {
        let config = config(folder.path(), tune);
        let expected = undisturbed(&config);
        assert_eq!(expected.steps, STEPS);
        trial(tune, &config, &expected);
        std::fs::remove_dir_all(expected.checkpoint.parent().unwrap()).unwrap();
    }
}

#[test]
fn every_fault_is_survived_or_stops_the_run_so_that_it_can_go_on() {
    each(|tune, config, expected| {
        let steps = if tune.contains("lora") { &[0, 3, STEPS - 1][..] } else { &[3] };
        for (kind, survivable, _) in EXPECTED {
            for &step in steps {
                let folder = tempfile::tempdir().unwrap();
                let drill = format!("{kind}:step={step},op=train step");
                let trial = || Trial { config, ..Trial::new(folder.path()) };
                let report = match (Trial { drill: &drill, ..trial() }).run() {
                    Ok((report, _)) => {
                        assert!(survivable, "{tune}: {drill}");
                        assert_eq!(report.faults, 1, "{tune}: {drill}");
                        report
                    }
                    Err(TrainError::Fault { fault, step: at, saved }) => {
                        assert!(!survivable, "{tune}: {drill}: {fault}");
                        assert_eq!((fault.kind.as_str(), at), (kind, step), "{tune}: {drill}");
                        assert_eq!(saved.is_some(), step > 0, "{tune}: {drill}");
                        Trial { resume: saved.as_deref(), ..trial() }.run().unwrap().0
                    }
                    Err(other) => panic!("{tune}: {drill}: {other}"),
                };
                assert_eq!(report.steps, STEPS, "{tune}: {drill}");
                assert!(bits(&report) == bits(expected), "{tune}: {drill}: the same bits");
            }
        }
    });
}

#[test]
fn a_fault_before_during_or_after_a_step_changes_nothing() {
    let moments = [
        "at=before",
        "at=during,point=operation,nth=1",
        "at=during,point=operation,nth=9",
        "at=during,point=read,nth=1",
        "at=after",
    ];
    each(|tune, config, expected| {
        for moment in moments {
            for kind in ["command_buffer", "out_of_memory", "device_lost"] {
                let folder = tempfile::tempdir().unwrap();
                let drill = format!("{kind}:{moment},step=3,device=cpu:1,op=train step");
                let devices = vec![SPARE, DeviceName::CPU];
                let trial = Trial { config, drill: &drill, devices, ..Trial::new(folder.path()) };
                let (report, _) = trial.run().unwrap();
                assert_eq!((report.steps, report.faults), (STEPS, 1), "{tune}: {drill}");
                assert!(bits(&report) == bits(expected), "{tune}: {drill}: the same bits");
            }
        }
    });
}

#[test]
fn out_of_memory_trains_in_parts_and_then_by_blocks_to_the_same_loss() {
    each(|tune, config, expected| {
        // Reclaim, 2 parts, 4 parts, then gradient checkpointing.
        for count in [2, 3, 4] {
            let folder = tempfile::tempdir().unwrap();
            let drill = format!("out_of_memory:step=2,count={count},op=train step");
            let trial = Trial { config, drill: &drill, ..Trial::new(folder.path()) };
            let (report, _) = trial.run().unwrap();
            assert_eq!((report.steps, report.faults), (STEPS, count), "{tune}: {drill}");
            let difference = (report.test_loss - expected.test_loss).abs();
            assert!(difference < TOLERANCE, "{tune}: {drill}: {difference}");
        }
    });
}

#[test]
fn stopping_anywhere_and_going_on_gives_the_same_bits() {
    each(|tune, config, expected| {
        for stop_after in [1, 3, 5] {
            let folder = tempfile::tempdir().unwrap();
            let trial = || Trial { config, ..Trial::new(folder.path()) };
            let (first, _) = Trial { stop_after: Some(stop_after), ..trial() }.run().unwrap();
            assert!(first.interrupted && first.steps == stop_after, "{tune} {stop_after}");
            let resumed = Trial { resume: Some(&first.checkpoint), ..trial() };
            let (second, _) = resumed.set("workers", "2").run().unwrap();
            assert_eq!(second.resumed_from, Some(stop_after));
            assert!(bits(&second) == bits(expected), "{tune} {stop_after}: the same bits");
        }
    });
}

#[test]
fn a_run_that_keeps_diverging_stops_and_names_what_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    // The gradients of a head alone are bounded, whatever its weights are.
    for tune in &TUNES[..2] {
        let config = config(folder.path(), tune);
        let runs = tempfile::tempdir().unwrap();
        let trial = Trial { config: &config, ..Trial::new(runs.path()) }
            .set("optimizer", "{kind: sgd, lr: 1e30, schedule: constant}")
            .set("clip_norm", "null")
            .set("steps", "40");
        let Err(TrainError::Fault { fault, step, .. }) = trial.run() else { panic!("{tune}") };
        assert_eq!(fault.kind, surefoot::FaultKind::Numeric, "{tune}");
        assert!(fault.root_cause().contains("8 steps in a row"), "{tune}: {fault}");
        assert!(step < 40, "{tune}");
    }
}

/// Dropout changes training, depends on the seed, and is off when the model is tested.
#[test]
fn dropout_is_random_by_seed_and_only_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let loss = |tune: &str, seed: &str| {
        let runs = tempfile::tempdir().unwrap();
        let config = config(folder.path(), tune);
        let trial = Trial { config: &config, ..Trial::new(runs.path()) }.set("seed", seed);
        let report = trial.run().unwrap().0;
        (report.epochs.last().map(|epoch| epoch.train_loss), report.test_loss)
    };
    let some = "tune: lora, rank: 2, dropout: 0.5";
    assert_eq!(loss(some, "1"), loss(some, "1"));
    assert_ne!(loss(some, "1"), loss("tune: lora, rank: 2", "1"));
    assert_ne!(loss(some, "1"), loss(some, "2"));
}
