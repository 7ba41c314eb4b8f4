//! `surefoot export`, and the commands that take a checkpoint where they take a model folder.
//! Whether other programs agree is checked by `benches/peers/export.py`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod trained;

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use trained::{good, surefoot, text, trained};

/// A model of a text that repeats itself.
fn gpt() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "abcdefg".repeat(400)).unwrap();
    let config = "{data: {kind: text, path: text.txt, length: 16}, \
                  model: {kind: gpt, layers: 1, heads: 2, width: 16}, \
                  batch_size: 16, epochs: 12, optimizer: {lr: 0.02}}";
    let checkpoint = trained(folder.path(), config);
    (folder, checkpoint)
}

#[test]
fn a_text_model_is_used_as_a_checkpoint_and_as_an_exported_folder_alike() {
    let (folder, checkpoint) = gpt();
    let folder = folder.path();
    let files = good(folder, &["export", &checkpoint, "--to", "hf", "--out", "out/gpt"]);
    let names: Vec<&str> =
        files.lines().map(|line| line.strip_prefix("out/gpt/").unwrap()).collect();
    let expected = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(names, expected);
    let entries = fs::read_dir(folder.join("out")).unwrap().count();
    assert_eq!(entries, 1, "nothing temporary is left");

    let goes_on =
        |model: &str| good(folder, &["generate", model, "cdefgab", "--max-tokens", "6", "-q"]);
    assert_eq!(goes_on("out/gpt").trim_end(), "cdefga");
    assert_eq!(goes_on("out/gpt"), goes_on(&checkpoint));
    let compared = good(folder, &["compare", &checkpoint, "out/gpt", "--json"]);
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["comparison"]["decision"]["verdict"], "SAME", "{compared}");
    for command in [
        &["plan", &checkpoint][..],
        &["forward", &checkpoint, "--text", "abc", "--out", "o.safetensors"],
    ] {
        good(folder, command);
    }
}

#[test]
fn what_can_not_be_exported_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = "{data: {kind: digits}, model: {kind: mlp, hidden: [8]}, epochs: 1}";
    let checkpoint = trained(folder, config);
    let refused = |arguments: &[&str]| {
        let output = surefoot(folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let told = refused(&["export", &checkpoint, "--to", "hf", "--out", "new"]);
    assert!(
        told.contains("mlp can't be exported as a Hugging Face folder")
            && told.contains("--to onnx"),
        "{told}"
    );
    assert!(!folder.join("new").exists());
    let told = refused(&["generate", &checkpoint, "hello"]);
    assert!(told.contains("is a checkpoint of kind mlp, not a text model"), "{told}");
    assert!(told.contains("surefoot predict"), "{told}");

    fs::create_dir(folder.join("full")).unwrap();
    fs::write(folder.join("full/mine.txt"), "mine").unwrap();
    let told = refused(&["export", &checkpoint, "--to", "onnx", "--out", "full"]);
    assert!(told.contains("full exists and is not empty"), "{told}");
    assert_eq!(fs::read_to_string(folder.join("full/mine.txt")).unwrap(), "mine");

    let mut bytes = fs::read(folder.join(&checkpoint)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(folder.join("damaged.safetensors"), bytes).unwrap();
    let told = refused(&["export", "damaged.safetensors", "--to", "onnx", "--out", "new"]);
    assert!(told.contains("damaged"), "{told}");
}

#[test]
fn onnx_files_name_their_classes_and_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = "{data: {kind: digits}, model: {kind: cnn, width: 8, stages: 2}, steps: 3}";
    let checkpoint = trained(folder, config);
    let told = good(folder, &["export", &checkpoint, "--to", "onnx", "--out", "net", "--json"]);
    let document: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(document["files"], serde_json::json!(["net/model.onnx"]));
    let bytes = text(&fs::read(folder.join("net/model.onnx")).unwrap());
    let classes = r#"["0","1","2","3","4","5","6","7","8","9"]"#;
    for part in
        ["surefoot.classes", classes, "1x8x8 pixels", "InstanceNormalization", "probabilities"]
    {
        assert!(bytes.contains(part), "{part}");
    }
}

#[test]
fn a_sweep_trains_every_combination_and_prints_one_table() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = "{data: {kind: digits}, model: {kind: mlp, hidden: [8]}, steps: 20}";
    fs::write(folder.join("run.yaml"), config).unwrap();
    let swept = [
        "train",
        "run.yaml",
        "-q",
        "--sweep",
        "optimizer.lr=0.02,0.00001",
        "--sweep",
        "model.hidden=[8],[16, 8]",
    ];
    let told = good(folder, &swept);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2 + 4, "{told}");
    assert!(lines[0].contains("4 runs over optimizer.lr and model.hidden"), "{told}");
    assert!(lines[2].contains("optimizer.lr=0.02"), "the best comes first: {told}");
    assert!(lines[5].contains("optimizer.lr=0.00001"), "{told}");
    for number in ["001", "002", "003", "004"] {
        assert!(folder.join("runs/run-sweep").join(number).is_dir(), "{told}");
    }
    let failing = ["train", "run.yaml", "-q", "--json", "--sweep", "optimizer.lr=0.01,oops"];
    let output = surefoot(folder, &failing);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let runs: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(runs[0]["exit_code"], 0);
    assert_eq!(runs[1]["exit_code"], 2, "{runs}");
    assert_eq!(runs[1]["set"], serde_json::json!([["optimizer.lr", "oops"]]));
}

#[test]
fn a_plan_of_a_configuration_says_memory_time_and_the_batch_that_fits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config =
        "{data: {kind: digits}, model: {kind: mlp, hidden: [8]}, epochs: 2, batch_size: 64}";
    fs::write(folder.join("run.yaml"), config).unwrap();
    let told = good(folder, &["plan", "run.yaml", "-q"]);
    for part in ["run.yaml: 610 parameters on cpu", "64 samples, which fit at once", "46 steps"] {
        assert!(told.contains(part), "{told}");
    }
    let told = good(folder, &["plan", "run.yaml", "-q", "--json", "--set", "batch_size=100"]);
    let document: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&document["batch_size"], &document["steps"]), (&100.into(), &30.into()));
    assert!(!folder.join("runs").exists(), "nothing is trained");
    let output = surefoot(folder, &["plan", "run.yaml", "--set", "batch_sice=100"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("batch_size"), "{}", text(&output.stderr));
}

#[test]
fn curves_for_tensorboard_are_written_beside_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = "{data: {kind: digits}, model: {kind: mlp, hidden: [8]}, epochs: 2}";
    fs::write(folder.join("run.yaml"), config).unwrap();
    good(folder, &["train", "run.yaml", "-q", "--tensorboard", "logs/first"]);
    let files: Vec<_> =
        fs::read_dir(folder.join("logs/first")).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1);
    assert!(files[0].file_name().to_string_lossy().starts_with("events.out.tfevents."));
    let bytes = text(&fs::read(files[0].path()).unwrap());
    for part in ["brain.Event:2", "step/loss", "train/loss", "test/accuracy"] {
        assert!(bytes.contains(part), "{part}");
    }
}
