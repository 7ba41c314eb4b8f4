//! From a JSONL file and a model folder to an adapter that the other commands run with.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adapters;
#[cfg(unix)]
mod killed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn surefoot(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .unwrap()
}

fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = surefoot(folder, arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/llama-tiny")
}

/// The tokens behind a prompt.
fn tokens(folder: &Path, model: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["generate", model, "hello", "--max-tokens", "12", "--json"];
    arguments.extend_from_slice(more);
    let document: Value = serde_json::from_str(&good(folder, &arguments)).unwrap();
    document["completions"][0]["tokens"].clone()
}

#[test]
fn an_adapter_is_trained_run_exported_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let line = |_| json!({"prompt": "hello", "completion": " abcabcabcabc"}).to_string() + "\n";
    fs::write(folder.join("data.jsonl"), (0..16).map(line).collect::<String>()).unwrap();
    let config = json!({
        "data": {"kind": "jsonl", "path": "data.jsonl", "length": 64},
        "model": {"kind": "pretrained", "path": model(), "rank": 4},
        "batch_size": 2, "steps": 25, "optimizer": {"lr": 0.02, "schedule": "constant"},
    });
    fs::write(folder.join("chats.yaml"), config.to_string()).unwrap();
    let told = good(folder, &["train", "chats.yaml", "--json"]);
    let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    let checkpoint = report["checkpoint"].as_str().unwrap();
    let adapter = "runs/chats/adapter";
    let base = model().display().to_string();
    let before = tokens(folder, &base, &[]);
    let adapted = tokens(folder, &base, &["--adapter", adapter]);
    assert_ne!(adapted, before, "the adapter changes the model");
    // The checkpoint itself, an exported adapter and the merged model say the same.
    assert_eq!(tokens(folder, checkpoint, &[]), adapted);
    good(folder, &["export", checkpoint, "--to", "peft", "--out", "mine"]);
    assert_eq!(
        fs::read(folder.join("mine/adapter_model.safetensors")).unwrap(),
        fs::read(folder.join(adapter).join("adapter_model.safetensors")).unwrap()
    );
    good(folder, &["merge-adapter", &base, adapter, "--out", "merged"]);
    assert_eq!(tokens(folder, "merged", &[]), adapted);
    let again = surefoot(folder, &["merge-adapter", &base, adapter, "--out", "merged"]);
    assert_eq!(again.status.code(), Some(2), "nothing is overwritten");
    // Going on changes nothing of what is done; a test of the checkpoint gives what the run gave.
    let tested = good(folder, &["train", "--eval", checkpoint, "--json"]);
    let tested: Value = serde_json::from_str(&tested).unwrap();
    assert_eq!(tested["test_loss"], report["test_loss"]);
}

#[test]
fn a_whole_model_is_trained_and_exported_as_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let line = |_| json!({"text": "abcabcabcabcabc"}).to_string() + "\n";
    fs::write(folder.join("data.jsonl"), (0..8).map(line).collect::<String>()).unwrap();
    for tune in ["full", "head"] {
        let config = json!({
            "data": {"kind": "jsonl", "path": "data.jsonl", "length": 32},
            "model": {"kind": "pretrained", "path": model(), "tune": tune},
            "batch_size": 2, "steps": 12, "optimizer": {"lr": 0.01, "schedule": "constant"},
            "gradient_checkpointing": true, "checkpoint": {"folder": tune},
        });
        fs::write(folder.join("run.yaml"), config.to_string()).unwrap();
        let told = good(folder, &["train", "run.yaml", "--json"]);
        let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        let checkpoint = report["checkpoint"].as_str().unwrap();
        let out = format!("{tune}-folder");
        good(folder, &["export", checkpoint, "--to", "hf", "--out", &out]);
        let trained = tokens(folder, &out, &[]);
        assert_ne!(trained, tokens(folder, &model().display().to_string(), &[]), "{tune}");
        assert_eq!(tokens(folder, checkpoint, &[]), trained, "{tune}");
    }
}

/// A tiny BERT with a tokenizer of a few words.
fn encoder(folder: &Path) {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/bert-tiny");
    fs::create_dir(folder.join("bert")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), folder.join("bert").join(name)).unwrap();
    }
    let tokenizer = json!({
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {
            "?": 0, "good": 1, "fine": 2, "bad": 3, "poor": 4, "very": 5, "really": 6,
        }},
        "pre_tokenizer": {"type": "Whitespace"},
    });
    fs::write(folder.join("bert/tokenizer.json"), tokenizer.to_string()).unwrap();
}

