//! `surefoot forward` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

fn forward(model: &Path) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("forward").arg(model);
    command
}

/// Header and tensors of a safetensors file of f32, read without the code under test.
fn tensors(file: &Path) -> serde_json::Map<String, serde_json::Value> {
    let bytes = std::fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut all = header.as_object().unwrap().clone();
    for (name, entry) in &mut all {
        if name == "__metadata__" {
            continue;
        }
        let from = entry["data_offsets"][0].as_u64().unwrap() as usize + 8 + length;
        let to = entry["data_offsets"][1].as_u64().unwrap() as usize + 8 + length;
        let numbers: Vec<f32> = bytes[from..to]
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        entry["numbers"] = numbers.into();
    }
    all
}

/// The first sequence of a golden file.
fn golden_tokens(model: &Path) -> String {
    let bytes = std::fs::read(model.join("golden.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let from = header["input_ids"]["data_offsets"][0].as_u64().unwrap() as usize + 8 + length;
    let ids = bytes[from..from + 24 * 4].chunks_exact(4);
    ids.map(|id| u32::from_le_bytes(id.try_into().unwrap()).to_string())
        .collect::<Vec<_>>()
        .join(",")
}

fn numbers(all: &serde_json::Map<String, serde_json::Value>, name: &str) -> Vec<f64> {
    let values = all[name]["numbers"].as_array().unwrap();
    values.iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn every_fixture_writes_the_golden_numbers() {
    let out = tempfile::tempdir().unwrap();
    for name in ["llama-tiny", "gpt2-tiny", "neox-tiny", "qwen2-tiny", "bert-tiny"] {
        let model = fixture(name);
        let file = out.path().join(format!("{name}.safetensors"));
        forward(&model)
            .args(["--tokens", &golden_tokens(&model), "--hidden", "--out"])
            .arg(&file)
            .assert()
            .success()
            .stdout("");
        let (got, golden) = (tensors(&file), tensors(&model.join("golden.safetensors")));
        let last = if name == "bert-tiny" { "last_hidden_state" } else { "logits" };
        let mut compared = vec![last.to_owned()];
        compared.extend(golden.keys().filter(|key| key.starts_with("hidden_")).cloned());
        for tensor in compared {
            let (got, want) = (numbers(&got, &tensor), numbers(&golden, &tensor));
            assert_eq!(got.len() * 2, want.len(), "{name} {tensor}");
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst <= 1e-4, "{name} {tensor} differs by {worst}");
        }
        assert_eq!(got[last]["shape"][0], 24);
    }
}

#[test]
fn a_text_goes_through_the_tokenizer() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("o.safetensors");
    let json = forward(&fixture("llama-tiny"))
        .args(["--text", "Hello", "--json", "--out"])
        .arg(&file)
        .assert()
        .success();
    let document: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).unwrap();
    assert_eq!(document["mode"], "resident");
    assert_eq!(document["tensors"], serde_json::json!(["logits"]));
    assert_eq!(tensors(&file)["logits"]["shape"][0], document["tokens"]);
}

#[test]
fn wrong_input_is_named_and_writes_nothing() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("o.safetensors");
    let refused = |model: &Path, tokens: &str, words: &str| {
        forward(model)
            .args(["--tokens", tokens, "--out"])
            .arg(&file)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(words.to_owned()));
        assert!(!file.exists());
    };
    let model = fixture("llama-tiny");
    refused(&model, "1,256", "token 256 is not in the vocabulary");
    refused(&model, "1,-2", "invalid value");
    refused(&model, "", "invalid value");
    refused(&fixture("nothing"), "1", "doesn't exist");
    refused(&fixture("gpt2-tiny"), &vec!["1"; 129].join(","), "128 positions");
    forward(&model)
        .args(["--tokens", "1", "--out", "/nowhere/at/all.safetensors"])
        .assert()
        .code(2)
        .stderr(contains("can't be written"));
    forward(&model).args(["--out"]).arg(&file).assert().code(2).stderr(contains("--tokens"));
}

/// The logits of `llama-tiny` in a precision.
fn logits_in(precision: &str) -> Vec<f64> {
    logits_with(&["--precision", precision])
}

fn logits_with(options: &[&str]) -> Vec<f64> {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("o.safetensors");
    let model = fixture("llama-tiny");
    forward(&model)
        .args(["--tokens", &golden_tokens(&model)])
        .args(options)
        .arg("--out")
        .arg(&file)
        .assert()
        .success();
    numbers(&tensors(&file), "logits")
}

#[test]
fn a_lower_precision_is_used_when_it_is_asked_for_and_auto_is_fp32() {
    let exact = logits_in("fp32");
    assert_eq!(logits_in("auto"), exact);
    let largest = exact.iter().fold(0.0_f64, |most, number| most.max(number.abs()));
    let far = |precision| {
        let rounded = logits_in(precision);
        rounded.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
    };
    let (fp16, bf16) = (far("fp16"), far("bf16"));
    assert!(fp16 > 1e-6 && fp16 < 0.005, "{fp16}");
    assert!(bf16 > fp16 && bf16 < 0.03, "{bf16}");
}

#[test]
fn weights_in_fewer_bits_give_logits_that_are_a_little_farther_off() {
    let exact = logits_with(&[]);
    assert_eq!(logits_with(&["--weights", "as-stored"]), exact);
    let size = exact.iter().map(|number| number.powi(2)).sum::<f64>();
    let far = |weights| {
        let rounded = logits_with(&["--weights", weights]);
        let apart = rounded.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        (apart / size).sqrt()
    };
    let (q8, q4) = (far("q8"), far("q4"));
    assert!(q8 > 1e-5 && q8 < 0.03, "{q8}");
    assert!(q4 > q8 && q4 < 0.35, "{q4}");
    forward(&fixture("llama-tiny"))
        .args(["--tokens", "1", "--weights", "q5", "--out", "x.safetensors"])
        .assert()
        .code(2)
        .stderr(contains("'q5' is not one of q8, q4 and as-stored"));
}

#[test]
fn a_damaged_file_ends_with_two_and_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        let bytes = std::fs::read(fixture("llama-tiny").join(name)).unwrap();
        let end = if name == "config.json" { bytes.len() } else { bytes.len() - 100 };
        std::fs::write(folder.path().join(name), &bytes[..end]).unwrap();
    }
    forward(folder.path())
        .args(["--tokens", "1", "--out"])
        .arg(folder.path().join("o.safetensors"))
        .assert()
        .code(2)
        .stderr(contains("model.safetensors").and(contains("tensor '")).and(contains("truncated")));
}

#[test]
fn memory_that_is_not_enough_is_refused_with_the_number_that_is() {
    let out = tempfile::tempdir().unwrap();
    forward(&fixture("llama-tiny"))
        .args(["--tokens", "1,2", "--memory", "4MiB", "--out"])
        .arg(out.path().join("o.safetensors"))
        .assert()
        .code(2)
        .stderr(contains("would be needed").and(contains("--memory")));
}

#[test]
fn a_fault_on_the_device_is_survived_or_ends_with_three() {
    let out = tempfile::tempdir().unwrap();
    let with = |arguments: &[&str]| {
        let mut command = forward(&fixture("llama-tiny"));
        command.args(["--tokens", "1,2,3", "--drill", "out_of_memory:count=1", "--out"]);
        command.arg(out.path().join("o.safetensors")).args(arguments).assert()
    };
    with(&[]).success().stderr(contains("try 2"));
    with(&["--on-fault", "fail"]).code(3).stderr(contains("out_of_memory"));
}
