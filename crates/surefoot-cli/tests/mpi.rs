//! `surefoot train` by several processes, over a real MPI.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const CONFIG: &str = "\
data: {kind: digits}
model: {kind: mlp, hidden: [32]}
batch_size: 96
steps: 20
optimizer: {lr: 0.01}
clip_norm: 1.0
checkpoint: {every: 5}
";

/// Ranks add gradients in another order than one process does, and nothing else differs.
const TOLERANCE: f64 = 1e-4;
/// Longer than any of these jobs takes on a machine that is many times slower.
const PATIENCE: Duration = Duration::from_secs(300);

struct Place(TempDir);

impl Place {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small.yaml"), config).unwrap();
        Self(folder)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.0.path())
            .args(arguments)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
            // Ranks that share a processor must not spin while they wait.
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .stdin(Stdio::null());
        command
    }

    /// `mpirun` with these words after it, where `@` stands for `surefoot train small.yaml`.
    fn mpirun(&self, words: &str) -> Output {
        let train = format!("{} train small.yaml", env!("CARGO_BIN_EXE_surefoot"));
        let words = words.replace('@', &train);
        let words = shlex::split(&words).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.command("mpirun", &words).output().unwrap()
    }

    fn surefoot(&self, arguments: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_surefoot"), arguments)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last line of a run that must succeed.
fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}\n{}", output.status, text(&output.stderr));
    let lines = text(&output.stdout);
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

fn loss(report: &Value) -> f64 {
    report["test_loss"].as_f64().unwrap()
}

fn weights(place: &Place, report: &Value) -> Vec<u8> {
    let bytes = fs::read(place.0.path().join(report["checkpoint"].as_str().unwrap())).unwrap();
    // A safetensors file: the length of the header, the header, the numbers.
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn ranks_train_the_model_that_one_process_trains() {
    let place = Place::new(CONFIG);
    let alone = report(&place.surefoot(&["train", "small.yaml", "--json"]).output().unwrap());
    for count in [2, 4] {
        let words = format!("-n {count} @ --json");
        let first = report(&place.mpirun(&words));
        assert!((loss(&first) - loss(&alone)).abs() < TOLERANCE, "{count}: {first}\n{alone}");
        assert_eq!(first["ranks"].as_array().unwrap().len(), count);
        let second = report(&place.mpirun(&words));
        assert_eq!(loss(&first).to_bits(), loss(&second).to_bits());
        assert!(weights(&place, &first) == weights(&place, &second), "{count}");
    }
}

#[test]
fn a_fault_in_one_rank_is_recovered_there() {
    let place = Place::new(CONFIG);
    let calm = loss(&report(&place.mpirun("-n 2 @ --json")));
    for at in ["before", "during", "after"] {
        let drill = format!("--drill 'out_of_memory:step=3,op=train step,at={at}'");
        let own = format!("--json --journal {at}.jsonl --folder {at}");
        let output = place.mpirun(&format!("-n 1 @ {own} : -n 1 @ {own} {drill}"));
        let report = report(&output);
        assert!((loss(&report) - calm).abs() < TOLERANCE, "{at}: {report}");
        assert_eq!(report["fault_log"][0]["rank"], 1, "{report}");
        assert_eq!(report["ranks"][1]["faults"], 1, "{report}");
        assert!(report["ranks"][1]["peak_memory"].as_u64().unwrap() > 0, "{report}");
        // One journal and one page, of the first rank, tell of both.
        let journal = fs::read_to_string(place.0.path().join(format!("{at}.jsonl"))).unwrap();
        let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events: Vec<Value> = events.filter(|event| event["context"]["rank"] == 1).collect();
        let faults = events.iter().filter(|event| event["kind"] == "fault").count();
        assert_eq!(faults, 1, "{journal}");
        let last = events.iter().rfind(|event| event["op"] == "rank").unwrap();
        assert_eq!(last["context"]["faults"], 1, "{last}");
        assert!(last["context"]["peak_memory"].as_u64().unwrap() > 0, "{last}");
        let page = fs::read_to_string(place.0.path().join(at).join("report.html")).unwrap();
        assert!(page.contains("at step 4 of rank 1") && page.contains("1 fault"), "{at}");
    }
}

#[test]
fn a_fault_that_ends_the_run_gives_its_message_once_and_code_3() {
    let place = Place::new(CONFIG);
    let drill = "--drill 'unsupported_op:step=7,op=train step'";
    let output = place.mpirun(&format!("-n 1 @ : -n 1 @ {drill}"));
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert_eq!(errors.matches("error:").count(), 1, "{errors}");
    assert!(errors.contains("rank 1 could not go on"), "{errors}");
    assert!(errors.contains("--resume=runs/small/step-00000007.safetensors"), "{errors}");
}

#[test]
fn ranks_that_differ_refuse_to_start_and_say_in_what() {
    let place = Place::new(CONFIG);
    let output = place.mpirun("-n 1 @ : -n 1 @ --seed 5");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("seed is 5 on rank 1 and"), "{errors}");
    let output = place.mpirun("-n 2 @ --sweep seed=1,2");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--sweep can't be done by several ranks"));
}

