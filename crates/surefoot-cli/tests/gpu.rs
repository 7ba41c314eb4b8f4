//! The program on a GPU, and where one should be but isn't.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![cfg(feature = "gpu")]

use std::path::Path;
use std::process::Command as Shell;

use assert_cmd::Command;
use predicates::prelude::*;
use testkit::model_folders;

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "serve/served.rs"]
mod served;

fn surefoot() -> Command {
    Command::cargo_bin("surefoot").expect("the program is built")
}

#[test]
fn devices_lists_the_gpu() {
    if testkit::gpu().is_none() {
        return;
    }
    surefoot().arg("devices").assert().success().stdout(predicate::str::contains("\ngpu  "));
}

#[test]
fn doctor_finds_the_gpu_healthy() {
    if testkit::gpu().is_none() {
        return;
    }
    surefoot()
        .args(["doctor", "--device", "gpu"])
        .assert()
        .success()
        .stdout(predicate::str::contains("gpu is healthy"));
}

#[test]
fn a_gpu_beyond_the_last_is_not_available_and_says_which_there_are() {
    if testkit::gpu().is_none() {
        return;
    }
    surefoot().args(["doctor", "--device", "gpu:7"]).assert().code(1).stdout(
        predicate::str::contains("gpu:7 is not available")
            .and(predicate::str::contains("there is one such device")),
    );
}

#[test]
fn without_a_driver_the_gpu_is_not_available_and_the_cpu_is() {
    surefoot()
        .arg("devices")
        .env("VK_DRIVER_FILES", "/nonexistent.json")
        .env("VK_ICD_FILENAMES", "/nonexistent.json")
        .assert()
        .success()
        .stdout(
            predicate::str::contains("not available, because")
                .and(predicate::str::contains("fp32")),
        );
}

#[test]
fn without_a_loader_the_gpu_is_not_available_and_the_cpu_is() {
    let dir = tempfile::tempdir().unwrap();
    // A file that is no library stands before the real one.
    std::fs::write(dir.path().join("libvulkan.so.1"), "not a library").unwrap();
    std::fs::write(dir.path().join("libvulkan.so"), "not a library").unwrap();
    surefoot().arg("devices").env("LD_LIBRARY_PATH", dir.path()).assert().success().stdout(
        predicate::str::contains("not available, because").and(predicate::str::contains("fp32")),
    );
}

/// Builds a driver that crashes when it is loaded.
fn crashing_driver(dir: &Path) -> std::path::PathBuf {
    let source = dir.join("driver.c");
    let library = dir.join("libcrash.so");
    std::fs::write(
        &source,
        "__attribute__((constructor)) static void crash(void) { *(volatile int *)0 = 1; }\n",
    )
    .unwrap();
    let built =
        Shell::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("a C compiler").success());
    let manifest = dir.join("crash.json");
    std::fs::write(
        &manifest,
        format!(
            r#"{{"file_format_version":"1.0.0","ICD":{{"library_path":"{}","api_version":"1.3.0"}}}}"#,
            library.display()
        ),
    )
    .unwrap();
    manifest
}

#[test]
fn a_driver_that_crashes_costs_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = crashing_driver(dir.path());
    surefoot()
        .arg("devices")
        .env("VK_DRIVER_FILES", &manifest)
        .env("VK_ICD_FILENAMES", &manifest)
        .assert()
        .success()
        .stdout(predicate::str::contains("SIGSEGV").and(predicate::str::contains("fp32")));
}

#[test]
fn auto_does_not_choose_a_gpu_that_is_only_imitated() {
    let Some(gpu) = testkit::gpu() else { return };
    let footing = surefoot::Footing::builder().build().unwrap();
    let chosen = footing.device().unwrap();
    if gpu.info.kind == surefoot::device::DeviceKind::SoftwareGpu {
        assert_eq!(chosen.name().to_string(), "cpu");
        assert!(footing.reason().contains("computes on the CPU"), "{}", footing.reason());
    } else {
        assert_eq!(chosen.name(), gpu.name());
    }
}

/// A forward of `llama-tiny` on the GPU.
fn forward_on_gpu(arguments: &[&str]) -> assert_cmd::assert::Assert {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures");
    let out = tempfile::tempdir().unwrap();
    surefoot()
        .arg("forward")
        .arg(fixtures.join("llama-tiny"))
        .args(["--tokens", "1,2,3", "--device", "gpu", "--json", "--out"])
        .arg(out.path().join("o.safetensors"))
        .args(arguments)
        .assert()
}

