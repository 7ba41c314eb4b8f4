//! `doctor --torch` and `bench --torch`, with a stand-in for the Python package: what is printed and how it ends. The package
//! itself is tested with real PyTorch in `python/tests`.
#![cfg(unix)]

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use serde_json::Value;

fn surefoot(package: &Path) -> Command {
    let mut command = Command::cargo_bin("surefoot").expect("the program is built");
    command.env_remove("VIRTUAL_ENV").env("NO_COLOR", "1").env("PYTHONPATH", package);
    command
}

/// A folder with a Python package `surefoot` whose modules `_doctor` and `_bench` do this.
fn package(code: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("surefoot");
    std::fs::create_dir(&package).expect("a folder for the package");
    std::fs::write(package.join("__init__.py"), "").expect("a package");
    for module in ["_doctor.py", "_bench.py"] {
        std::fs::write(package.join(module), code).expect("a module");
    }
    folder
}

const DOCTOR: &str = r#"
import json, sys
say = lambda **fields: print(json.dumps(fields), flush=True)
say(python="3.12.1", torch="2.9.0", surefoot="0.1.0", executable="/usr/bin/python3")
say(device="xpu", unavailable="this PyTorch finds none")
print("a driver's own line")
for device in sys.argv[1:] or ["cuda", "cpu"]:
    ok = device == "cpu"
    say(device=device, check={"name": "storage", "ok": True, "detail": "4 MiB", "seconds": 0.1})
    say(device=device, check={"name": "product fp32", "ok": ok, "detail": "is 3.0e-01 from the CPU's result", "seconds": 0.2})
    why = None if ok else "product fp32: is 3.0e-01 from the CPU's result"
    say(device=device, hardware="8 threads" if ok else None, usable=ok, healthy=ok, why=why, failed=[])
"#;

#[test]
fn doctor_prints_each_check_and_ends_with_1_if_a_device_is_unhealthy() {
    let folder = package(DOCTOR);
    surefoot(folder.path())
        .args(["doctor", "--torch"])
        .assert()
        .code(1)
        .stdout(
            predicate::str::contains("PyTorch 2.9.0, Python 3.12.1")
                .and(predicate::str::contains("ok   storage"))
                .and(predicate::str::contains("FAIL product fp32"))
                .and(predicate::str::contains("cuda is UNHEALTHY: product fp32"))
                .and(predicate::str::contains("cpu (8 threads) is healthy")),
        )
        .stderr(predicate::str::contains("xpu: not available"));
}

#[test]
fn doctor_tests_only_what_is_named_and_speaks_json() {
    let folder = package(DOCTOR);
    let output = surefoot(folder.path())
        .args(["doctor", "--torch", "--device", "cpu", "--json"])
        .assert()
        .code(0)
        .get_output()
        .stdout
        .clone();
    let report: Value = serde_json::from_slice(&output).expect("one JSON document");
    assert_eq!(report["healthy"], true);
    assert_eq!(report["torch"], "2.9.0");
    assert_eq!(report["devices"].as_array().unwrap().len(), 1);
    assert_eq!(report["devices"][0]["checks"][1]["name"], "product fp32");
}

#[test]
fn a_python_without_the_package_is_named_with_what_to_do() {
    let folder = package("raise ImportError('No module named torch')");
    surefoot(folder.path()).args(["doctor", "--torch"]).assert().code(2).stderr(
        predicate::str::contains("No module named torch")
            .and(predicate::str::contains("-m pip install torch surefoot")),
    );
    surefoot(folder.path()).args(["doctor", "--python", "python3"]).assert().code(2);
}

#[test]
fn bench_prints_a_table_with_what_guarding_costs() {
    let folder = package(
        r#"
import json, sys
assert sys.argv[1:] == ["--device", "cuda,cpu", "--precision", "fp32", "--quick"], sys.argv
print(json.dumps({"python": "3.12.1", "torch": "2.9.0", "surefoot": "0.1.0", "executable": "python"}))
print(json.dumps({"device": "cuda", "precision": "fp32", "left_out": "it does not compute in that"}))
print(json.dumps({"workload": "convolutions, training step", "device": "cpu", "precision": "fp32", "median_ms": 12.5, "low_ms": 12.0,
                  "high_ms": 13.0, "rate": 2560.0, "unit": "samples/s", "samples": 30, "guarded_ratio": 1.0125}))
"#,
    );
    surefoot(folder.path())
        .args(["bench", "--torch", "--quick", "--device", "cuda,cpu", "--precision", "fp32"])
        .assert()
        .code(0)
        .stdout(
            predicate::str::contains("convolutions, training step, cpu fp32")
                .and(predicate::str::contains("12.500 ms"))
                .and(predicate::str::contains("2560 samples/s"))
                .and(predicate::str::contains("1.01")),
        )
        .stderr(predicate::str::contains("cuda in fp32 is left out"));
}