#[test]
fn texts_are_classified_from_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    encoder(folder);
    let mut table = "id,text,label\n".to_owned();
    for (at, (text, label)) in
        [("good", "up"), ("very fine", "up"), ("bad", "down"), ("really poor", "down")]
            .into_iter()
            .cycle()
            .take(40)
            .enumerate()
    {
        table += &format!("{at},{text},{label}\n");
    }
    fs::write(folder.join("texts.csv"), &table).unwrap();
    for tune in ["lora", "full", "head"] {
        let config = json!({
            "data": {"kind": "csv", "path": "texts.csv", "length": 16},
            "model": {"kind": "pretrained", "path": "bert", "tune": tune, "rank": 2},
            "batch_size": 8, "epochs": 12, "optimizer": {"lr": if tune == "head" { 0.05 } else { 0.005 }},
            "checkpoint": {"folder": tune},
        });
        fs::write(folder.join("run.yaml"), config.to_string()).unwrap();
        let told = good(folder, &["train", "run.yaml", "--json"]);
        let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert_eq!(report["test_accuracy"], 1.0, "{tune}: {report}");
        let checkpoint = report["checkpoint"].as_str().unwrap();
        fs::write(folder.join("new.txt"), "very good\nreally bad\n").unwrap();
        let told = good(folder, &["predict", checkpoint, "new.txt"]);
        let labels: Vec<bool> = told.lines().map(|line| line.contains("up")).collect();
        assert_eq!(labels, [true, false], "{tune}: {told}");
        let out = format!("{tune}-folder");
        good(folder, &["export", checkpoint, "--to", "hf", "--out", &out]);
        let settings = fs::read_to_string(folder.join(&out).join("config.json")).unwrap();
        let settings: Value = serde_json::from_str(&settings).unwrap();
        assert_eq!(settings["id2label"], json!({"0": "down", "1": "up"}));
    }
    fs::write(folder.join("texts.csv"), table + "41,,up\n").unwrap();
    let output = surefoot(folder, &["train", "run.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("texts.csv:42: it has no text"), "{told}");
}

#[test]
fn an_adapter_of_another_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let adapter =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-train/tests/fixtures/gpt2-tiny");
    let output = surefoot(
        folder,
        &[
            "generate",
            &model().display().to_string(),
            "hello",
            "--adapter",
            &adapter.display().to_string(),
        ],
    );
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("lora_") && told.contains("no projection of this llama"), "{told}");
}

/// Waits for a temporary folder to appear, interrupts the program, and looks whether it is gone.
#[cfg(unix)]
#[test]
fn an_interrupted_command_leaves_no_temporary_folder() {
    use std::time::{Duration, Instant};
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("text.txt"), "abcdefg".repeat(400)).unwrap();
    let config = "{data: {kind: text, path: text.txt, length: 16}, \
                  model: {kind: gpt, layers: 1, heads: 2, width: 16}, batch_size: 16, steps: 2}";
    fs::write(folder.join("run.yaml"), config).unwrap();
    let told = good(folder, &["train", "run.yaml", "--json"]);
    let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    let temporary = folder.join("tmp");
    fs::create_dir(&temporary).unwrap();
    let is_empty = || fs::read_dir(&temporary).unwrap().next().is_none();
    // It waits for prompts, so the folder is there until it is interrupted.
    let mut child = Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .current_dir(folder)
        .env("TMPDIR", &temporary)
        .args(["generate", report["checkpoint"].as_str().unwrap(), "--prompts", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Waiting for a child closes its stdin, which would end it in another way.
    let _stdin = child.stdin.take();
    let patience = Instant::now() + Duration::from_secs(600);
    let listens = || fs::read_to_string(format!("/proc/{}/status", child.id()));
    // Bit 1 of the caught signals is SIGINT.
    let catches = |status: &str| {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught
            .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
            .is_some_and(|bits| bits & 2 != 0)
    };
    while is_empty() || listens().is_ok_and(|status| !catches(&status)) {
        assert!(Instant::now() < patience, "no temporary folder was made");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(is_empty(), "the temporary folder is gone");
}
