//! A run that was stopped goes on as if it had not been.

use std::path::Path;

use crate::harness::{SPARE, Trial};
use surefoot::device::DeviceName;
use surefoot_train::checkpoint::{CheckpointFolder, read, read_manifest, write};
use surefoot_train::model::Builtin;
use surefoot_train::parameters::{Shape, shapes};
use surefoot_train::{TrainError, TrainEvent};

fn model_shapes() -> Vec<Shape> {
    let device = burn::tensor::Device::flex();
    let config = surefoot_train::Config::parse(crate::harness::SHORT, &[]).unwrap();
    let data = surefoot_train::data::open(&config.data, config.seed).unwrap();
    shapes(&Builtin::new(&config.model, data.form(), config.seed, &device).unwrap())
}

fn weights(path: &Path) -> Vec<Vec<u32>> {
    let (held, _) = read(path, &model_shapes()).unwrap();
    let moments = held.first.iter().chain(&held.second).flatten();
    let all = held.values.iter().chain(moments);
    all.map(|numbers| numbers.iter().map(|number| number.to_bits()).collect()).collect()
}

#[test]
fn stopping_anywhere_and_going_on_gives_the_same_bits() {
    let whole = tempfile::tempdir().unwrap();
    let expected = Trial::new(whole.path()).run().unwrap().0;
    for stop_after in [1, 4, 8, 9, 11] {
        let folder = tempfile::tempdir().unwrap();
        let trial = Trial { stop_after: Some(stop_after), ..Trial::new(folder.path()) };
        let (first, _) = trial.run().unwrap();
        assert!(first.interrupted && first.steps == stop_after, "{stop_after}");
        // Another number of loading threads must not matter.
        let trial = Trial { resume: Some(&first.checkpoint), ..Trial::new(folder.path()) };
        let (second, _) = trial.set("workers", "2").run().unwrap();
        assert_eq!(second.resumed_from, Some(stop_after));
        assert_eq!(second.steps, 12);
        assert_eq!(second.test_loss.to_bits(), expected.test_loss.to_bits(), "{stop_after}");
        assert_eq!(weights(&second.checkpoint), weights(&expected.checkpoint), "{stop_after}");
        let losses = |report: &surefoot_train::TrainReport| -> Vec<u64> {
            report.epochs.iter().map(|epoch| epoch.train_loss.to_bits()).collect()
        };
        assert_eq!(losses(&second), losses(&expected), "{stop_after}");
    }
}

#[test]
fn going_on_from_further_back_leaves_no_later_step_to_be_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let every = |steps: &'static str| {
        let trial = Trial::new(folder.path()).set("checkpoint.every", "2");
        trial.set("checkpoint.keep", "9").set("steps", steps)
    };
    every("12").run().unwrap();
    let from = folder.path().join("step-00000004.safetensors");
    let trial = Trial { resume: Some(&from), ..every("7") };
    let (report, news) = trial.set("optimizer.lr", "0.5").run().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), 9).unwrap();
    assert_eq!(checkpoints.latest().0, Some(report.checkpoint), "{:?}", checkpoints.steps());
    assert_eq!(checkpoints.steps(), [2, 4, 6, 7]);
    let aside = news.iter().find_map(|news| match news {
        TrainEvent::SetAside { after: 4, folder } => Some(folder.clone()),
        _ => None,
    });
    // The user may want them back.
    let kept = std::fs::read_dir(aside.unwrap()).unwrap().count();
    assert_eq!(kept, 5, "6, 8, 9, 10 and 12");
}

#[test]
fn a_run_within_a_budget_goes_on_with_the_same_parts() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial { stop_after: Some(2), ..Trial::new(folder.path()) };
    let first = trial.set("memory", "64GiB").run().unwrap().0.checkpoint;
    // As if less had been free when the run began.
    let shapes = model_shapes();
    let (held, mut manifest) = read(&first, &shapes).unwrap();
    let fitted = manifest.fitted.as_mut().unwrap();
    assert_eq!((fitted.micro_batch, fitted.device.as_str()), (160, "cpu"));
    fitted.micro_batch = 40;
    write(&first, &held, &shapes, &manifest).unwrap();
    let parts = |memory: &str| {
        let trial = Trial { resume: Some(&first), ..Trial::new(folder.path()) };
        let (_, news) = trial.set("memory", memory).set("steps", "3").run().unwrap();
        news.iter().find_map(|news| match news {
            TrainEvent::Fitted { micro_batch, .. } => Some(*micro_batch),
            _ => None,
        })
    };
    assert_eq!(parts("64GiB"), Some(40));
    assert_eq!(parts("65GiB"), Some(160), "another budget is another fit");
}

