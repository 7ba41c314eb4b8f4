//! `surefoot journal` as a user meets it, and the file's promise under `kill -9`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::{contains, is_empty, starts_with};
use serde_json::Value as Json;
use surefoot::fault::FaultKind;
use surefoot::journal::{Event, EventKind, Journal, Line, Reader};
use tempfile::TempDir;

fn surefoot_journal(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("journal").args(arguments);
    command
}

/// A run with one recovered fault and one that was given up.
fn write_run(path: &Path) {
    let journal = Journal::builder().file(path).unwrap().build();
    let step = || Event::new(EventKind::Step, "forward").device("gpu");
    journal.record(Event::new(EventKind::Selection, "choose device").device("gpu"));
    journal.record(Event::new(EventKind::Allocation, "weights").device("gpu").bytes(3 << 20));
    for ms in 1..=20 {
        journal.record(step().duration(Duration::from_millis(ms)));
    }
    journal.record(
        Event::new(EventKind::Fault, "forward")
            .device("gpu")
            .fault(FaultKind::OutOfMemory, "can't allocate\n4 GiB"),
    );
    journal.record(Event::new(EventKind::Rung, "forward").device("gpu").recovery("reclaim"));
    journal.record(
        Event::new(EventKind::Fault, "forward")
            .device("gpu")
            .fault(FaultKind::OutOfMemory, "still can't"),
    );
    journal.record(Event::new(EventKind::Rung, "forward").device("gpu").recovery("split batch"));
    journal.record(step().duration(Duration::from_millis(30)).recovery("split batch"));
    journal.record(
        Event::new(EventKind::Step, "load").fault(FaultKind::ModelLoading, "no such tensor"),
    );
    journal.flush().unwrap();
}

fn run_file() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    write_run(&path);
    (folder, path.to_str().unwrap().to_owned())
}

fn append(path: &str, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn the_summary_tells_counts_times_and_the_story_of_each_fault() {
    let (_folder, path) = run_file();
    let output = surefoot_journal(&[&path]).assert().success().stderr(is_empty());
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "28 events in 1 run over ",
        "events selection 1, allocation 1, step 22, fault 2, rung 2",
        "devices gpu 27",
        "forward step 21 11.4 ms 11.0 ms 20.0 ms 30.0 ms",
        "weights allocation 1 3.00 MiB",
        "faults out_of_memory 2, model_loading 1",
        "1 of 2 faulted operations recovered (50 %), 1 given up, 0 without an end",
        "fault 1: out_of_memory in forward on gpu",
        "cause can't allocate 4 GiB",
        "earlier: step forward, took 20.0 ms recovery",
        "recovery reclaim on gpu, but then out_of_memory: still can't",
        "outcome recovered by split batch",
        "fault 2: model_loading in load",
        "outcome given up, no recovery step was tried",
    ] {
        assert!(squeezed.contains(part), "no '{part}' in\n{text}");
    }
    assert_eq!(squeezed.matches("before").count(), 10, "{text}");
}

#[test]
fn json_is_one_document_with_the_same_content() {
    let (_folder, path) = run_file();
    let output = surefoot_journal(&[&path, "--json"]).assert().success();
    let summary: Json = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(summary["events"], 28);
    assert_eq!(summary["faults"]["out_of_memory"], 2);
    assert_eq!(summary["recovery_rate"], 0.5);
    assert_eq!(summary["operations"][0]["timing"]["p95_ns"], 20_000_000);
    let story = &summary["stories"][0];
    assert_eq!(story["outcome"], "recovered");
    assert_eq!(story["recovered_by"], "split batch");
    assert_eq!(story["before"][4]["duration_ns"], 20_000_000);
    assert_eq!(story["rungs"][0]["then"]["kind"], "out_of_memory");
}

#[test]
fn stdin_is_read_for_a_dash() {
    let (_folder, path) = run_file();
    surefoot_journal(&["-"])
        .write_stdin(fs::read(path).unwrap())
        .assert()
        .success()
        .stdout(starts_with("stdin: 28 events in 1 run"));
}

