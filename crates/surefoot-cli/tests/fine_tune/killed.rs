//! Fine-tuning that is killed at any moment goes on to the same bits: adapters, whole models and heads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::{good, model};

const STEPS: u64 = 30;

/// Writes data and a configuration in which every step is kept. LoRA has dropout, so that its random numbers have to come
/// back too.
fn prepare(folder: &Path, tune: &str) {
    let line = |at| {
        let (prompt, completion) = (format!("item {at}"), format!(" is {}", at % 3));
        json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
    };
    fs::write(folder.join("data.jsonl"), (0..20).map(line).collect::<String>()).unwrap();
    let mut settings = json!({"kind": "pretrained", "path": model(), "tune": tune});
    if tune == "lora" {
        settings["rank"] = json!(2);
        settings["dropout"] = json!(0.1);
    }
    let config = json!({
        "data": {"kind": "jsonl", "path": "data.jsonl", "length": 32},
        "model": settings, "batch_size": 4, "steps": STEPS, "optimizer": {"lr": 0.01},
        "checkpoint": {"every": 1, "keep": 3},
    });
    fs::write(folder.join("run.yaml"), config.to_string()).unwrap();
}

/// The checkpoints of a run, the earliest first.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    found.sort();
    found
}

/// Files that a process left half written.
fn half_written(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "tmp"))
        .collect()
}

/// The tensors of a checkpoint as bytes: weights and the optimizer's moments.
fn tensors(file: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(file).unwrap();
    let read = SafeTensors::deserialize(&bytes)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut all: Vec<(String, Vec<u8>)> =
        read.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
    all.sort();
    assert!(!all.is_empty());
    all
}

fn start(folder: &Path) -> Child {
    let run = folder.join("runs/run");
    let resume: &[&str] = if checkpoints(&run).is_empty() { &[] } else { &["--resume"] };
    Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .current_dir(folder)
        .args(["train", "run.yaml", "-q"])
        .args(resume)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a run again and again, each time when `is_time`, and lets it end. Everything must be as in a run that nobody killed.
fn killed(tune: &str, rounds: u64, is_time: impl Fn(u64, &Path, Duration, Duration) -> bool) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder, tune);
    let begun = Instant::now();
    let whole = good(folder, &["train", "run.yaml", "--json", "--folder", "whole"]);
    let whole: Value = serde_json::from_str(whole.lines().last().unwrap()).unwrap();
    let takes = begun.elapsed();
    let run = folder.join("runs/run");
    for round in 0..rounds {
        let mut child = start(folder);
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() && !is_time(round, &run, begun.elapsed(), takes) {
            std::thread::sleep(Duration::from_micros(200));
        }
        // SIGKILL.
        let _may_have_ended = child.kill();
        child.wait().unwrap();
        for file in checkpoints(&run) {
            tensors(&file);
        }
    }
    // What a process leaves that dies between writing a checkpoint and renaming it.
    if let Some(last) = checkpoints(&run).last() {
        let bytes = fs::read(last).unwrap();
        fs::write(run.join(".step-killed.tmp"), &bytes).unwrap();
        fs::write(run.join(".step-early.tmp"), &bytes[..bytes.len() / 2]).unwrap();
    }
    let resume: &[&str] = if checkpoints(&run).is_empty() { &[] } else { &["--resume"] };
    let end = good(folder, &[&["train", "run.yaml", "--json"], resume].concat());
    let end: Value = serde_json::from_str(end.lines().last().unwrap()).unwrap();
    assert_eq!(end["steps"], STEPS);
    assert_eq!(end["test_loss"], whole["test_loss"], "{tune}");
    let last = |report: &Value| folder.join(report["checkpoint"].as_str().unwrap());
    assert!(tensors(&last(&end)) == tensors(&last(&whole)), "{tune}: the same bits");
    assert_eq!(half_written(&run), Vec::<PathBuf>::new(), "what was half written is gone");
    if tune == "lora" {
        let adapter =
            |run: &str| fs::read(folder.join(run).join("adapter/adapter_model.safetensors"));
        assert!(adapter("runs/run").unwrap() == adapter("whole").unwrap(), "the same adapter");
    }
}

/// Moments that are spread over the time that a whole run takes, other ones in each round.
fn at_a_random_moment(round: u64, _: &Path, elapsed: Duration, takes: Duration) -> bool {
    let share = fastrand::Rng::with_seed(round + 17).f64();
    elapsed >= takes.mul_f64(share)
}

#[test]
fn an_adapter_that_is_killed_at_any_moment_goes_on_to_the_same_bits() {
    killed("lora", 10, at_a_random_moment);
}

#[test]
fn a_whole_model_that_is_killed_at_any_moment_goes_on_to_the_same_bits() {
    killed("full", 6, at_a_random_moment);
}

#[test]
fn a_head_that_is_killed_at_any_moment_goes_on_to_the_same_bits() {
    killed("head", 6, at_a_random_moment);
}

#[test]
fn a_kill_while_a_checkpoint_is_written_costs_nothing() {
    killed("lora", 8, |_, run, _, _| !half_written(run).is_empty());
}
