//! Pages: `surefoot journal --html` and `surefoot train --watch`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use surefoot::fault::FaultKind;
use surefoot::journal::{Event, EventKind, Journal};

const ATTACK: &str = "</script><script>alert(1)</script>";

fn journal_command(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("journal").args(arguments);
    command
}

fn write_journal(path: &Path) {
    let journal = Journal::builder().file(path).unwrap().build();
    journal.record(Event::new(EventKind::Step, "forward").device("cpu"));
    journal.record(Event::new(EventKind::Fault, ATTACK).fault(FaultKind::Numeric, ATTACK));
}

#[test]
fn a_journal_becomes_one_page_with_its_events_as_data() {
    let folder = tempfile::tempdir().unwrap();
    let (run, page) = (folder.path().join("run.jsonl"), folder.path().join("run.html"));
    write_journal(&run);
    journal_command(&[run.to_str().unwrap(), "--html", page.to_str().unwrap()])
        .assert()
        .success()
        .stdout(contains("2 events"))
        .stderr(contains("wrote the page").and(contains("run.html")));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.contains("<title>run.jsonl"));
    assert!(html.contains("\"count\":2"));
    // Both of the page's own scripts, and none from the journal.
    assert_eq!(html.matches("<script").count(), 2);
    assert!(html.contains("\\u003c/script\\u003e"));
    assert!(!html.contains(folder.path().to_str().unwrap()), "no folders of this machine");
}

#[test]
fn a_page_never_replaces_the_journal_and_needs_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run.jsonl");
    write_journal(&run);
    let before = fs::read(&run).unwrap();
    let run = run.to_str().unwrap();
    let nowhere = folder.path().join("no/such.html");
    for (target, said) in [
        (run, "that is the journal itself"),
        ("-", "give --html the name of a file"),
        (nowhere.to_str().unwrap(), "can't be written"),
    ] {
        journal_command(&[run, "--html", target]).assert().code(2).stderr(contains(said));
    }
    assert_eq!(fs::read(run).unwrap(), before);
}

/// A run that is watched, and the address it tells.
fn watched(
    folder: &Path,
    arguments: &[&str],
) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut run = Process::new(env!("CARGO_BIN_EXE_surefoot"))
        .current_dir(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("watch it at ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "no address was told");
    }
    let address = line.trim().trim_start_matches("watch it at http://").trim_end_matches('/');
    (run, said, address.to_owned())
}

fn get(address: &str, path: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    BufReader::new(stream)
}

#[cfg(unix)]
fn interrupt(run: &Child) {
    assert!(Process::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn a_server_can_be_watched_too() {
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/gpt2-tiny");
    let arguments = ["serve", model.to_str().unwrap(), "--port", "0", "--watch"];
    let (mut run, mut said, address) = watched(&std::env::temp_dir(), &arguments);
    let mut events = get(&address, "/events");
    let mut line = String::new();
    while !line.contains("\"select\"") {
        line.clear();
        assert_ne!(events.read_line(&mut line).unwrap(), 0, "the stream ended early");
    }
    // Interrupted once it serves: before that, Ctrl-C just ends it.
    while !line.contains(" at once, ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it never served");
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    interrupt(&run);
    let mut rest = String::new();
    let _ = events.read_to_string(&mut rest);
    assert!(rest.contains("event: end"), "{rest}");
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0), "{rest}");
}

#[cfg(unix)]
#[test]
fn a_watched_run_serves_its_page_and_events_and_ends_them_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = "data: {kind: digits}\nmodel: {kind: mlp, hidden: [16]}\nepochs: 100000\n";
    fs::write(folder.path().join("long.yaml"), config).unwrap();
    let (mut run, mut said, address) = watched(folder.path(), &["train", "long.yaml", "--watch"]);
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let mut page = String::new();
    get(&address, "/").read_to_string(&mut page).unwrap();
    assert!(page.contains("\"title\":\"Training long\"") && page.contains("\"live\":true"));
    let mut events = get(&address, "/events");
    let (mut line, mut chunks) = (String::new(), Vec::new());
    while !line.contains("train step") {
        line.clear();
        assert_ne!(events.read_line(&mut line).unwrap(), 0, "the stream ended early");
        if line.contains("\"number\":") {
            chunks.push(line.clone());
        }
    }
    assert!(chunks[0].contains("\"number\":0,"), "the history comes first: {chunks:?}");
    // A run that is interrupted tells its pages.
    interrupt(&run);
    let mut rest = String::new();
    let _ = events.read_to_string(&mut rest);
    assert!(rest.contains("event: end"), "{}", &rest[rest.len().saturating_sub(300)..]);
    let mut told = String::new();
    said.read_to_string(&mut told).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130), "{told}");
}

#[test]
fn a_port_that_is_taken_is_a_usage_error_that_says_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("--watch={}", taken.local_addr().unwrap().port());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.yaml");
    fs::write(&config, "data: {kind: digits}\nmodel: {kind: mlp}\nepochs: 1\n").unwrap();
    Command::cargo_bin("surefoot")
        .unwrap()
        .current_dir(folder.path())
        .args(["train", "c.yaml", &option])
        .assert()
        .code(2)
        .stderr(contains("the live page could not be started").and(contains("--watch=PORT")));
}
