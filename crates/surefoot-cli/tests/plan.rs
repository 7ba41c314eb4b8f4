//! `surefoot plan` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

fn plan(name: &str) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("plan").arg(fixture(name));
    command
}

#[test]
fn the_plan_is_told_to_people_and_machines() {
    plan("llama-tiny").assert().success().stdout(
        contains("3 blocks")
            .and(contains("peak"))
            .and(contains("tokens/s"))
            .and(contains("4 resident")),
    );
    let output = plan("llama-tiny").args(["--memory", "1GiB", "--json"]).assert().success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["fits"], true);
    assert_eq!(document["mode"], "resident");
    assert_eq!(document["budget_bytes"], 1_u64 << 30);
    assert_eq!(document["parts"].as_array().unwrap().len(), 4);
    assert!(document["expected"]["tokens_per_second"].as_f64().unwrap() > 0.0);
    let sum: u64 = [
        "baseline_bytes",
        "vector_bytes",
        "kv_cache_bytes",
        "activation_bytes",
        "resident_bytes",
        "window_bytes",
    ]
    .iter()
    .map(|key| document[key].as_u64().unwrap())
    .sum();
    assert_eq!(document["peak_bytes"], sum);
}

#[test]
fn memory_that_is_not_enough_is_a_no_with_the_number_that_is() {
    let output = plan("gpt2-tiny").args(["--memory", "1MiB", "--json"]).assert().code(1);
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["fits"], false);
    let least = document["least_bytes"].as_u64().unwrap();
    plan("gpt2-tiny").args(["--memory", "1MiB"]).assert().code(1).stdout(contains("does not fit"));
    let enough = (least + (4 << 20)).to_string();
    plan("gpt2-tiny").args(["--memory", &enough]).assert().success();
}

#[test]
fn the_forms_of_the_weights_are_compared_and_one_is_recommended() {
    let output = plan("qwen2-tiny").arg("--json").assert().success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let choices = document["choices"].as_array().unwrap();
    let names: Vec<&str> = choices.iter().map(|it| it["weights"].as_str().unwrap()).collect();
    assert_eq!(names, ["as-stored", "q8", "q4"]);
    let bytes: Vec<u64> = choices.iter().map(|it| it["weight_bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes[1], bytes[0] * 34 / 128);
    assert!(bytes[2] < bytes[1], "{bytes:?}");
    assert!(choices.iter().all(|it| it["tokens_per_second"].as_f64().unwrap() > 0.0));
    assert_eq!(document["recommended"], "as-stored", "all of it fits");
    // In a form that was chosen, the plan is of that form.
    let output = plan("qwen2-tiny").args(["--weights", "q8", "--json"]).assert().success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["weights"], "q8");
    assert_eq!(document["resident_bytes"], bytes[1]);
    plan("qwen2-tiny")
        .assert()
        .success()
        .stdout(contains("recommended: as-stored").and(contains("q4")));
    plan("qwen2-tiny")
        .args(["--memory", "1MiB"])
        .assert()
        .code(1)
        .stdout(contains("none of them fits"));
}

#[test]
fn devices_to_lay_a_model_over_are_all_needed_and_are_not_for_training() {
    let refused = |devices: &str, why: &str| {
        plan("llama-tiny").args(["--device", devices]).assert().code(2).stderr(contains(why));
    };
    refused("cpu+xpu", "'xpu' is not in this build");
    refused("gpu+cpu,cuda", "has both '+' and ','");
    refused("cpu=3+cpu=1", "name each device once");
    let mut train = Command::cargo_bin("surefoot").unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/digits.yaml");
    let train = train.arg("train").arg(config).args(["--device", "gpu+cpu", "--steps", "1"]);
    train.assert().code(2).stderr(contains("one device at a time").and(contains("gpu,cpu")));
}

#[test]
fn a_folder_that_is_no_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("plan").arg(folder.path()).assert().code(2).stderr(contains("config.json"));
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "rwkv"}"#).unwrap();
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command
        .arg("plan")
        .arg(folder.path())
        .assert()
        .code(2)
        .stderr(contains("'model_type' is 'rwkv'"));
}
