//! `surefoot devices` and `surefoot doctor`, through the program.

use assert_cmd::Command;
use predicates::prelude::*;
use serde_json::Value;

fn surefoot() -> Command {
    Command::cargo_bin("surefoot").expect("the program is built")
}

fn json(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("one JSON document")
}

#[test]
fn devices_lists_the_cpu_with_its_memory_and_dtypes() {
    surefoot().arg("devices").assert().success().stdout(
        predicate::str::contains("cpu").and(predicate::str::contains("shared with the host")),
    );
    let found = json(surefoot().args(["devices", "--json"]));
    let cpu = found.as_array().unwrap().last().unwrap();
    assert_eq!(cpu["name"], "cpu");
    assert!(cpu["info"]["memory_total"].as_u64().unwrap() > 0);
    assert!(cpu["info"]["dtypes"].as_array().unwrap().contains(&"fp32".into()));
}

#[cfg(not(feature = "gpu"))]
#[test]
fn devices_answers_at_once_and_says_what_another_build_would_have() {
    let started = std::time::Instant::now();
    surefoot()
        .arg("devices")
        .assert()
        .success()
        .stderr(predicate::str::contains("gpu (--features gpu)"));
    // The figure itself is the benchmark's; this catches a start-up gone wrong.
    assert!(started.elapsed() < std::time::Duration::from_secs(2));
}

#[test]
fn doctor_probes_the_cpu_and_suggests_settings() {
    surefoot().args(["doctor", "--device", "cpu"]).assert().success().stdout(
        predicate::str::contains("training step")
            .and(predicate::str::contains("recovery from every kind of fault"))
            .and(predicate::str::contains("settings to use"))
            .and(predicate::str::contains("cpu is healthy"))
            .and(predicate::str::contains("FAIL").not()),
    );
}

#[test]
fn doctor_in_json_is_one_document() {
    let report = json(surefoot().args(["doctor", "--device", "cpu", "--json"]));
    assert_eq!(report["healthy"], true);
    let cpu = &report["devices"][0];
    assert!(cpu["checks"].as_array().unwrap().len() >= 11);
    assert!(cpu["settings"]["batch"]["because"].as_str().unwrap().contains("samples/s"));
}

#[test]
fn a_device_that_no_build_has_is_a_usage_error_that_names_those_there_are() {
    surefoot()
        .args(["doctor", "--device", "tpu"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("'tpu'").and(predicate::str::contains("cpu")));
}

#[cfg(not(feature = "gpu"))]
#[test]
fn a_device_of_another_build_says_which_feature_adds_it() {
    surefoot()
        .args(["doctor", "--device", "gpu"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("--features gpu"));
}

#[test]
fn doctor_writes_to_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    surefoot().args(["doctor", "--device", "cpu", "-q", "--journal"]).arg(&path).assert().success();
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("\"healthy\":true"), "{text}");
}

#[test]
fn a_journal_that_cannot_be_written_is_a_usage_error() {
    surefoot()
        .args(["doctor", "--device", "cpu", "--journal", "/nonexistent/run.jsonl"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("/nonexistent/run.jsonl"));
}

#[test]
fn help_has_examples() {
    for command in ["devices", "doctor", "explain", "journal"] {
        surefoot()
            .args([command, "--help"])
            .assert()
            .success()
            .stdout(predicate::str::contains("Examples:"));
    }
}