#[test]
fn the_trace_has_what_perfetto_needs() {
    let (folder, path) = run_file();
    let trace = folder.path().join("trace.json");
    surefoot_journal(&[&path, "--trace", trace.to_str().unwrap()])
        .assert()
        .success()
        .stdout(contains("28 events"))
        .stderr(contains("trace.json").and(contains("ui.perfetto.dev")));
    let document: Json = serde_json::from_slice(&fs::read(trace).unwrap()).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let starts: Vec<_> = events.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(starts.is_sorted());
    for event in events {
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        let ph = event["ph"].as_str().unwrap();
        assert!(["X", "i", "C", "M"].contains(&ph), "{event}");
        assert_eq!(event["dur"].is_number(), ph == "X", "{event}");
    }
    let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
    assert_eq!((of("X"), of("i"), of("C")), (21, 7, 1));
}

#[test]
fn a_trace_never_replaces_its_journal() {
    let (_folder, path) = run_file();
    let before = fs::read(&path).unwrap();
    surefoot_journal(&[&path, "--trace", &path])
        .assert()
        .code(2)
        .stderr(contains("the journal itself"));
    assert_eq!(fs::read(&path).unwrap(), before);
    surefoot_journal(&[&path, "--trace", "-"]).assert().code(2).stderr(contains("stdout"));
}

#[test]
fn a_cut_off_last_line_is_skipped_with_a_note() {
    let (_folder, path) = run_file();
    append(&path, "{\"time_us\":17,\"kind\":\"st");
    surefoot_journal(&[&path])
        .assert()
        .success()
        .stdout(contains("28 events"))
        .stderr(contains("line 30, the last one, is incomplete"));
    surefoot_journal(&[&path, "-q"]).assert().success().stderr(is_empty());
}

#[test]
fn broken_lines_in_the_middle_are_named() {
    let (_folder, path) = run_file();
    append(&path, "{\"time_us\":17,\"ki\n");
    write_run(Path::new(&path));
    let output = surefoot_journal(&[&path, "--json"]).assert().success();
    let output = output.stderr(contains("line 30 was skipped: EOF while parsing a string"));
    let summary: Json = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!((&summary["broken"], &summary["runs"]), (&Json::from(1), &Json::from(2)));
    assert_eq!(summary["broken_lines"][0]["line"], 30);
    assert_eq!(summary["events"], 56);
}

#[test]
fn a_newer_version_is_read_with_a_note() {
    let text =
        "{\"surefoot_journal\":9}\n{\"time_us\":5,\"kind\":\"step\",\"op\":\"x\",\"new\":[]}\n";
    surefoot_journal(&["-"])
        .write_stdin(text)
        .assert()
        .success()
        .stdout(contains("1 event in 1 run"))
        .stderr(contains("version 9"));
}

#[test]
fn what_is_no_journal_is_refused_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let junk: Vec<u8> = (0..100_000u32).map(|n| ((n * 7919) >> 5) as u8).collect();
    let missing = folder.path().join("missing.jsonl");
    let cases = [
        (missing.to_str().unwrap().to_owned(), "No such file"),
        (folder.path().to_str().unwrap().to_owned(), "it is a folder"),
        (put("empty.jsonl", b""), "is empty"),
        (put("blank.jsonl", b"\n\n"), "is empty"),
        (put("junk.jsonl", &junk), "is not a journal"),
        (put("zeros.jsonl", &vec![0; 20 << 20]), "is not a journal"),
        (put("text.jsonl", &b"hello\n".repeat(5_000)), "is not a journal"),
        (put("other.jsonl", b"{\"a\":1}\n[2]\n"), "is not a journal"),
    ];
    for (path, words) in cases {
        surefoot_journal(&[&path])
            .assert()
            .code(2)
            .stdout(is_empty())
            .stderr(starts_with("error: ").and(contains(words)).and(contains(&path)));
    }
}

#[test]
fn a_hundred_thousand_events_are_summed_up_with_quantiles_within_their_bound() {
    let mut text = String::from("{\"surefoot_journal\":1}\n");
    for number in 1..=100_000u64 {
        text += &format!(
            "{{\"time_us\":{number},\"kind\":\"step\",\"op\":\"f\",\"duration_ns\":{}}}\n",
            number * 1000
        );
    }
    let output = surefoot_journal(&["-", "--json"]).write_stdin(text).assert().success();
    let summary: Json = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let timing = &summary["operations"][0]["timing"];
    let near = |field: &str, right: f64| {
        let found = timing[field].as_f64().unwrap();
        assert!((found / right - 1.0).abs() < 0.004, "{field} is {found}, not {right}");
    };
    near("median_ns", 50e6);
    near("p95_ns", 95e6);
    assert_eq!(timing["max_ns"], 100_000_000);
    assert_eq!(timing["exact"], false);
}

