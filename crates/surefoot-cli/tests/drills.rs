//! `--drill`, and the other options of recovery, as users type them.

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

fn forward(folder: &TempDir, options: &[&str]) -> Command {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures");
    let mut command = Command::cargo_bin("surefoot").expect("the program is built");
    command.arg("forward").arg(fixtures.join("gpt2-tiny")).args(["--tokens", "1,2,3"]);
    command.args(options).arg("--out").arg(folder.path().join("out.safetensors"));
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn a_drill_that_struck_ends_with_0_and_one_that_never_did_with_2() {
    let folder = folder();
    forward(&folder, &["--drill", "out_of_memory:count=1"])
        .assert()
        .code(0)
        .stderr(contains("never struck").not());
    for idle in ["out_of_memory:op=no such operation", "out_of_memory:step=99"] {
        forward(&folder, &["-q", "--drill", idle])
            .assert()
            .code(2)
            .stderr(contains("warning: the drill out_of_memory:").and(contains("never struck")));
    }
}

#[test]
fn several_drills_can_be_given_and_each_is_reported_alone() {
    let folder = folder();
    let journal = folder.path().join("run.jsonl");
    let drills = ["--drill", "out_of_memory:count=1", "--drill", "numeric:op=nothing"];
    forward(&folder, &drills)
        .arg("--journal")
        .arg(&journal)
        .assert()
        .code(2)
        .stderr(contains("numeric:").and(contains("drill out_of_memory").not()));
    let events = std::fs::read_to_string(journal).expect("a journal");
    assert!(events.contains("out_of_memory"), "{events}");
}

#[test]
fn a_drill_that_can_not_be_parsed_names_its_mistake_and_help_lists_the_kinds() {
    let folder = folder();
    for (drill, mistake) in [("oom", "'oom'"), ("numeric:when=3", "'when'")] {
        forward(&folder, &["--drill", drill]).assert().code(2).stderr(contains(mistake));
    }
    let help = Command::cargo_bin("surefoot").expect("it").args(["forward", "--help"]).output();
    let help = String::from_utf8(help.expect("it runs").stdout).expect("UTF-8");
    for kind in surefoot::FaultKind::ALL {
        assert!(help.contains(kind.as_str()), "{kind} is not in --help");
    }
    assert!(help.contains("decode") && help.contains("train step"), "{help}");
}

/// A fault that recovery could not survive lists what was tried on one line.
#[test]
fn what_recovery_tried_is_one_line() {
    let folder = folder();
    let options = ["--drill", "out_of_memory:count=99", "--forbid", "next_device"];
    let output = forward(&folder, &options).assert().code(3).get_output().stderr.clone();
    let text = String::from_utf8(output).expect("UTF-8");
    let tried: Vec<&str> = text.lines().filter(|line| line.contains("tries: ")).collect();
    assert_eq!(tried.len(), 1, "{text}");
    assert!(tried[0].contains("because: after ") && tried[0].contains("reclaim"), "{text}");
    assert!(!text.contains("before that"), "{text}");
    assert!(!text.contains("shm-size") && !text.contains("num_workers"), "{text}");
}

#[test]
fn an_amount_of_memory_that_no_machine_has_is_called_too_large() {
    let folder = folder();
    forward(&folder, &["--memory", "99999999999GiB"])
        .assert()
        .code(2)
        .stderr(contains("99999999999GiB").and(contains("more memory than")));
    forward(&folder, &["--memory", "much"]).assert().code(2).stderr(contains("'much'"));
}

#[cfg(not(feature = "gpu"))]
#[test]
fn a_device_of_another_build_in_a_list_is_a_note_and_the_next_one_is_used() {
    let folder = folder();
    forward(&folder, &["--device", "gpu,cpu"])
        .assert()
        .code(0)
        .stderr(contains("note: gpu is left out"));
    forward(&folder, &["-q", "--device", "gpu,cpu"])
        .assert()
        .code(0)
        .stderr(contains("left out").not());
    forward(&folder, &["--device", "gpu"]).assert().code(2).stderr(contains("--features gpu"));
}