/// The processes that train in a folder, from /proc.
fn ranks_in(folder: &Path) -> Vec<u32> {
    let is_rank = |process: &PathBuf| {
        let cwd = fs::read_link(process.join("cwd")).ok()?;
        let variables = fs::read(process.join("environ")).ok()?;
        let program = fs::read_link(process.join("exe")).ok()?;
        let is_rank = text(&variables).contains("OMPI_COMM_WORLD_RANK=")
            && program == Path::new(env!("CARGO_BIN_EXE_surefoot"));
        (is_rank && cwd == folder).then_some(())
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let ranks = processes.filter(|process| is_rank(process).is_some());
    ranks.filter_map(|process| process.file_name()?.to_str()?.parse().ok()).collect()
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_ends_the_job_and_it_is_resumed_by_another_number_of_ranks() {
    let endless = CONFIG.replace("steps: 20", "steps: 1000000");
    let place = Place::new(&endless);
    let folder = place.0.path().canonicalize().unwrap();
    let job = place
        .surefoot(&["train", "small.yaml", "--ranks", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let checkpoints = || {
        let files = fs::read_dir(folder.join("runs/small")).ok()?.flatten();
        let names = files.map(|file| file.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("step-") && name.ends_with(".safetensors")).max()
    };
    until("no checkpoint is written", &checkpoints);
    let ranks =
        until("there are no two ranks", || Some(ranks_in(&folder)).filter(|it| it.len() == 2));
    let killed = Instant::now();
    assert!(Command::new("kill").args(["-9", &ranks[1].to_string()]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    // Fifteen seconds are given to the others; the rest is for a slow machine.
    assert!(killed.elapsed() < PATIENCE, "{:?}", killed.elapsed());
    println!("the job ended {:?} after the rank", killed.elapsed());
    assert_eq!(errors.matches("error:").count(), 1, "{errors}");
    assert!(errors.contains("a rank died, and the others were ended"), "{errors}");
    let last = checkpoints().unwrap();
    assert!(errors.contains(&format!("--resume=runs/small/{last} --ranks 2")), "{errors}");
    assert!(ranks_in(&folder).is_empty());
    let mut step: u64 = last[5..13].parse().unwrap();
    let mut checkpoint = format!("runs/small/{last}");
    for count in ["3", "1"] {
        let (resume, steps) = (format!("--resume={checkpoint}"), (step + 7).to_string());
        let arguments =
            ["train", &resume, "--ranks", count, "--steps", &steps, "--override", "--json"];
        let report = report(&place.surefoot(&arguments).output().unwrap());
        assert_eq!(report["resumed_from"], step, "{report}");
        step += 7;
        assert_eq!(report["steps"], step, "{report}");
        checkpoint = report["checkpoint"].as_str().unwrap().to_owned();
    }
}

#[test]
fn a_stopped_job_saves_and_ends_with_130() {
    let place = Place::new(&CONFIG.replace("steps: 20", "steps: 1000000"));
    let folder = place.0.path().canonicalize().unwrap();
    let job = place
        .surefoot(&["train", "small.yaml", "--ranks", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("no checkpoint is written", || {
        let files = fs::read_dir(folder.join("runs/small")).ok()?.flatten();
        files.into_iter().find(|file| file.path().extension().is_some_and(|it| it == "safetensors"))
    });
    assert!(Command::new("kill").args(["-INT", &job.id().to_string()]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("continue with: surefoot train --resume=runs/small/step-"), "{errors}");
}