#[test]
fn a_block_that_the_gpu_cannot_run_runs_on_the_cpu_and_that_is_said() {
    if testkit::gpu().is_none() {
        return;
    }
    let drill = ["--drill", "unsupported_op:op=block 1,device=gpu,count=9"];
    forward_on_gpu(&drill)
        .success()
        .stderr(predicate::str::contains(
            "block 1 ran on the CPU, because gpu could not run it: unsupported_op",
        ))
        .stdout(predicate::str::contains(r#""block 1""#));
    let forbidden = [&drill[..], &["--forbid", "cpu_segment", "--no-fallback"]].concat();
    forward_on_gpu(&forbidden).code(3).stderr(predicate::str::contains("unsupported_op"));
    forward_on_gpu(&[]).success().stdout(predicate::str::contains(r#""on_cpu": []"#));
}

#[test]
fn a_server_whose_gpu_is_lost_goes_on_elsewhere_with_what_it_has() {
    if testkit::gpu().is_none() {
        return;
    }
    let model = served::fixture("gpt2-tiny");
    let expected: Vec<String> = ["The tensor", "a"]
        .iter()
        .map(|prompt| {
            let alone =
                served::generated(&model, prompt, &["--max-tokens", "60", "--device", "cpu"]);
            alone["text"].as_str().unwrap().to_owned()
        })
        .collect();
    let drill = "device_lost:op=embed,device=gpu,step=1,count=1";
    let server = served::Server::start(
        &model,
        // Few sizes to warm up for: lavapipe compiles slowly.
        &["--device", "gpu", "--drill", drill, "--max-sequences", "2", "--max-texts", "2"],
    );
    assert_eq!(server.get("/health").good()["device"], "gpu");
    let vector = server.post("/v1/embeddings", serde_json::json!({"input": "a b"})).good();
    std::thread::scope(|scope| {
        for (prompt, expected) in ["The tensor", "a"].iter().zip(&expected) {
            let server = &server;
            scope.spawn(move || {
                let body =
                    serde_json::json!({"prompt": prompt, "max_tokens": 60, "temperature": 0});
                assert_eq!(server.complete(body), [expected.as_str()]);
            });
        }
        server.wait_for("surefoot_batch_size_count{engine=\"decode\"}", 2.0);
        let moved = server.post("/v1/embeddings", serde_json::json!({"input": "a b"})).good();
        let numbers = |answer: &serde_json::Value| -> Vec<f64> {
            let embedding = answer["data"][0]["embedding"].as_array().unwrap().clone();
            embedding.iter().map(|number| number.as_f64().unwrap()).collect()
        };
        for (a, b) in numbers(&vector).iter().zip(numbers(&moved)) {
            assert!((a - b).abs() < 1e-4, "{a} on the GPU, {b} on the processor");
        }
    });
    assert_eq!(server.get("/health").good()["device"], "cpu");
    assert_eq!(server.metric("surefoot_faults_total{kind=\"device_lost\"}"), 1.0);
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 0.0);
}

#[test]
fn a_model_that_is_laid_over_the_gpu_and_the_cpu_is_planned_run_and_survives_losing_either() {
    if testkit::gpu().is_none() {
        return;
    }
    let model = served::fixture("gpt2-tiny");
    let json = |assert: assert_cmd::assert::Assert| -> serde_json::Value {
        serde_json::from_slice(&assert.get_output().stdout).unwrap()
    };
    let plan = |devices: &str| {
        surefoot().arg("plan").arg(&model).args(["--device", devices, "--json"]).assert()
    };
    let shares = json(plan("gpu=1+cpu=2").success())["device_map"].clone();
    assert_eq!((&shares[0]["device"], &shares[0]["blocks"]), (&"gpu".into(), &1.into()));
    assert_eq!((&shares[1]["device"], &shares[1]["head"]), (&"cpu".into(), &true.into()));
    // The software GPU has no memory of its own to add, and is slower.
    let chosen = json(plan("gpu+cpu").success())["device_map"].clone();
    assert_eq!(chosen.as_array().unwrap().len(), 1, "{chosen}");
    let expected = served::generated(&model, "The tensor", &["--device", "cpu"]);
    let lost = |device: &str, part: &str| {
        format!("device_lost:op={part},device={device},at=during,step=3")
    };
    for drill in [None, Some(lost("gpu", "block 0")), Some(lost("cpu", "block 1"))] {
        let mut arguments = vec!["--device", "gpu=1+cpu=2"];
        arguments.extend(drill.iter().flat_map(|drill| ["--drill", drill.as_str()]));
        let got = served::generated(&model, "The tensor", &arguments);
        assert_eq!(got["text"], expected["text"], "{drill:?}");
    }
    surefoot()
        .arg("plan")
        .arg(&model)
        .args(["--device", "gpu:0+gpu:1"])
        .assert()
        .code(3)
        .stderr(predicate::str::contains("gpu:1 is not available"))
        .stderr(predicate::str::contains("there is one such device, gpu"));
    surefoot()
        .arg("plan")
        .arg(&model)
        .args(["--device", "gpu:0,gpu:1"])
        .assert()
        .success()
        .stderr(predicate::str::contains("gpu:1 is left out: there is one such device, gpu"));
}

#[test]
fn a_server_lays_a_model_over_the_gpu_and_the_cpu_and_goes_on_when_the_gpu_is_lost() {
    if testkit::gpu().is_none() {
        return;
    }
    let model = served::fixture("gpt2-tiny");
    let expected = served::generated(&model, "a", &["--max-tokens", "40", "--device", "cpu"]);
    // Counted from the first pass on, be it of the warm-up or of the first answer, which takes 40.
    let drill = "device_lost:op=block 0,device=gpu,step=30,count=1";
    let limits = ["--max-sequences", "2", "--max-texts", "2", "--drill", drill];
    let devices = [&["--device", "gpu=1+cpu=2"][..], &limits].concat();
    let server = served::Server::start(&model, &devices);
    for _ in 0..2 {
        let body = serde_json::json!({"prompt": "a", "max_tokens": 40, "temperature": 0});
        assert_eq!(server.complete(body), [expected["text"].as_str().unwrap()]);
    }
    assert!(server.metric("surefoot_faults_total{kind=\"device_lost\"}") >= 1.0);
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 0.0);
    assert_eq!(server.get("/health").good()["device"], "cpu");
}

/// What a process holds in all: its own memory, and the GPU's pool where that is not part of it.
fn held(document: &serde_json::Value, gpu: &surefoot::device::OpenDevice) -> u64 {
    let bytes = |key: &str| document[key].as_u64().unwrap_or(0);
    let pool = bytes("device_peak_bytes");
    assert!(pool > 0, "the pool was not measured");
    bytes("peak_bytes") + if gpu.info.unified_memory { 0 } else { pool }
}

/// The promise on a GPU: its pool and the process together stay within the budget. lavapipe's
/// pool is memory of the process, so there the resident set is all of it.
#[test]
fn a_budget_holds_on_the_gpu_with_weights_that_stream() {
    let Some(gpu) = testkit::gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    model_folders::llama(folder.path(), 60 << 20, model_folders::FolderDtype::F32);
    let run = |command: &str, options: &[&str]| -> serde_json::Value {
        let out = folder.path().join("o.safetensors");
        let output = surefoot()
            .arg(command)
            .arg(folder.path())
            .args(["--device", "gpu", "--json"])
            .args(options)
            .args(if command == "forward" { &["--tokens", "1,2", "--out"][..] } else { &[] })
            .args((command == "forward").then_some(out))
            .assert()
            .success();
        serde_json::from_slice(&output.get_output().stdout).unwrap()
    };
    let plan = || run("plan", &["--prompt-tokens", "2", "--max-tokens", "0"]);
    // Without this the baseline of the plan was once 400 MiB, more than that of the process it is
    // compared with: probably the driver's first compilation of shaders, which was not confirmed.
    plan();
    let planned = plan();
    let bytes = |key: &str| planned[key].as_u64().unwrap();
    for share in [50, 10] {
        let (least, most) = (bytes("least_bytes"), bytes("all_resident_bytes"));
        // The process may be larger by a step of what it begins with than the planner's was.
        let budget = least + (most - least) * share / 100 + (8 << 20);
        let done = run("forward", &["--memory", &budget.to_string()]);
        assert_ne!(done["mode"], "resident", "{share} %");
        let held = held(&done, &gpu);
        assert!(held <= budget, "{held} of {budget} bytes, {share} %: {done}");
        // Of that the pool takes no more than what is not the process's own, and the pages that
        // it has before a model comes, which the plan counts with the driver.
        let pool = done["device_peak_bytes"].as_u64().unwrap();
        let planned = done["planned_peak_bytes"].as_u64().unwrap() - bytes("baseline_bytes");
        assert!(pool <= planned + (16 << 20), "{pool} of {planned} bytes, {share} %: {done}");
    }
}

/// The same weights on another device, with and without its noise in the calibration.
#[test]
fn a_model_on_the_gpu_is_the_one_on_the_cpu() {
    if testkit::gpu().is_none() {
        return;
    }
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/llama-tiny");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama.json");
    let tokens = ["--tokens", "8", "--challenges", "20"];
    surefoot()
        .args(["fingerprint", "--device", "cpu", "--out"])
        .arg(&file)
        .arg(&model)
        .args(tokens)
        .assert()
        .success();
    let compare = |allowed: &str| {
        let mut command = surefoot();
        command.arg("compare").arg(&file).arg(&model).args(["--device", "gpu", "--no-fallback"]);
        command.assert().code(0).stdout(
            predicate::str::contains("SAME").and(predicate::str::contains(allowed.to_owned())),
        );
    };
    compare("rounding to bf16");
    surefoot()
        .args(["fingerprint", "--device", "cpu", "--calibrate-on", "gpu", "--json", "--out"])
        .arg(&file)
        .arg(&model)
        .args(tokens)
        .assert()
        .success()
        .stdout(predicate::str::contains("on gpu"));
    compare("same precision");
    // A reference from the GPU, which may not compute in bf16: its rounding is learned all the same.
    surefoot()
        .args(["fingerprint", "--device", "gpu", "--no-fallback", "--out"])
        .arg(&file)
        .arg(&model)
        .args(tokens)
        .assert()
        .success();
    surefoot()
        .arg("compare")
        .arg(&file)
        .arg(&model)
        .args(["--device", "cpu", "--precision", "bf16"])
        .assert()
        .code(0)
        .stdout(predicate::str::contains("SAME"));
}
