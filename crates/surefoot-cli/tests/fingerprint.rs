//! `surefoot fingerprint` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod changed;

use changed::{fingerprint, fixture, json, surefoot};
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

#[test]
fn every_fixture_gets_a_fingerprint_with_all_its_sites() {
    let folder = tempfile::tempdir().unwrap();
    for (name, last) in [
        ("llama-tiny", "head"),
        ("gpt2-tiny", "head"),
        ("neox-tiny", "head"),
        ("qwen2-tiny", "head"),
        ("bert-tiny", "block"),
    ] {
        let out = folder.path().join(format!("{name}.json"));
        let document = json(
            surefoot("fingerprint")
                .arg(fixture(name))
                .args(["--json", "--out"])
                .arg(&out)
                .assert()
                .success(),
        );
        assert_eq!(document["model"], name);
        let kept = document["sites"].as_array().unwrap();
        let blocks = kept.iter().filter(|s| s["site"].as_str().unwrap().starts_with("block"));
        assert!(blocks.count() >= 2, "{name}: {document}");
        assert_eq!(kept[0]["site"], "embeddings");
        assert!(kept.last().unwrap()["site"].as_str().unwrap().starts_with(last), "{name}");
        surefoot("verify").arg(&out).assert().success().stdout(contains("holds"));
    }
}

#[test]
fn a_gguf_file_gets_a_fingerprint_whatever_it_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let file = fixture("../gguf/llama-tiny.Q8_0.gguf");
    let renamed = folder.path().join("renamed.gguf");
    std::fs::copy(&file, &renamed).unwrap();
    let out = folder.path().join("out.json");
    let files = [&file, &renamed].map(|file| {
        let run = surefoot("fingerprint").arg(file).args(["--json", "--out"]).arg(&out).assert();
        json(run.success())["files"].as_str().unwrap().to_owned()
    });
    assert_eq!(files[0], files[1]);
    let same = surefoot("compare").arg(&file).arg(&renamed).args(["--json"]).assert();
    assert_eq!(json(same.success())["comparison"]["decision"]["verdict"], "SAME");
}

#[test]
fn the_commitment_is_told_before_anything_runs_and_follows_from_key_and_run_id() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "00".repeat(32) + "\n").unwrap();
    let commitment = |options: &[&str]| {
        let run = surefoot("fingerprint")
            .arg(fixture("llama-tiny"))
            .args(["--json", "--challenges", "2", "--tokens", "4", "--out"])
            .arg(folder.path().join("out.json"))
            .args(options)
            .assert()
            .success();
        let errors = String::from_utf8(run.get_output().stderr.clone()).unwrap();
        let commitment = json(run)["commitment"].as_str().unwrap().to_owned();
        let told = errors.find(&commitment).expect("the commitment is a note");
        assert!(told < errors.find("measuring the noise").unwrap(), "{errors}");
        commitment
    };
    let file = key.to_str().unwrap();
    let usual = commitment(&[]);
    assert_eq!(usual, commitment(&[]));
    assert_ne!(usual, commitment(&["--run-id", "other"]));
    assert_ne!(usual, commitment(&["--key-file", file]));
    assert_eq!(commitment(&["--key-file", file]), commitment(&["--key-file", file]));
}

#[test]
fn a_streamed_model_has_the_same_sketches_as_a_resident_one() {
    let folder = tempfile::tempdir().unwrap();
    let root = |name: &str, options: &[&str]| {
        let out = folder.path().join(name);
        let run = surefoot("fingerprint")
            .arg(fixture("llama-tiny"))
            .args(["--json", "--out"])
            .arg(&out)
            .args(options)
            .assert()
            .success();
        let placement: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
        (json(run)["root"].clone(), placement["run"]["placement"].clone())
    };
    let (resident, placement) = root("resident.json", &[]);
    assert_eq!(placement, "resident");
    assert_eq!(root("threads.json", &[]).0, resident);
    // A fault on the way is answered by smaller groups of challenges or by streaming, and the
    // sketches stay the same.
    let drill = ["--drill", "out_of_memory:count=1", "--forbid", "reclaim"];
    assert_eq!(root("split.json", &drill), (resident.clone(), "resident".into()));
    let no_split = [&drill[..], &["--forbid", "split"]].concat();
    assert_eq!(root("drill.json", &no_split), (resident, "streamed".into()));
}

/// What was run is written down, and `verify` runs it so again.
#[test]
fn quantised_weights_and_gguf_files_have_fingerprints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q4.json");
    let model = fixture("llama-tiny");
    fingerprint(&model, &file, &["--weights", "q4"]);
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["run"]["weights"], "q4");
    surefoot("verify").arg(&file).arg("--model").arg(&model).assert().code(0);
    // The exact weights are another model.
    surefoot("compare").arg(&file).arg(&model).assert().code(1);
    surefoot("compare").arg(&file).arg(&model).args(["--weights", "q4"]).assert().code(0);

    let gguf = model.join("../../gguf/llama-tiny.Q8_0.gguf");
    let file = folder.path().join("gguf.json");
    fingerprint(&gguf, &file, &[]);
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["model"]["dtypes"], serde_json::json!(["F32", "Q8_0"]));
    assert_eq!(written["model"]["files"][0]["name"], "model.gguf");
    surefoot("compare").arg(&file).arg(&gguf).assert().code(0);
}

#[test]
fn own_prompts_are_challenges_too() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.txt");
    std::fs::write(&prompts, "The quick brown fox\n\nHello, world\nx\n").unwrap();
    let out = folder.path().join("out.json");
    let document = json(
        surefoot("fingerprint")
            .arg(fixture("llama-tiny"))
            .arg("--prompts")
            .arg(&prompts)
            .args(["--json", "--out"])
            .arg(&out)
            .assert()
            .success(),
    );
    assert_eq!(document["challenges"], 3);
    surefoot("compare").arg(&out).arg(fixture("llama-tiny")).assert().code(4);
}

#[test]
fn wrong_input_is_named_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.json");
    let refused = |options: &[&str], words: &str| {
        surefoot("fingerprint")
            .arg(fixture("llama-tiny"))
            .arg("--out")
            .arg(&out)
            .args(options)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(words.to_owned()));
        assert!(!out.exists());
    };
    refused(&["--bits", "5000"], "power of two");
    refused(&["--challenges", "0"], "challenges");
    refused(&["--challenges", "100000"], "challenges");
    refused(&["--key-file", "/nowhere"], "can't be read");
    refused(&["--sign", "/nowhere"], "can't be read");
    refused(&["--prompts", "/nowhere"], "can't be read");
    refused(&["--memory", "4MiB"], "would be needed");
    let key = folder.path().join("key");
    std::fs::write(&key, "not a key").unwrap();
    refused(&["--key-file", key.to_str().unwrap()], "holds no key");
    surefoot("fingerprint")
        .arg(fixture("nothing"))
        .arg("--out")
        .arg(&out)
        .assert()
        .code(2)
        .stderr(contains("doesn't exist"));
    surefoot("fingerprint")
        .arg(fixture("llama-tiny"))
        .args(["--out", "/nowhere/at/all.json"])
        .assert()
        .code(2)
        .stderr(contains("can't be written").and(contains("/nowhere/at/all.json")));
}
