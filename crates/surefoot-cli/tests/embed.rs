//! `surefoot embed` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

/// A BERT with a tokenizer that knows a word for each of some ids.
fn encoder() -> tempfile::TempDir {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures");
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixtures.join("bert-tiny").join(name), folder.path().join(name)).unwrap();
    }
    let words: Vec<String> = (0..100).map(|id| format!(r#""w{id}": {}"#, id + 5)).collect();
    let tokenizer = format!(
        r###"{{"version": "1.0", "truncation": {{"direction": "Right", "max_length": 3,
        "strategy": "LongestFirst", "stride": 0}}, "padding": {{"strategy": {{"Fixed": 64}},
        "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]"}}, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {{"type": "WhitespaceSplit"}},
        "post_processor": {{"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}},
        "decoder": null, "model": {{"type": "WordLevel", "unk_token": "[UNK]", "vocab":
        {{"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, {}}}}}}}"###,
        words.join(", ")
    );
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    folder
}

fn vectors(folder: &Path, texts: &str, arguments: &[&str]) -> Vec<Vec<f64>> {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    let output =
        command.arg("embed").arg(folder).args(arguments).write_stdin(texts).assert().success();
    let lines = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Rows of `last_hidden_state` by `surefoot forward`.
fn states(folder: &Path, tokens: &str) -> Vec<Vec<f64>> {
    let out: PathBuf = folder.join("states.safetensors");
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("forward").arg(folder).args(["--tokens", tokens, "--out"]).arg(&out);
    command.assert().success();
    let bytes = std::fs::read(out).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + length..]
        .chunks_exact(64 * 4)
        .map(|row| {
            let numbers = row.chunks_exact(4);
            numbers.map(|n| f64::from(f32::from_le_bytes(n.try_into().unwrap()))).collect()
        })
        .collect()
}

fn unit(vector: Vec<f64>) -> Vec<f64> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    vector.into_iter().map(|x| x / length).collect()
}

fn close(a: &[f64], b: &[f64]) {
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(a.len() == b.len() && worst < 1e-5, "{worst}");
}

#[test]
fn texts_of_different_lengths_give_the_mean_or_the_first_state_normalised() {
    let folder = encoder();
    let texts = "w1 w2 w3 w4 w5 w6\nw9\nw7 unknown\n";
    let tokens = ["2,6,7,8,9,10,11,3", "2,14,3", "2,12,1,3"];
    for (pooling, arguments) in [("mean", &[][..]), ("cls", &["--pooling", "cls"][..])] {
        let got = vectors(folder.path(), texts, arguments);
        assert_eq!(got.len(), 3);
        for (got, tokens) in got.iter().zip(tokens) {
            let states = states(folder.path(), tokens);
            let want = match pooling {
                "cls" => states[0].clone(),
                _ => (0..64)
                    .map(|i| states.iter().map(|row| row[i]).sum::<f64>() / states.len() as f64)
                    .collect(),
            };
            close(got, &unit(want));
        }
    }
}

#[test]
fn pooling_is_read_from_the_folder() {
    let folder = encoder();
    let cls = vectors(folder.path(), "w1 w2\n", &["--pooling", "cls"]);
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    std::fs::write(
        folder.path().join("1_Pooling/config.json"),
        r#"{"word_embedding_dimension": 64, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#,
    )
    .unwrap();
    std::fs::write(
        folder.path().join("modules.json"),
        r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#,
    )
    .unwrap();
    assert_eq!(vectors(folder.path(), "w1 w2\n", &[]), cls);
    assert_ne!(vectors(folder.path(), "w1 w2\n", &["--pooling", "mean"]), cls);
}

#[test]
fn a_long_text_is_cut_where_the_model_ends() {
    let folder = encoder();
    let long = (0..300).map(|i| format!("w{}", i % 100)).collect::<Vec<_>>().join(" ");
    let cut = (0..126).map(|i| format!("w{}", i % 100)).collect::<Vec<_>>().join(" ");
    let got = vectors(folder.path(), &format!("{long}\n{cut}\n"), &[]);
    close(&got[0], &got[1]);
}

#[test]
fn a_file_of_many_texts_can_be_written_as_a_tensor() {
    let folder = encoder();
    let texts: String = (0..70).map(|i| format!("w{} w{}\n", i, i + 1)).collect();
    let (file, out) = (folder.path().join("texts.txt"), folder.path().join("v.safetensors"));
    std::fs::write(&file, texts).unwrap();
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("embed").arg(folder.path()).arg(&file).arg("--out").arg(&out);
    command.assert().success().stdout("").stderr(contains("70 vectors of 64"));
    let bytes = std::fs::read(out).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!(header["embeddings"]["shape"], serde_json::json!([70, 64]));
}

#[test]
fn nothing_to_embed_and_a_tokenizer_that_does_not_fit_are_refused() {
    let folder = encoder();
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("embed").arg(folder.path()).write_stdin("").assert().code(2);
    let path = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"w99\": 104", "\"w99\": 256");
    std::fs::write(&path, text).unwrap();
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command
        .arg("embed")
        .arg(folder.path())
        .write_stdin("w1\n")
        .assert()
        .code(2)
        .stderr(contains("tokenizer.json").and(contains("256")));
}

/// Issue 17: a text was cut without a note.
#[test]
fn a_text_that_is_cut_is_told() {
    let folder = encoder();
    let long: Vec<String> = (0..500).map(|number| format!("w{}", number % 100)).collect();
    let texts = format!("w1 w2\n{}\nw3\n", long.join(" "));
    let run = |arguments: &[&str]| {
        let mut command = Command::cargo_bin("surefoot").unwrap();
        let command = command.arg("embed").arg(folder.path()).args(arguments);
        command.write_stdin(texts.clone()).assert().success()
    };
    run(&[])
        .stderr(contains("1 of 3 texts were cut to 128 tokens").and(contains("line 2, has 502")));
    let output = run(&["--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["max_tokens"], 128);
    assert_eq!(document["truncated"], serde_json::json!([{"line": 2, "tokens": 502}]));
    assert_eq!(document["embeddings"].as_array().unwrap().len(), 3);
}
