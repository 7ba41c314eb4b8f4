//! `surefoot tune` as people run it, in a build for the CPU, which has no kernels to keep.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

fn tune() -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("tune");
    command
}

#[test]
fn a_model_is_run_in_doubling_shapes_up_to_the_limits() {
    let sizes = ["--prompt-tokens", "40", "--sequences", "3", "--device", "cpu", "--json"];
    let output = tune().arg(fixture("llama-tiny")).args(sizes).assert().success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["device"], "cpu");
    let shapes: Vec<Value> = document["shapes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shape| json!([shape["sequences"], shape["prompt_tokens"], shape["new_tokens"]]))
        .collect();
    let expected = [[1, 16, 8], [1, 32, 8], [1, 40, 8], [2, 16, 8], [3, 16, 8]];
    assert_eq!(shapes, expected.map(|shape| json!(shape)));
    assert!(document["shapes"][0]["next_seconds"].as_f64().unwrap() > 0.0);
    output.stderr(
        contains("cpu has no kernels to compile")
            .and(contains("4 of 5: 2 sequences of 16 prompt tokens, 8 new tokens each: ")),
    );
}

#[test]
fn an_encoder_is_run_without_tokens_behind_its_texts() {
    let sizes = ["--prompt-tokens", "16", "--sequences", "1", "--device", "cpu", "--json"];
    let output = tune().arg(fixture("bert-tiny")).args(sizes).assert().success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["shapes"].as_array().unwrap().len(), 1);
    assert_eq!(document["shapes"][0]["new_tokens"], 0);
}

#[cfg(not(any(feature = "vulkan", feature = "cuda")))]
#[test]
fn a_build_without_a_store_says_that_it_has_no_kernels_to_carry() {
    for option in ["--load", "--save"] {
        let file = std::env::temp_dir().join("surefoot-no-such.kernels");
        let output = tune().arg(option).arg(&file).assert().code(2);
        output.stderr(contains("leaves compiled kernels to the driver"));
        assert!(!file.exists());
        // Before anything is run for nothing.
        let output = tune().arg(fixture("llama-tiny")).arg(option).arg(&file).assert().code(2);
        output.stderr(contains("prompt tokens").not());
    }
    tune().assert().code(2).stderr(contains("WORK"));
}

#[test]
fn a_training_run_is_tried_in_doubling_batches_up_to_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("small.yaml");
    let small = "data: {kind: digits}\nmodel: {kind: mlp, hidden: [8]}\nbatch_size: 4\nepochs: 1\n";
    std::fs::write(&config, small).unwrap();
    let options = ["--set", "batch_size=12", "--device", "cpu", "--json"];
    let output = tune().current_dir(folder.path()).arg(&config).args(options).assert().success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!((&document["device"], &document["shapes"]), (&json!("cpu"), &json!([])));
    let batches: Vec<&Value> =
        document["batches"].as_array().unwrap().iter().map(|tried| &tried["batch"]).collect();
    assert_eq!(batches, [&json!(1), &json!(2), &json!(4), &json!(8), &json!(12)]);
    output.stderr(contains("12 of 12 samples: ").and(contains("cpu has no kernels to compile")));
    // Nothing of it is kept.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn options_of_a_training_run_are_refused_for_a_model() {
    let mut command = tune();
    command.arg(fixture("llama-tiny")).args(["--set", "batch_size=4"]);
    command.assert().code(2).stderr(contains("--set is for the configuration of a training run"));
}
