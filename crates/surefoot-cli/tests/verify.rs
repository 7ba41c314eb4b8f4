//! `surefoot verify` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod changed;

use changed::{copy, fingerprint, fixture, json, surefoot};
use predicates::prelude::*;
use predicates::str::contains;

#[test]
fn a_fingerprint_holds_and_challenges_can_be_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama.json");
    fingerprint(&fixture("llama-tiny"), &file, &[]);
    let verify = |options: &[&str], model: &std::path::Path| {
        surefoot("verify").arg(&file).args(options).arg("--model").arg(model).arg("--json").assert()
    };
    let found = json(verify(&[], &fixture("llama-tiny")).code(0));
    assert_eq!(found["rerun"]["comparison"]["decision"]["verdict"], "SAME");
    assert_eq!(found["rerun"]["same_files"], true);
    assert_eq!(found["rerun"]["challenges"].as_array().unwrap().len(), 20);
    verify(&["--sample", "3"], &fixture("llama-tiny")).code(4);
    let other = folder.path().join("other");
    copy(&fixture("llama-tiny"), &other, "model.layers.2.mlp.down_proj.weight", |x| x + 1e-4);
    let found = json(verify(&[], &other).code(1));
    assert_eq!(found["rerun"]["same_files"], false);
    assert_eq!(found["rerun"]["comparison"]["decision"]["first_diverging"], "block 2");
}

#[test]
fn single_leaves_are_shown_to_belong_to_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama.json");
    fingerprint(&fixture("llama-tiny"), &file, &["--challenges", "4"]);
    let leaves = ["--leaf", "3:block 1", "--leaf", "0:head"];
    let found = json(surefoot("verify").arg(&file).args(leaves).arg("--json").assert().success());
    assert_eq!(found["leaves"][0]["site"], "block 1");
    assert_eq!(found["leaves"][0]["leaves"], 24);
    assert_eq!(found["leaves"][1]["index"], 5);
    for wrong in ["9:head", "0:block 7", "0", "x:head", "0:nose"] {
        surefoot("verify").arg(&file).args(["--leaf", wrong]).assert().code(2);
    }
}

#[test]
fn signatures_are_made_checked_and_demanded() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = (folder.path().join("a.json"), folder.path().join("key"));
    let small = ["--challenges", "2"];
    let with = |option: &str| {
        surefoot("fingerprint")
            .arg(fixture("llama-tiny"))
            .args(small)
            .arg("--out")
            .arg(&file)
            .arg(option)
            .arg(&key)
            .assert()
    };
    with("--new-key").success().stderr(contains("public half"));
    with("--new-key").code(2).stderr(contains("can't be written"));
    with("--sign").success();
    let found = json(surefoot("verify").arg(&file).arg("--json").assert().success());
    let public = found["signed_by"].as_str().unwrap().to_owned();
    surefoot("verify").arg(&file).args(["--signed-by", &public]).assert().success();
    let other = "0".repeat(64);
    surefoot("verify")
        .arg(&file)
        .args(["--signed-by", &other])
        .assert()
        .code(1)
        .stdout(contains("NOT signed by").and(contains(public)));
    fingerprint(&fixture("llama-tiny"), &file, &small);
    surefoot("verify")
        .arg(&file)
        .args(["--signed-by", &other])
        .assert()
        .code(1)
        .stdout(contains("not signed"));
}

#[test]
fn a_transcript_is_computed_again_and_its_side_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (file, other) = (folder.path().join("t.json"), folder.path().join("other"));
    copy(&fixture("llama-tiny"), &other, "lm_head.weight", |x| x * 1.5);
    // With chosen sites the reference has fewer than the candidate.
    surefoot("compare")
        .arg(fixture("llama-tiny"))
        .arg(&other)
        .args(["--sites", "auto", "--out"])
        .arg(&file)
        .assert()
        .code(1);
    surefoot("verify").arg(&file).assert().code(0).stdout(contains("computed again: DIFFERENT"));
    for (model, side) in [(fixture("llama-tiny"), "reference"), (other, "candidate")] {
        let run = surefoot("verify").arg(&file).arg("--model").arg(model).arg("--json").assert();
        let found = json(run.code(0));
        assert_eq!(found["rerun"]["side"], side);
        assert_eq!(found["rerun"]["same_files"], true);
    }
}

#[test]
fn a_damaged_or_strange_file_is_exit_two_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    fingerprint(&fixture("llama-tiny"), &file, &["--challenges", "2"]);
    let text = std::fs::read_to_string(&file).unwrap();
    let refused = |contents: &str, words: &str| {
        let bad = folder.path().join("bad.json");
        std::fs::write(&bad, contents).unwrap();
        surefoot("verify")
            .arg(&bad)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(words.to_owned()).and(contains("bad.json")));
    };
    refused("", "no seal");
    refused(&text[..text.len() - 9], "cut off");
    refused(&text.replacen("\"version\": 1", "\"version\": 2", 1), "damaged");
    refused(&text.replacen("llama-tiny", "llama-Tiny", 1), "digest");
    surefoot("verify").arg("/nowhere").assert().code(2).stderr(contains("can't be read"));
}
