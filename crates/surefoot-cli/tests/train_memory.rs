//! Running out of the host's memory: what can't fit is refused by name, what may fit is run in
//! parts. Nothing here may end by a signal.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Noise in the binary form of CIFAR-10: so many images a file.
fn cifar(folder: &Path, images: usize) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut noise = || random.u8(..);
    for name in [
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    ] {
        let record = |at: usize| std::iter::once((at % 10) as u8);
        let bytes: Vec<u8> = (0..images)
            .flat_map(|at| record(at).chain((0..3072).map(|_| 0)))
            .map(|byte| if byte == 0 { noise() % 10 } else { byte })
            .collect();
        fs::write(folder.join(format!("{name}.bin")), bytes).unwrap();
    }
}

/// Runs the program under a limit on its address space, in KiB.
fn limited(folder: &Path, kib: u64, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_surefoot");
    let script = format!("ulimit -v {kib}; exec {program} train {arguments}");
    Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_batch_that_does_not_fit_under_ulimit_is_run_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    cifar(folder.path(), 80);
    let config = "{data: {kind: cifar10, path: .}, model: {kind: cnn, width: 32}, batch_size: 200, steps: 2}";
    fs::write(folder.path().join("images.yaml"), config).unwrap();
    let output = limited(folder.path(), 450_000, "images.yaml --json");
    assert_eq!(output.status.code(), Some(0), "{:?}: {}", output.status, text(&output.stderr));
    let told = text(&output.stdout);
    let mut events = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let fitted = events.find(|event| event["event"] == "fitted").unwrap();
    let at_once = fitted["micro_batch"].as_u64().unwrap();
    assert!((1..200).contains(&at_once), "{fitted}");
}

#[test]
fn a_model_that_can_never_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = "{data: {kind: digits}, model: {kind: mlp, hidden: [1000000000]}, epochs: 1}";
    fs::write(folder.path().join("huge.yaml"), config).unwrap();
    for more in ["", "--memory 2GiB", "--find-batch"] {
        let output = limited(folder.path(), 64 << 20, &format!("huge.yaml {more}"));
        assert_eq!(output.status.code(), Some(3), "{more}: {:?}", output.status);
        let error = text(&output.stderr);
        assert!(
            error.contains("out_of_memory") && error.contains("75000000010 parameters"),
            "{error}"
        );
        assert!(error.contains("model.hidden"), "{error}");
    }
}

#[test]
fn a_small_budget_is_kept_through_tests_saves_and_the_page() {
    let folder = tempfile::tempdir().unwrap();
    // Batches that fit only in parts: trials that took too much once went beyond 26 MiB.
    let config = "{data: {kind: digits}, model: {kind: cnn, width: 16}, batch_size: 512, steps: 4}";
    fs::write(folder.path().join("small.yaml"), config).unwrap();
    for mib in [26u64, 28, 32, 40] {
        let memory = format!("{mib}MiB");
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.args(["train", "small.yaml", "--json", "--memory", &memory]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let error = text(&output.stderr);
        match output.status.code() {
            Some(0) => {
                let told = text(&output.stdout);
                let end: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
                let peak = end["peak_memory"].as_u64().unwrap();
                assert!(peak <= mib << 20, "{peak} of {memory}");
            }
            // A budget that not even one sample fits in is refused before the first step.
            code => {
                assert_eq!(code, Some(3), "{memory}: {error}");
                assert!(error.contains("out_of_memory in fit") && mib < 40, "{memory}: {error}");
            }
        }
    }
}
