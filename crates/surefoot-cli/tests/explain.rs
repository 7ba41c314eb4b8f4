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
fn a_log_that_is_not_there_is_not_taken_for_a_message() {
    explain(&["training.log"]).assert().code(2).stderr(contains("there is no file training.log"));
    explain(&["torch.OutOfMemoryError"]).assert().success();
}

#[test]
fn no_text_is_a_usage_error() {
    explain(&[]).assert().code(2);
    explain(&["-"]).write_stdin(" \n").assert().code(2).stderr(contains("empty"));
    explain(&["x", "--jsonl"]).assert().code(2);
}

/// A run of eight ranks that ends with an assert on one of them and time-outs on the others.
fn failed_run() -> String {
    let mut log = "step ok\n".repeat(50_000);
    log += "[rank3]: RuntimeError: CUDA error: device-side assert triggered\n";
    for rank in 0..8 {
        log += &format!(
            "[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580) ran for 600060 milliseconds before timing out.\n"
        );
    }
    log
}

#[test]
fn the_first_cause_of_a_long_log_is_found_on_stdin_and_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("training.log");
    std::fs::write(&path, failed_run()).unwrap();
    let name = path.to_str().unwrap();
    for command in [explain(&["-"]).write_stdin(failed_run()), &mut explain(&[name])] {
        command
            .assert()
            .success()
            .stdout(contains("first cause: line 50001 of 50009"))
            .stdout(contains("device_lost"))
            .stdout(contains("Errors that follow from it: 8"))
            .stdout(contains("docs/errors/cuda-error-device-side-assert-triggered.md"));
    }
    let output = explain(&["--json", name]).assert().success().get_output().stdout.clone();
    let document: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(document["kind"], "device_lost");
    assert_eq!(document["first"]["line"], 50_001);
    assert_eq!(document["follows"].as_array().map(Vec::len), Some(8));
    assert!(document["guide"]["causes"].as_array().is_some_and(|causes| !causes.is_empty()));
}

#[test]
fn what_no_rule_knows_has_words_and_a_second_guess() {
    explain(&[
        "RuntimeError: Only Tensors of floating point and complex dtype can require gradients",
    ])
    .assert()
    .success()
    .stdout(contains("dtype_mismatch"))
    .stdout(contains("(learned)"))
    .stdout(contains("  or          "));
}
