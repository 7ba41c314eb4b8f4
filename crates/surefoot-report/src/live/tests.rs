#![allow(clippy::unwrap_used)]

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;
use surefoot_core::journal::{EventKind, Journal};

fn request(server: &Server, path: &str, host: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    BufReader::new(stream)
}

fn answer(server: &Server, path: &str, host: &str) -> String {
    let mut text = String::new();
    request(server, path, host).read_to_string(&mut text).unwrap();
    text
}

/// The next message of a stream: its name and data.
fn message(stream: &mut impl BufRead) -> (String, String) {
    let mut name = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended");
        if let Some(event) = line.strip_prefix("event:") {
            name = event.trim().to_owned();
        } else if let Some(data) = line.strip_prefix("data:") {
            return (name, data.trim().to_owned());
        }
    }
}

fn note(op: &'static str) -> Event {
    Event::new(EventKind::Note, op)
}

#[test]
fn a_page_that_comes_late_gets_the_history_then_what_happens_then_the_end() {
    let server = Server::start("run", 0).unwrap();
    let journal = Journal::builder().listener(server.listener()).build();
    journal.record(note("before"));
    let mut stream = request(&server, "/events", "127.0.0.1:1");
    assert_eq!(message(&mut stream).0, "hello");
    let (name, data) = message(&mut stream);
    assert!(name == "chunk" && data.contains("before") && data.contains("\"number\":0"), "{data}");
    journal.record(note("after"));
    let (_, data) = message(&mut stream);
    assert!(data.contains("after") && data.contains("\"number\":1"), "{data}");
    journal.record(note("last"));
    let reading = std::thread::spawn(move || {
        let mut seen = Vec::new();
        loop {
            let (name, data) = message(&mut stream);
            if name == "end" {
                return seen;
            }
            seen.push(data);
        }
    });
    server.end();
    let seen = reading.join().unwrap();
    assert!(seen.concat().contains("last"), "{seen:?}");
}

#[test]
fn a_page_that_never_reads_slows_nothing_and_does_not_hold_up_the_end() {
    let server = Server::start("run", 0).unwrap();
    let journal = Journal::builder().listener(server.listener()).build();
    let stalled = request(&server, "/events", "localhost");
    let started = Instant::now();
    for _ in 0..300_000 {
        journal.record(note("step").context("some_text_to_fill_buffers", 1));
    }
    let each = started.elapsed() / 300_000;
    assert!(each < Duration::from_micros(50), "{each:?} an event");
    let started = Instant::now();
    server.end();
    assert!(started.elapsed() < END_TIMEOUT + Duration::from_secs(2), "{:?}", started.elapsed());
    drop(stalled);
}

#[test]
fn the_page_and_the_report_are_served_to_this_machine_alone() {
    let server = Server::start("a <run>", 0).unwrap();
    (server.listener())(&note("x"));
    let page = answer(&server, "/", "127.0.0.1");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("\"live\":true"));
    assert!(page.contains("connect-src 'self'") && page.contains("<title>a &lt;run&gt;"));
    let report = answer(&server, "/report.html", "localhost:80");
    assert!(report.contains("\"live\":false") && report.contains("\"count\":1"));
    for host in ["evil.example", "127.0.0.1.evil.example", "0.0.0.0:80", ""] {
        let refused = answer(&server, "/events", host);
        assert!(refused.starts_with("HTTP/1.1 4"), "{host}: {refused}");
    }
    assert!(server.url().starts_with("http://127.0.0.1:"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let first = Server::start("run", 0).unwrap();
    let error = Server::start("run", first.address.port()).unwrap_err();
    assert!(error.to_string().contains(&first.address.port().to_string()), "{error}");
}
