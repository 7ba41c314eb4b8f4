//! `surefoot train` as a person or a machine uses it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const SMALL: &str = "\
data: {kind: digits}
model: {kind: mlp, hidden: [32]}
batch_size: 64
epochs: 3
optimizer: {lr: 0.01}
";

/// A folder with a configuration in it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small.yaml"), config).unwrap();
        Self { folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.current_dir(self.folder.path()).arg("train").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The last object of a run that must succeed.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        last_object(&output.stdout)
    }

    fn checkpoints(&self, run: &str) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = fs::read_dir(self.folder.path().join("runs").join(run))
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        found.retain(|path| path.extension().is_some_and(|end| end == "safetensors"));
        found.sort();
        found
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_object(stdout: &[u8]) -> Value {
    serde_json::from_str(text(stdout).lines().last().unwrap_or_default()).unwrap()
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < limit, "{what} took too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_main_job_learns_the_digits_in_under_a_minute() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/digits.yaml");
    let place = Place::new(&fs::read_to_string(config).unwrap());
    let output = place.run(&["small.yaml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (result, progress) = (text(&output.stdout), text(&output.stderr));
    assert!(progress.contains("epoch  20  loss"), "{progress}");
    assert!(result.contains("faults          none"), "{result}");
    let accuracy = result.lines().find_map(|line| line.strip_prefix("test accuracy   ")).unwrap();
    let accuracy: f64 = accuracy.split(' ').next().unwrap().parse().unwrap();
    assert!(accuracy >= 97.0, "{result}");
    assert!(place.folder.path().join("runs/small/curves.svg").is_file());
    let page = std::fs::read_to_string(place.folder.path().join("runs/small/report.html")).unwrap();
    assert!(page.contains("no faults") && page.contains("\"epoch\":20"), "{}", page.len());
    let best = place.checkpoints("small")[0].clone();
    let tested = text(&place.run(&["--eval", best.to_str().unwrap()]).stdout);
    assert!(tested.starts_with("test accuracy 9"), "{tested}");
}

#[test]
fn the_last_object_tells_how_it_ended_and_a_checkpoint_tests_the_same() {
    let place = Place::new(SMALL);
    let output = place.run(&["small.yaml", "--json", "--workers", "2"]);
    let events: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.iter().filter(|event| event["event"] == "epoch").count(), 3);
    let loading = |name: &str| {
        let event = events.iter().find(|event| event["event"] == name).unwrap();
        (event["loading"].clone(), event["batches_in_memory"].as_u64().unwrap())
    };
    let (first, in_memory) = loading("started");
    assert_eq!((&first["workers"], &first["staging"]), (&2.into(), &false.into()));
    assert_eq!((first["prefetch"].as_u64(), in_memory), (Some(3), 4), "one that waits");
    let (paced, in_memory) = loading("loading");
    assert_eq!(paced["prefetch"].as_u64(), Some(in_memory - 1), "the one that is trained on");
    let end = events.last().unwrap();
    assert_eq!(end["steps"], 69);
    assert_eq!(end["device"], "cpu");
    assert_eq!(end["faults"], 0);
    assert!(end["seconds"].as_f64().unwrap() > 0.0);
    let checkpoint = end["checkpoint"].as_str().unwrap();
    let tested = place.run(&["--eval", checkpoint, "--json"]);
    let tested: Value = serde_json::from_slice(&tested.stdout).unwrap();
    assert_eq!(tested["test_loss"], end["test_loss"]);
    assert_eq!(tested["test_accuracy"], end["test_accuracy"]);
}

