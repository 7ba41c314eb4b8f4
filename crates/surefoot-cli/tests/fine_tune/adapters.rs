//! Commands that run a model with an adapter give what the model with the adapter in its weights gives.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;
use testkit::model_folders;

use crate::{good, model, surefoot, tokens};

/// An adapter for llama-tiny that changes what it says.
fn adapter(folder: &Path) -> PathBuf {
    let mut projections = Vec::new();
    for layer in 0..3 {
        projections.push((format!("model.layers.{layer}.self_attn.q_proj"), 64, 64));
        projections.push((format!("model.layers.{layer}.mlp.down_proj"), 176, 64));
    }
    let adapter = folder.join("adapter");
    model_folders::adapter(&adapter, &projections, 5);
    adapter
}

/// The base, the adapter and the model with the adapter merged into it, by their paths.
fn models(folder: &Path) -> [String; 3] {
    let adapter = adapter(folder).display().to_string();
    let base = model().display().to_string();
    let merged = folder.join("merged").display().to_string();
    good(folder, &["merge-adapter", &base, &adapter, "--out", &merged]);
    [base, adapter, merged]
}

/// The numbers of a tensor in a file that `forward --out` wrote.
fn logits(file: &Path) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let view = read.tensor("logits").unwrap();
    view.data().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn forward_gives_the_logits_of_the_merged_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [base, adapter, merged] = models(folder);
    let forward = |model: &str, more: &[&str], out: &str| {
        let mut arguments = vec!["forward", model, "--tokens", "5,9,17,40", "--out", out];
        arguments.extend_from_slice(more);
        good(folder, &arguments);
        logits(&folder.join(out))
    };
    let plain = forward(&base, &[], "base.safetensors");
    let adapted = forward(&base, &["--adapter", &adapter], "adapted.safetensors");
    let whole = forward(&merged, &[], "merged.safetensors");
    assert!(farthest(&adapted, &plain) > 0.1, "the adapter changes the logits");
    let difference = farthest(&adapted, &whole);
    assert!(difference < 1e-3, "{difference}");
}

#[test]
fn generate_says_what_the_merged_model_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [base, adapter, merged] = models(folder);
    let adapted = tokens(folder, &base, &["--adapter", &adapter]);
    assert_eq!(adapted, tokens(folder, &merged, &[]));
    assert_ne!(adapted, tokens(folder, &base, &[]));
}

#[test]
fn compare_finds_the_merged_model_equal_and_the_base_different() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [base, adapter, merged] = models(folder);
    let compare = |reference: &str, candidate: &str, more: &[&str]| {
        let mut arguments = vec!["compare", reference, candidate, "--json"];
        arguments.extend_from_slice(more);
        let output = surefoot(folder, &arguments);
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code(), document["comparison"]["decision"]["verdict"].clone())
    };
    let same = compare(&merged, &base, &["--adapter", &adapter]);
    assert_eq!(same, (Some(0), "SAME".into()));
    let different = compare(&base, &base, &["--adapter", &adapter]);
    assert_eq!(different, (Some(1), "DIFFERENT".into()));
}

/// A GGUF file of Llama has the rows of queries and keys in another order than adapters.
#[test]
fn a_gguf_file_says_with_an_adapter_what_the_folder_says_and_is_fine_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gguf = model().join("../../gguf/llama-tiny.F32.gguf").display().to_string();
    let base = model().display().to_string();
    let adapter = adapter(folder).display().to_string();
    let adapted = tokens(folder, &base, &["--adapter", &adapter]);
    assert_ne!(adapted, tokens(folder, &base, &[]));
    assert_eq!(tokens(folder, &gguf, &["--adapter", &adapter]), adapted);
    // An adapter that is trained on the file is PEFT's: it does the same to the folder.
    let line = serde_json::json!({"prompt": "hello", "completion": " abcabcabcabc"}).to_string();
    fs::write(folder.join("data.jsonl"), format!("{line}\n").repeat(16)).unwrap();
    let config = serde_json::json!({
        "data": {"kind": "jsonl", "path": "data.jsonl", "length": 64},
        "model": {"kind": "pretrained", "path": gguf, "rank": 4, "targets": ["q_proj", "k_proj", "v_proj"]},
        "batch_size": 2, "steps": 25, "optimizer": {"lr": 0.02, "schedule": "constant"},
    });
    fs::write(folder.join("chats.yaml"), config.to_string()).unwrap();
    good(folder, &["train", "chats.yaml", "-q"]);
    let trained = ["--adapter", "runs/chats/adapter"];
    let said = tokens(folder, &gguf, &trained);
    assert_ne!(said, tokens(folder, &gguf, &[]));
    assert_eq!(tokens(folder, &base, &trained), said);
}