/// The child of the test below: records and reports until it is killed.
fn write_until_killed(path: &str) -> ! {
    let journal = Journal::builder().file(path).unwrap().build();
    let mut out = std::io::stdout().lock();
    for number in 0u64.. {
        let text = "x".repeat((number % 700) as usize);
        let event = Event::new(EventKind::Step, "forward").context("number", number);
        journal.record(event.context("text", text));
        writeln!(out, "{number}").and_then(|()| out.flush()).unwrap();
    }
    unreachable!("nobody counts that far")
}

#[cfg(unix)]
#[test]
fn kill_9_costs_no_recorded_event_and_breaks_at_most_the_last_line() {
    const CHILD: &str = "SUREFOOT_TEST_KILLED_WRITER";
    if let Ok(path) = std::env::var(CHILD) {
        write_until_killed(&path);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("killed.jsonl");
    let mut total = 0;
    // The same file throughout, so that each run starts after what a kill has left.
    for round in 0..20u64 {
        let mut child = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill_9_costs_no_recorded_event_and_breaks_at_most_the_last_line"])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut counts = out.lines().filter_map(|line| line.ok()?.parse::<u64>().ok());
        // However slow the machine is, the writer is in full swing before it is killed.
        assert!(counts.any(|number| number == 50));
        let rest = std::thread::spawn(move || counts.last());
        std::thread::sleep(Duration::from_micros(round * 7_919 % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let reported = rest.join().unwrap().unwrap_or(50) + 1;

        let mut found = 0;
        let lines: Vec<_> = Reader::new(BufReader::new(fs::File::open(&path).unwrap()))
            .map(Result::unwrap)
            .collect();
        let ours =
            lines.iter().filter(|line| matches!(line, Line::Event(event) if event.pid == pid));
        for line in ours {
            let Line::Event(event) = line else { unreachable!() };
            assert_eq!(event.context_value("number").and_then(|n| n.as_u64()), Some(found));
            found += 1;
        }
        assert!(found >= reported, "{reported} were recorded, {found} are there");
        assert!(found <= reported + 1, "{reported} were recorded, {found} are there");
        for (place, line) in lines.iter().enumerate() {
            if let Line::Broken { number, cut_off, .. } = line {
                // A line that a kill broke is the last one, or is followed by the next run.
                let ended = matches!(lines.get(place + 1), Some(Line::Header(_)));
                assert!(*cut_off || ended, "line {number} is broken in the middle of a run");
            }
        }
        total += found;
    }
    let words = format!("{total} events");
    let output = surefoot_journal(&[path.to_str().unwrap()]).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text.replace(',', "").contains(&words), "no '{words}' in {text}");
}

#[test]
fn several_processes_append_whole_lines_to_one_file() {
    const CHILD: &str = "SUREFOOT_TEST_SHARED_WRITER";
    const EVENTS: usize = 3_000;
    if let Ok(path) = std::env::var(CHILD) {
        let journal = Journal::builder().file(path).unwrap().build();
        for number in 0..EVENTS {
            let event =
                Event::new(EventKind::Step, "forward").context("text", "y".repeat(number % 300));
            journal.record(event);
        }
        return journal.flush().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.jsonl");
    let children: Vec<_> = (0..4)
        .map(|_| {
            Process::new(std::env::current_exe().unwrap())
                .args(["--exact", "several_processes_append_whole_lines_to_one_file"])
                .env(CHILD, &path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let output = surefoot_journal(&[path.to_str().unwrap(), "--json"]).assert().success();
    let summary: Json = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(summary["events"], 4 * EVENTS);
    assert_eq!((&summary["runs"], &summary["broken"]), (&Json::from(4), &Json::from(0)));
    assert!(summary["cut_off"].is_null());
}
