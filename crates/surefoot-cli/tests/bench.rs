//! `surefoot bench` as a person or a machine uses it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::PathBuf;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use tempfile::TempDir;

const SMALL: &str = "\
data: {kind: digits}
model: {kind: mlp, hidden: [32]}
batch_size: 64
epochs: 1
";

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.args(["bench", "--quick", "--device", "cpu"]).args(arguments);
    command
}

/// A folder with a configuration.
fn small() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("small.yaml");
    fs::write(&config, SMALL).unwrap();
    (folder, config)
}

fn json(arguments: &[&str]) -> Value {
    let output = bench(&[arguments, &["--json", "-q"]].concat()).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// The same report with every time multiplied.
fn scaled(report: &Value, factor: f64) -> String {
    let mut report = report.clone();
    for result in report["results"].as_array_mut().unwrap() {
        for name in ["median_ns", "p95_ns"] {
            result[name] = (result[name].as_f64().unwrap() * factor).into();
        }
        for time in result["times_ns"].as_array_mut().unwrap() {
            *time = (time.as_f64().unwrap() * factor).into();
        }
    }
    report.to_string()
}

#[test]
fn every_workload_is_measured_or_says_why_not() {
    let report = json(&["--precision", "fp32"]);
    let names: Vec<_> =
        report["verdicts"].as_array().unwrap().iter().map(|v| &v["workload"]).collect();
    let expected = [
        "matmul",
        "convolution",
        "attention",
        "mlp training step",
        "cnn training step",
        "decode step",
        "copy to device",
        "copy to host",
    ];
    assert_eq!(names, expected);
    for result in report["results"].as_array().unwrap() {
        if result["status"] == "skipped" {
            assert!(result["why"].as_str().unwrap().contains("nothing is copied"));
            continue;
        }
        assert_eq!(result["status"], "measured", "{result}");
        let (low, median, high) = (
            result["interval"]["low"].as_f64().unwrap(),
            result["median_ns"].as_f64().unwrap(),
            result["interval"]["high"].as_f64().unwrap(),
        );
        assert!(0.0 < low && low <= median && median <= high, "{result}");
        assert!(result["throughput"]["value"].as_f64().unwrap() > 0.0);
        assert!(result["warm_up"]["first_ns"].as_f64().unwrap() > 0.0);
        let share = result["share_of_peak"].as_f64().unwrap();
        assert!(share > 0.0 && share <= 1.0, "{result}");
        assert_eq!(result["speed_to_cpu"]["value"], 1.0);
    }
}

#[test]
fn a_training_configuration_is_measured_in_every_precision_with_a_verdict_in_words() {
    let (folder, config) = small();
    let page = folder.path().join("bench.html");
    bench(&["--workload", config.to_str().unwrap(), "--html", page.to_str().unwrap()])
        .assert()
        .success()
        .stdout(
            contains("small.yaml: 2410 parameters, 64 samples a step")
                .and(contains("cpu fp32"))
                .and(contains("cpu bf16"))
                .and(contains("95 % interval"))
                .and(contains("samples/s"))
                .and(contains("fp16 isn't worth it on cpu").or(contains("too noisy to say"))),
        )
        .stderr(contains("small.yaml (1 of 1)").and(contains("wrote the page")));
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("data-page=\"bench\"") && html.contains("\"surefoot_bench\":1"));
}

#[test]
fn a_comparison_ends_with_1_only_if_something_got_slower_on_this_machine() {
    let (folder, config) = small();
    let work = ["--precision", "fp32", "--workload", config.to_str().unwrap()];
    let report = json(&work);
    let old = folder.path().join("old.json");
    let against = |text: String| {
        fs::write(&old, text).unwrap();
        bench(&[&work[..], &["--compare", old.to_str().unwrap()]].concat()).assert()
    };
    against(scaled(&report, 0.05)).code(1).stdout(contains("slower     small.yaml on cpu in fp32"));
    against(scaled(&report, 20.0)).code(0).stdout(contains("faster     small.yaml"));
    let mut elsewhere = report.clone();
    elsewhere["machine"]["cores"] = 999.into();
    against(scaled(&elsewhere, 0.05))
        .code(0)
        .stderr(contains("from another machine").and(contains("cores: 999 then")));
}

#[test]
fn what_is_wrong_is_found_before_anything_is_measured() {
    let (folder, config) = small();
    let bad = folder.path().join("bad.yaml");
    fs::write(&bad, "data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 1\nspeed: high\n").unwrap();
    let not_json = config.to_str().unwrap();
    let nowhere = folder.path().join("no/such/folder.html");
    let cases: [(&[&str], &str); 6] = [
        (&["--compare", "/no/such/file.json"], "can't be compared with"),
        (&["--compare", not_json], "`surefoot bench --json` wrote"),
        (&["--workload", bad.to_str().unwrap()], "bad.yaml:4"),
        (&["--workload", "/no/such/config.yaml"], "can't be measured"),
        (&["--precision", "int8"], "the precisions are fp32, fp16 and bf16"),
        (&["--html", nowhere.to_str().unwrap()], "can't be written"),
    ];
    for (arguments, said) in cases {
        let started = std::time::Instant::now();
        bench(arguments).assert().code(2).stdout("").stderr(contains(said));
        assert!(started.elapsed().as_secs() < 2, "{arguments:?} was measured first");
    }
}
