//! `surefoot identify` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod changed;

use changed::{copy, fingerprint, fixture, json, surefoot};
use predicates::str::contains;

#[test]
fn a_known_model_is_found_a_changed_one_is_related_and_a_strange_one_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("library");
    std::fs::create_dir(&library).unwrap();
    for name in ["llama-tiny", "gpt2-tiny", "neox-tiny"] {
        fingerprint(&fixture(name), &library.join(format!("{name}.json")), &[]);
    }
    let identify = |model: &std::path::Path| {
        surefoot("identify").arg(model).arg("--library").arg(&library).arg("--json").assert()
    };
    let found = json(identify(&fixture("llama-tiny")).code(0));
    assert_eq!(found["known"], true);
    assert_eq!(found["fingerprints"], 3);
    assert_eq!(found["matches"][0]["model"], "llama-tiny");
    assert_eq!(found["matches"][0]["relation"], "same");
    assert_eq!(found["matches"][0]["distance"], 0.0);
    assert_eq!(found["matches"][1]["relation"], "unrelated");
    let other = folder.path().join("other");
    copy(&fixture("llama-tiny"), &other, "model.layers.0.mlp.up_proj.weight", |x| x * 1.2);
    let found = json(identify(&other).code(0));
    assert_eq!(found["matches"][0]["model"], "llama-tiny");
    assert_eq!(found["matches"][0]["relation"], "related");
    let found = json(identify(&fixture("qwen2-tiny")).code(1));
    assert_eq!(found["known"], false);
    surefoot("identify")
        .arg(fixture("qwen2-tiny"))
        .arg("--library")
        .arg(&library)
        .assert()
        .code(1)
        .stdout(contains("unknown"));
}

#[test]
fn files_that_come_go_or_are_none_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path();
    let file = library.join("llama.json");
    fingerprint(&fixture("llama-tiny"), &file, &[]);
    let identify = || {
        json(surefoot("identify").arg(&file).arg("--library").arg(library).arg("--json").assert())
    };
    assert_eq!(identify()["fingerprints"], 1);
    fingerprint(&fixture("gpt2-tiny"), &library.join("gpt2.json"), &[]);
    std::fs::write(library.join("note.json"), "{}").unwrap();
    let found = identify();
    assert_eq!(found["fingerprints"], 2);
    assert_eq!(found["refused"][0]["file"], "note.json");
    std::fs::remove_file(library.join("gpt2.json")).unwrap();
    assert_eq!(identify()["fingerprints"], 1);
    // Another key: nothing to compare with.
    let other = folder.path().join("other");
    fingerprint(&fixture("llama-tiny"), &other, &["--run-id", "other"]);
    surefoot("identify")
        .arg(&other)
        .arg("--library")
        .arg(library)
        .assert()
        .code(1)
        .stdout(contains("none of them was asked the same challenges"));
}

#[test]
fn a_library_that_is_none_is_exit_two() {
    surefoot("identify")
        .arg(fixture("llama-tiny"))
        .args(["--library", "/nowhere"])
        .assert()
        .code(2)
        .stderr(contains("is not a folder"));
}