#[test]
fn a_mistake_is_shown_with_its_line_and_what_would_be_right() {
    let place = Place::new(&SMALL.replace("batch_size", "batch_sze"));
    let output = place.run(&["small.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("small.yaml:3") && error.contains("batch_sze"), "{error}");
    assert!(error.contains("did you mean 'batch_size'?"), "{error}");
    let place = Place::new(SMALL);
    for (arguments, why) in [
        (vec!["nowhere.yaml"], "nowhere.yaml"),
        (vec!["small.yaml", "--set", "model.kind=cnnn"], "did you mean 'cnn'?"),
        (vec!["small.yaml", "--set", "epochs"], "no '='"),
        (vec!["small.yaml", "--resume"], "nothing to continue from"),
        (vec!["small.yaml", "--drill", "oom"], "'oom'"),
        (vec!["--eval", "small.yaml"], "not a checkpoint"),
        (vec!["small.yaml", "--set", "data={kind: mnist, path: nope}"], "nope"),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(why), "{arguments:?}: {}", text(&output.stderr));
    }
    assert!(!place.folder.path().join("runs/small/curves.svg").exists());
}

#[test]
fn faults_are_shown_as_they_happen_and_a_stop_says_how_to_go_on() {
    let place = Place::new(SMALL);
    let expected = place.json(&["small.yaml"])["test_loss"].as_f64().unwrap();
    let drill = "out_of_memory:step=30,count=3,op=train step";
    let output = place.run(&["small.yaml", "--drill", drill]);
    let progress = text(&output.stderr);
    assert!(progress.contains("step 31: out_of_memory on cpu"), "{progress}");
    assert!(progress.contains("recovering by split on cpu in 4 parts"), "{progress}");
    assert!(text(&output.stdout).contains("faults          3: out_of_memory at step 31"));

    let output = place.run(&["small.yaml", "--drill", "device_lost:step=30,op=train step"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let error = text(&output.stderr);
    let resume = error.split("--resume=").nth(1).unwrap().lines().next().unwrap();
    let resumed = place.json(&["small.yaml", &format!("--resume={resume}")]);
    assert_eq!(resumed["resumed_from"], 30);
    assert_eq!(resumed["test_loss"].as_f64(), Some(expected));
}

#[test]
fn a_run_does_not_write_over_another() {
    let place = Place::new(SMALL);
    place.json(&["small.yaml", "--epochs", "1"]);
    let second = place.json(&["small.yaml", "--epochs", "1"]);
    assert!(second["checkpoint"].as_str().unwrap().starts_with("runs/small-2/"), "{second}");
    let resumed = place.json(&["small.yaml", "--epochs", "1", "--resume"]);
    assert_eq!(resumed["checkpoint"], second["checkpoint"]);
}

#[test]
fn a_folder_that_is_named_is_the_one_that_a_run_goes_on_in() {
    let place = Place::new(SMALL);
    let named = ["small.yaml", "--folder", "runs/here's", "--epochs"];
    place.json(&[&named[..], &["1"]].concat());
    place.json(&[&named[..], &["1"]].concat());
    assert_eq!(place.checkpoints("here's-2").len(), 1);
    let resumed = place.json(&[&named[..], &["2", "--resume"]].concat());
    assert!(resumed["checkpoint"].as_str().unwrap().starts_with("runs/here's/"), "{resumed}");
}

#[test]
fn a_rate_counts_the_samples_that_there_are() {
    let place = Place::new(SMALL);
    let large = ["small.yaml", "--epochs", "2", "--batch-size", "1000000", "--json"];
    let output = place.run(&large);
    let told = text(&output.stdout);
    let rates = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rates: Vec<f64> = rates.filter_map(|line| line["samples_per_second"].as_f64()).collect();
    assert!(!rates.is_empty() && rates.iter().all(|rate| *rate < 1e8), "{rates:?}");
}

#[test]
fn a_checkpoint_can_be_named_from_inside_its_folder() {
    let place = Place::new(SMALL);
    place.json(&["small.yaml", "--epochs", "1"]);
    let checkpoint = place.checkpoints("small").pop().unwrap();
    let resume = format!("--resume={}", checkpoint.file_name().unwrap().display());
    let mut command = place.command(&["../../small.yaml", "--epochs", "2", "--json", &resume]);
    let output = command.current_dir(checkpoint.parent().unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(last_object(&output.stdout)["resumed_from"], 23);
    assert_eq!(place.checkpoints("small").len(), 2);
}

#[test]
fn the_batch_that_fits_and_the_fastest_one_are_found() {
    let place = Place::new(SMALL);
    let output = place.run(&["small.yaml", "--find-batch", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    // All samples are few enough for any machine.
    assert_eq!(found["largest"], 1438, "{found}");
    assert!(found["fastest"].as_u64().unwrap() > 4, "{found}");
    let output = place.run(&["small.yaml", "--find-batch", "--memory", "1MiB"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let error = text(&output.stderr);
    assert!(error.contains("the budget of 1.00 MiB leaves 0 B"), "{error}");
}

/// Weights that take much more memory than their samples.
#[cfg(target_os = "linux")]
#[test]
fn a_run_stays_within_its_budget_when_it_saves_and_when_it_goes_on() {
    let place = Place::new(&SMALL.replace("[32]", "[2048, 2048]"));
    // Read or written in one piece, a checkpoint alone would take it beyond.
    let (memory, bytes) = ("205MiB", 205 << 20);
    let run = |more: &[&str]| {
        let usual = ["small.yaml", "--memory", memory, "--set", "checkpoint.every=1"];
        place.json(&[&usual, more].concat())
    };
    let first = run(&["--steps", "2"]);
    assert!(first["peak_memory"].as_u64().unwrap() <= bytes, "{}", first["peak_memory"]);
    let second = run(&["--steps", "4", "--resume"]);
    assert_eq!(second["resumed_from"], 2);
    assert!(second["peak_memory"].as_u64().unwrap() <= bytes, "{}", second["peak_memory"]);
}

#[cfg(unix)]
mod killed {
    use super::*;

    /// Long enough to be killed a hundred times; every step is kept.
    const LONG: &str = "\
data: {kind: digits}
model: {kind: mlp, hidden: [16]}
batch_size: 64
steps: 1200
checkpoint: {every: 1, keep: 2}
";

    fn kill(signal: &str, process: u32) {
        let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn undisturbed(place: &Place) -> f64 {
        let end = place.json(&["small.yaml", "--folder", "whole", "--set", "checkpoint.every=600"]);
        end["test_loss"].as_f64().unwrap()
    }

    #[test]
    fn a_hundred_kills_leave_no_unreadable_checkpoint_and_the_same_end() {
        let place = Place::new(LONG);
        let expected = undisturbed(&place);
        // How long a process lives before its first step differs from machine to machine.
        let started = Instant::now();
        place.json(&["small.yaml", "--folder", "one", "--steps", "1"]);
        let start = started.elapsed();
        let mut reached = 0;
        for round in 0..100u64 {
            let resume: &[&str] =
                if place.checkpoints("small").is_empty() { &[] } else { &["--resume"] };
            let mut child = place
                .command(&[&["small.yaml", "-q"], resume].concat())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            // Moments that differ from round to round, with all of a step's work among them.
            std::thread::sleep(start.mul_f64(0.3 + 0.02 * (round * 37 % 60) as f64));
            kill("-KILL", child.id());
            child.wait().unwrap();
            let checkpoints = place.checkpoints("small");
            for path in &checkpoints {
                let bytes = fs::read(path).unwrap();
                safetensors::SafeTensors::deserialize(&bytes)
                    .unwrap_or_else(|error| panic!("round {round}, {}: {error}", path.display()));
            }
            // What was reached is never lost again.
            let step = |path: &PathBuf| {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                name.trim_start_matches("step-").parse::<u64>().unwrap()
            };
            let now = checkpoints.iter().map(step).max().unwrap_or(0);
            assert!(now >= reached, "round {round}: {now} after {reached}");
            reached = now;
        }
        assert!(reached > 10, "the processes did not live long enough for steps: {reached}");
        let end = place.json(&["small.yaml", "--resume"]);
        assert_eq!(end["resumed_from"].as_u64(), Some(reached));
        assert_eq!(end["test_loss"].as_f64(), Some(expected));
    }

    #[test]
    fn ctrl_c_saves_and_ends_with_130_and_the_run_goes_on_to_the_same_end() {
        stop_and_go_on("-INT", &["small.yaml", "--json"]);
    }

    /// As a batch system or a container ends it.
    #[test]
    fn so_does_a_request_to_end_that_only_the_supervisor_gets() {
        stop_and_go_on("-TERM", &["small.yaml", "--json"]);
        stop_and_go_on("-TERM", &["small.yaml", "--json", "--isolate"]);
    }

    #[test]
    fn two_runs_never_share_a_folder() {
        let place = Place::new(LONG);
        // No checkpoint for a long time: the folder is taken all the same.
        let endless = ["small.yaml", "-q", "--steps", "900000", "--set", "checkpoint.every=900000"];
        let mut first = place.command(&endless).stdout(Stdio::null()).spawn().unwrap();
        let lock = place.folder.path().join("runs/small/.lock");
        wait_for("the lock", || fs::read_to_string(&lock).is_ok_and(|text| !text.is_empty()));
        let second = place.json(&["small.yaml", "--steps", "2"]);
        assert!(second["checkpoint"].as_str().unwrap().starts_with("runs/small-2/"), "{second}");
        wait_for("an epoch", || !place.checkpoints("small").is_empty());
        let latest = place.checkpoints("small").pop().unwrap();
        let resume = format!("--resume={}", latest.display());
        let output = place.run(&["small.yaml", &resume]);
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        assert!(error.contains(&format!("process {}", first.id())), "{error}");
        assert!(error.contains("--folder"), "{error}");
        kill("-KILL", first.id());
        first.wait().unwrap();
        let latest = place.checkpoints("small").pop().unwrap();
        place.json(&["small.yaml", "--steps", "1", &format!("--resume={}", latest.display())]);
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_run_with_a_checkpoint() {
        let place = Place::new(LONG);
        let mut command = place.command(&["small.yaml", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(!place.checkpoints("small").is_empty());
        // Notes that nobody reads end nothing.
        let mut command = place.command(&["small.yaml", "--epochs", "1"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_ends_with_a_checkpoint_when_its_supervisor_is_killed() {
        let place = Place::new(LONG);
        let mut parent = place
            .command(&["small.yaml", "--json", "--isolate"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the first checkpoint", || !place.checkpoints("small").is_empty());
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id()));
        let child = children.unwrap().split_whitespace().next().unwrap().to_owned();
        kill("-KILL", parent.id());
        parent.wait().unwrap();
        wait_for("the child's end", || !Path::new("/proc").join(&child).exists());
        let last = place.checkpoints("small").pop().unwrap();
        assert!(!last.ends_with("step-00001200.safetensors"), "it went on to its end");
    }

    fn stop_and_go_on(signal: &str, arguments: &[&str]) {
        let place = Place::new(LONG);
        let expected = undisturbed(&place);
        let child =
            place.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("the first checkpoint", || !place.checkpoints("small").is_empty());
        kill(signal, child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        let end = last_object(&output.stdout);
        assert_eq!(end["interrupted"], true);
        let told = text(&output.stderr);
        let command =
            told.lines().find_map(|line| line.strip_prefix("continue with: surefoot train "));
        let command: Vec<&str> = command.unwrap().split(' ').collect();
        assert_eq!(command.contains(&"--isolate"), arguments.contains(&"--isolate"), "{told}");
        let resumed = place.json(&command);
        assert_eq!(resumed["resumed_from"], end["steps"]);
        assert_eq!(resumed["test_loss"].as_f64(), Some(expected));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_isolated_run_survives_its_process() {
        let place = Place::new(LONG);
        let expected = undisturbed(&place);
        let parent = place
            .command(&["small.yaml", "--json", "--isolate"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("the first checkpoint", || !place.checkpoints("small").is_empty());
        let children = format!("/proc/{0}/task/{0}/children", parent.id());
        let child = fs::read_to_string(children).unwrap();
        kill("-KILL", child.split_whitespace().next().unwrap().parse().unwrap());
        let output = parent.wait_with_output().unwrap();
        let told = text(&output.stderr);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("the child process died and is restarted"), "{told}");
        let end = last_object(&output.stdout);
        let from = end["resumed_from"].as_u64().unwrap();
        assert!(from > 0, "{end}");
        assert_eq!(end["faults"], 1, "{end}");
        let fault = &end["fault_log"][0];
        assert_eq!((&fault["step"], &fault["recovery"]), (&(from + 1).into(), &"restart".into()));
        assert_eq!(end["steps"], 1200);
        assert_eq!(end["test_loss"].as_f64(), Some(expected));
        assert!(place.checkpoints("small-2").is_empty());
    }
}
