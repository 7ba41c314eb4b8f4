//! `--shard` and `surefoot merge`: parts made apart give what one machine gives, and parts that do not
//! belong together are refused by name.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod changed;

use std::fs;
use std::path::{Path, PathBuf};

use changed::{fixture, json, surefoot};
use predicates::prelude::*;
use predicates::str::contains;

/// Makes the parts of a fingerprint of 7 challenges.
fn parts(folder: &Path, model: &str, count: usize, more: &[&str]) -> Vec<PathBuf> {
    let part = |index: usize| {
        let out = folder.join(format!("{model}-{index}-of-{count}{}.json", more.concat()));
        surefoot("fingerprint")
            .arg(fixture(model))
            .args(["-q", "--challenges", "7", "--shard", &format!("{index}/{count}"), "--out"])
            .arg(&out)
            .args(more)
            .assert()
            .success();
        out
    };
    (1..=count).map(part).collect()
}

fn merge(parts: &[PathBuf], out: &Path) -> assert_cmd::assert::Assert {
    surefoot("merge").args(parts).arg("--out").arg(out).assert()
}

#[test]
fn merged_parts_are_the_file_that_one_machine_writes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Of 7 challenges: a batch of 4 and one of 3, in every number of parts.
    for (model, counts) in [("llama-tiny", &[1, 2, 3, 4, 5, 6, 7][..]), ("bert-tiny", &[2, 5])] {
        let whole = folder.join(format!("{model}.json"));
        surefoot("fingerprint")
            .arg(fixture(model))
            .args(["-q", "--challenges", "7", "--out"])
            .arg(&whole)
            .assert()
            .success();
        for count in counts {
            let mut parts = parts(folder, model, *count, &[]);
            parts.reverse();
            let out = folder.join("merged.json");
            merge(&parts, &out).success().stdout(contains("fingerprint of 7 challenges"));
            let (one, other) = (fs::read(&whole).unwrap(), fs::read(&out).unwrap());
            assert!(one == other, "{model} in {count} parts is another file");
        }
    }
}

#[test]
fn merged_comparisons_are_the_file_that_one_machine_writes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let key = folder.join("key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    let changed = folder.join("changed");
    let tensor = "model.layers.1.mlp.down_proj.weight";
    changed::copy(&fixture("llama-tiny"), &changed, tensor, |number| number * 1.05);
    let compare = |out: &Path, more: &[&str]| {
        let mut command = surefoot("compare");
        command.arg(fixture("llama-tiny")).arg(&changed).arg("--key-file").arg(&key);
        command.args(["-q", "--challenges", "9", "--out"]).arg(out).args(more).assert()
    };
    let whole = folder.join("whole.json");
    compare(&whole, &[]).code(1).stdout(contains("DIFFERENT"));
    for count in [2, 4, 9] {
        let part = |index: usize| {
            let out = folder.join(format!("part-{index}.json"));
            compare(&out, &["--shard", &format!("{index}/{count}")]).success();
            out
        };
        let out = folder.join("merged.json");
        let parts: Vec<PathBuf> = (1..=count).map(part).collect();
        merge(&parts, &out).code(1).stdout(contains("DIFFERENT"));
        let (one, other) = (fs::read(&whole).unwrap(), fs::read(&out).unwrap());
        assert!(one == other, "a comparison in {count} parts is another file");
    }
}

#[test]
fn gaps_overlaps_and_parts_of_other_runs_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let out = folder.join("merged.json");
    let ours = parts(folder, "llama-tiny", 3, &[]);
    let refused = |parts: &[PathBuf], why: &str| {
        merge(parts, &out).code(2).stderr(contains(why));
        assert!(!out.exists(), "nothing is written");
    };
    refused(&[ours[0].clone(), ours[2].clone()], "shard 2/3 is missing");
    refused(&ours[..1], "shards 2/3, 3/3 are missing");
    let copy = folder.join("copy.json");
    fs::copy(&ours[1], &copy).unwrap();
    refused(&[&ours[..], &[copy]].concat(), "are both shard 2/3");
    let other_model = parts(folder, "gpt2-tiny", 3, &[]);
    refused(&[&ours[..2], &other_model[2..]].concat(), "gpt2-tiny-3-of-3.json are not of one run");
    let other_run = parts(folder, "llama-tiny", 3, &["--run-id", "other"]);
    refused(&[&ours[..2], &other_run[2..]].concat(), "other challenges");
    let in_two = parts(folder, "llama-tiny", 2, &[]);
    refused(&[&ours[..1], &in_two[1..]].concat(), "another number of shards");
    let damaged = folder.join("damaged.json");
    fs::write(&damaged, fs::read_to_string(&ours[1]).unwrap().replacen("llama", "lama", 1))
        .unwrap();
    refused(&[ours[0].clone(), damaged, ours[2].clone()], "damaged.json");
    refused(&[folder.join("none.json")], "none.json");
    for wrong in ["0/3", "4/3", "1", "8/8"] {
        let mut command = surefoot("fingerprint");
        command.arg(fixture("llama-tiny")).args(["--challenges", "7", "--shard", wrong]);
        command.arg("--out").arg(folder.join("x.json")).assert().code(2);
    }
}

#[test]
fn a_comparison_in_parts_has_its_verdict_when_they_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let key = folder.join("key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    let changed = folder.join("changed");
    let tensor = "model.layers.1.mlp.down_proj.weight";
    changed::copy(&fixture("llama-tiny"), &changed, tensor, |number| number * 1.05);
    for (candidate, code, verdict) in
        [(fixture("llama-tiny"), 0, "SAME"), (changed, 1, "DIFFERENT")]
    {
        let part = |index: usize| {
            let out = folder.join(format!("part-{index}.json"));
            surefoot("compare")
                .arg(fixture("llama-tiny"))
                .arg(&candidate)
                .args(["-q", "--shard", &format!("{index}/2"), "--key-file"])
                .arg(&key)
                .arg("--out")
                .arg(&out)
                .assert()
                .success();
            out
        };
        let out = folder.join(format!("{verdict}.json"));
        merge(&[part(1), part(2)], &out).code(code).stdout(contains(verdict));
        surefoot("verify").arg(&out).assert().success().stdout(contains(verdict));
    }
    surefoot("compare")
        .arg(fixture("llama-tiny"))
        .arg(fixture("llama-tiny"))
        .args(["--shard", "1/2", "--out", "x.json"])
        .assert()
        .code(2)
        .stderr(contains("--key-file"));
}

#[test]
fn a_fingerprint_is_verified_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let whole = folder.join("llama.json");
    let mut make = surefoot("fingerprint");
    make.arg(fixture("llama-tiny")).args(["-q", "--out"]).arg(&whole).assert().success();
    let part = |index: usize| {
        let out = folder.join(format!("again-{index}.json"));
        surefoot("verify")
            .arg(&whole)
            .arg("--model")
            .arg(fixture("llama-tiny"))
            .args(["-q", "--shard", &format!("{index}/4"), "--out"])
            .arg(&out)
            .assert()
            .success();
        out
    };
    let parts: Vec<PathBuf> = (1..=4).map(part).collect();
    let out = folder.join("verified.json");
    let told = json(
        surefoot("merge").args(&parts).arg("--json").arg("--out").arg(&out).assert().success(),
    );
    assert_eq!(told["verdict"], "SAME", "{told}");
    assert_eq!(told["challenges"], 32);
    assert!(predicate::path::exists().eval(&out));
}
