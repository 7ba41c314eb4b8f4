//! `surefoot explain` as its users call it.

use assert_cmd::Command;
use predicates::str::contains;
use serde_json::Value;

fn explain(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("surefoot").expect("the program is built");
    command.arg("explain").args(args);
    command
}

fn lines(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output)
        .lines()
        .map(|l| serde_json::from_str(l).expect("a line of JSON"))
        .collect()
}

#[test]
fn a_message_gets_its_kind_evidence_and_advice() {
    explain(&["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"])
        .assert()
        .success()
        .stdout(contains("out_of_memory"))
        .stdout(contains("evidence    CUBLAS_STATUS_ALLOC_FAILED"))
        .stdout(contains("What to change:\n  - "));
}

#[test]
fn what_is_unknown_is_said_to_be_no_device_fault() {
    explain(&["the quick brown fox"])
        .assert()
        .success()
        .stdout(contains("not_device_related: no known device fault"));
    explain(&["KeyError: 'cuda'"])
        .assert()
        .success()
        .stdout(contains("this is not a device fault"));
}

#[test]
fn json_is_one_document() {
    let output = explain(&["--json", "-"])
        .write_stdin("Traceback (most recent call last):\n  File \"oom.py\", line 1, in f\n    x\nRuntimeError: expected scalar type Half but found Float\n")
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let document: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(document["kind"], "dtype_mismatch");
    assert_eq!(document["evidence"], "expected scalar type Half but found Float");
    assert!(document["confidence"].as_f64().unwrap() > 0.9);
    assert!(document["advice"].as_array().is_some_and(|advice| !advice.is_empty()));
}

#[test]
fn jsonl_answers_every_message_in_order() {
    let input = include_str!("../../surefoot-explain/tests/data/errors.jsonl");
    let output =
        explain(&["--jsonl"]).write_stdin(input).assert().success().get_output().stdout.clone();
    let answers = lines(&output);
    assert_eq!(answers.len(), 121);
    let right = lines(input.as_bytes())
        .iter()
        .zip(&answers)
        .filter(|(row, answer)| row["label"] == answer["kind"])
        .count();
    assert!(right * 100 >= 97 * answers.len(), "{right} of {}", answers.len());
    for answer in &answers {
        for field in ["kind", "confidence", "evidence", "advice"] {
            assert!(answer.get(field).is_some(), "{answer}");
        }
    }
}

#[test]
fn a_bad_jsonl_line_is_named_and_the_rest_goes_on() {
    let input = "{\"message\":\"CUDA out of memory\"}\nnot json\n{\"message\":\"KeyError: 'x'\"}\n";
    let assert =
        explain(&["--jsonl"]).write_stdin(input).assert().code(2).stderr(contains("line 2"));
    let answers = lines(&assert.get_output().stdout);
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0]["kind"], "out_of_memory");
    assert_eq!(answers[1]["line"], 2);
    assert!(answers[1]["error"].is_string());
    assert_eq!(answers[2]["kind"], "not_device_related");
}

#[test]
fn no_text_is_a_usage_error() {
    explain(&[]).assert().code(2);
    explain(&["-"]).write_stdin(" \n").assert().code(2).stderr(contains("empty"));
    explain(&["x", "--jsonl"]).assert().code(2);
}

#[test]
fn a_long_log_is_read_from_its_end() {
    let log = "step ok\n".repeat(500_000) + "vkQueueSubmit returned VK_ERROR_DEVICE_LOST\n";
    explain(&["-"])
        .write_stdin(log)
        .assert()
        .success()
        .stdout(contains("device_lost"))
        .stderr(contains("were not read"));
}