#[test]
fn a_run_goes_on_on_another_device() {
    let whole = tempfile::tempdir().unwrap();
    let expected = Trial::new(whole.path()).run().unwrap().0;
    let folder = tempfile::tempdir().unwrap();
    let devices = vec![SPARE];
    let trial = Trial { stop_after: Some(5), devices, ..Trial::new(folder.path()) };
    let (first, _) = trial.run().unwrap();
    assert_eq!(first.device, "cpu:1");
    let devices = vec![DeviceName::CPU];
    let trial = Trial { resume: Some(&first.checkpoint), devices, ..Trial::new(folder.path()) };
    let (second, _) = trial.run().unwrap();
    assert!((second.test_loss - expected.test_loss).abs() < 1e-6);
}

#[test]
fn another_order_of_samples_or_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial { stop_after: Some(2), ..Trial::new(folder.path()) };
    let checkpoint = trial.run().unwrap().0.checkpoint;
    let resumed = |key: &str, value: &str| {
        let trial = Trial { resume: Some(&checkpoint), ..Trial::new(folder.path()) };
        trial.set(key, value).run().unwrap_err()
    };
    for (key, value) in [("seed", "7"), ("batch_size", "100"), ("data.test", "0.3")] {
        let error = resumed(key, value);
        assert!(matches!(error, TrainError::OtherRun { .. }), "{key}: {error}");
    }
    let error = resumed("model.hidden", "[16]").to_string();
    assert!(error.contains("[64, 32]") && error.contains("[64, 16]"), "{error}");
    let error = resumed("model.hidden", "[32, 32]").to_string();
    assert!(error.contains("model"), "{error}");
}

#[test]
fn checkpoints_are_written_as_often_as_asked_and_explain_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial::new(folder.path()).set("checkpoint.every", "2").set("checkpoint.keep", "3");
    let (report, _) = trial.run().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    names.sort();
    // Steps 2, 4, 6, 8, 9 (the end of an epoch), 10 and 12, of which the last three are kept.
    let expected = [9, 10, 12].map(|step| format!("step-{step:08}.safetensors"));
    assert_eq!(names, expected);
    let manifest = read_manifest(&report.checkpoint).unwrap();
    assert!(manifest.config["data.kind"] == "digits" && manifest.flags.len() == 2);
    assert_eq!(manifest.config["checkpoint.keep"], "3", "what flags set");
    assert_eq!(manifest.config["optimizer.schedule"], "cosine", "and what is the default");
    assert_eq!(manifest.data.classes.concat(), "0123456789");
    assert_eq!(manifest.data.normalisation.mean.len(), 1);
    assert_eq!(manifest.step, 12);
    assert!(report.curves.is_some_and(|path| path.is_file()));
}

#[test]
fn a_fault_between_an_epoch_and_its_test_costs_neither() {
    let whole = tempfile::tempdir().unwrap();
    let expected = Trial::new(whole.path()).run().unwrap().0;
    let folder = tempfile::tempdir().unwrap();
    let trial = Trial { drill: "device_lost:op=evaluate", ..Trial::new(folder.path()) };
    let Err(TrainError::Fault { step, saved, .. }) = trial.run() else { panic!() };
    assert_eq!(step, 9);
    let trial = Trial { resume: saved.as_deref(), ..Trial::new(folder.path()) };
    let (report, _) = trial.run().unwrap();
    let told = |report: &surefoot_train::TrainReport| -> Vec<(u64, u64)> {
        report.epochs.iter().map(|epoch| (epoch.step, epoch.train_loss.to_bits())).collect()
    };
    assert_eq!(told(&report), told(&expected));
}
