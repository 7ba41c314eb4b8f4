//! Many clients, clients that go away, and a server that is told to stop.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::served::{Server, fixture, read_events, slow_model};

const LONG: usize = 1500;

#[test]
fn more_than_can_wait_are_told_to_come_back() {
    let model = slow_model();
    let server = Server::start(model.path(), &["--max-sequences", "1", "--queue", "1"]);
    let long = || json!({"prompt": [5], "max_tokens": LONG, "stream": true});
    let mut running = server.open("/v1/completions", long());
    read_events(&mut running, 1);
    let _waiting = server.open("/v1/completions", long());
    server.wait_for("surefoot_queue_depth{engine=\"decode\"}", 1.0);
    server.post("/v1/completions", json!({"prompt": [5]})).is_error(429, Some("queue_full"));
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"refused\"}"), 1.0);
    let many = json!({"prompt": [5], "n": 2});
    server.post("/v1/completions", many).is_error(400, None);
    // Those that were accepted go on.
    read_events(&mut running, 3);
}

#[test]
fn a_client_that_goes_away_frees_its_place() {
    let model = slow_model();
    let server = Server::start(model.path(), &["--max-sequences", "1"]);
    let cancelled = "surefoot_sequences_total{outcome=\"cancelled\"}";
    let accepted = "surefoot_sequences_total{outcome=\"accepted\"}";
    let mut streaming =
        server.open("/v1/completions", json!({"prompt": [5], "max_tokens": LONG, "stream": true}));
    read_events(&mut streaming, 2);
    // One that waits in the queue, and goes away there.
    let queued =
        server.open("/v1/completions", json!({"prompt": [5], "max_tokens": LONG, "stream": true}));
    server.wait_for(accepted, 2.0);
    drop(queued);
    drop(streaming);
    server.wait_for(cancelled, 2.0);
    let whole = server.open("/v1/completions", json!({"prompt": [5], "max_tokens": LONG}));
    server.wait_for(accepted, 3.0);
    drop(whole);
    server.wait_for(cancelled, 3.0);
    let begun = Instant::now();
    server.complete(json!({"prompt": [5], "max_tokens": 2}));
    assert!(begun.elapsed() < Duration::from_secs(5), "the place was still taken");
}

#[test]
fn a_client_that_left_the_queue_makes_room_for_another() {
    let model = slow_model();
    let server = Server::start(model.path(), &["--max-sequences", "1", "--queue", "1"]);
    let long = || json!({"prompt": [5], "max_tokens": LONG, "stream": true});
    let mut running = server.open("/v1/completions", long());
    read_events(&mut running, 1);
    let queued = server.open("/v1/completions", long());
    server.wait_for("surefoot_queue_depth{engine=\"decode\"}", 1.0);
    drop(queued);
    // The one that runs goes on all the while.
    let begun = Instant::now();
    let next = loop {
        let mut next = server.open("/v1/completions", long());
        let mut status = [0; 12];
        next.read_exact(&mut status).unwrap();
        if &status == b"HTTP/1.1 200" {
            break next;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the place in the queue is not free");
    };
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"cancelled\"}"), 1.0);
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"finished\"}"), 0.0);
    drop((running, next));
}

#[test]
fn an_answer_that_came_to_a_stop_text_is_finished_not_abandoned() {
    let server = Server::start(&fixture("llama-tiny"), &[]);
    let greedy = json!({"prompt": "x", "max_tokens": 40, "temperature": 0});
    let whole = &server.complete(greedy)[0];
    let stop: String = whole.chars().skip(5).take(2).collect();
    let body = json!({"prompt": "x", "max_tokens": 40, "stop": stop, "n": 3, "temperature": 0});
    for text in server.complete(body) {
        assert!(text.len() < whole.len(), "{text:?} of {whole:?}");
    }
    server.wait_for("surefoot_sequences_total{outcome=\"finished\"}", 4.0);
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"cancelled\"}"), 0.0);
    let generated = server.metric("surefoot_tokens_total{kind=\"generated\"}");
    assert!(generated > 40.0, "{generated}");
    assert_eq!(server.metric("surefoot_first_token_seconds_count"), 4.0);
}

#[test]
fn clients_that_send_nothing_or_take_nothing_do_not_keep_a_server_from_ending() {
    let mut server = Server::start(&fixture("gpt2-tiny"), &[]);
    let headers = "POST /v1/completions HTTP/1.1\r\nHost: here\r\n\
                   Content-Type: application/json\r\nContent-Length: 500\r\n";
    let _half_a_header = server.send(&headers[..60]);
    let _half_a_body = server.send(&format!("{headers}\r\n{{\"model\":"));
    // A stream of some 30 MB that nobody reads: more than the system keeps.
    let mut unread = json!({"prompt": [5], "max_tokens": 100, "n": 128});
    unread["stream"] = json!(true);
    unread["logprobs"] = json!(20);
    let _unread = server.open("/v1/completions", unread);
    server.wait_for("surefoot_sequences_total{outcome=\"finished\"}", 128.0);
    let begun = Instant::now();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(begun.elapsed() > Duration::from_secs(5), "nothing was kept waiting");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn large_bodies_that_never_come_keep_no_small_one_waiting() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--max-body", "8MiB"]);
    let headers = "POST /v1/completions HTTP/1.1\r\nHost: here\r\n\
                   Content-Type: application/json\r\nContent-Length: 8388608\r\n\r\n";
    let _slow: Vec<_> = (0..3).map(|_| server.send(headers)).collect();
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    server.complete(json!({"prompt": "x", "max_tokens": 2}));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

const JSON_HEAD: &str =
    "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n";

#[test]
fn bodies_that_come_to_a_halt_keep_no_others_waiting() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--max-body", "8MiB"]);
    let begun_large = format!("{JSON_HEAD}Content-Length: 8388608\r\n\r\n{{");
    let _begun: Vec<_> = (0..3).map(|_| server.send(&begun_large)).collect();
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    let body = format!("{{\"model\": \"{}\", \"prompt\": \"x\"}}", server.model);
    let padded_by = |bytes: usize| {
        let padded = format!("{body}{}", " ".repeat(bytes));
        let answer = server.post_text("/v1/completions", "application/json", &padded);
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    // More than a small one.
    padded_by(80_000);
    // One that doesn't say how large it is.
    let chunked = format!(
        "{JSON_HEAD}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let mut answer = String::new();
    server.send(&chunked).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Almost all of a large one: nobody waits for the rest of it while others need its room.
    let mut halted = server.send(&begun_large);
    halted.write_all(&[b' '; 8_000_000]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    padded_by(8_000_000);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let mut told = String::new();
    let _ = halted.read_to_string(&mut told);
    assert!(told.starts_with("HTTP/1.1 408"), "{told}");
}

#[test]
fn a_short_request_joins_a_long_one_that_runs_and_is_done_first() {
    let model = slow_model();
    let server = Server::start(model.path(), &[]);
    let mut long =
        server.open("/v1/completions", json!({"prompt": [5], "max_tokens": LONG, "stream": true}));
    read_events(&mut long, 2);
    server.complete(json!({"prompt": [6], "max_tokens": 3}));
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"finished\"}"), 1.0);
    drop(long);
    server.wait_for("surefoot_sequences_total{outcome=\"cancelled\"}", 1.0);
    // Nothing runs any more, so the two figures are of the same moment.
    let both = server.metric("surefoot_batch_size_sum{engine=\"decode\"}")
        - server.metric("surefoot_batch_size_count{engine=\"decode\"}");
    assert!(both >= 1.0, "no step was taken by both");
}

#[test]
fn a_request_that_takes_too_long_is_given_up_alone() {
    let model = slow_model();
    let server = Server::start(model.path(), &["--timeout", "1", "--max-sequences", "1"]);
    std::thread::scope(|scope| {
        // The second one spends its time in the queue.
        for _ in 0..2 {
            scope.spawn(|| {
                let body = json!({"prompt": [5], "max_tokens": LONG, "temperature": 0});
                server.post("/v1/completions", body).is_error(503, Some("timeout"));
            });
        }
    });
    server.complete(json!({"prompt": [5], "max_tokens": 2}));
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 2.0);
}

#[test]
fn a_signal_lets_what_was_accepted_finish() {
    let model = slow_model();
    let two = ["--max-sequences", "2"];
    let isolated = ["--max-sequences", "2", "--isolate"];
    // In the last the signal reaches the supervisor alone, as in a container.
    for (signal, options) in [("TERM", &two[..]), ("INT", &two), ("TERM", &isolated)] {
        let mut server = Server::start(model.path(), options);
        let body = json!({"prompt": [5], "max_tokens": 60, "stream": true});
        let mut streams: Vec<_> =
            (0..4).map(|_| server.open("/v1/completions", body.clone())).collect();
        let begun = read_events(&mut streams[0], 2);
        server.wait_for("surefoot_sequences_total{outcome=\"accepted\"}", 4.0);
        server.signal(signal);
        let mut rests = vec![begun, String::new(), String::new(), String::new()];
        for (stream, rest) in streams.iter_mut().zip(&mut rests) {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            rest.push_str(&String::from_utf8_lossy(&bytes));
        }
        let status = server.wait();
        for rest in &rests {
            assert!(rest.contains("data: [DONE]"), "{signal}: {status}, {rests:?}");
            assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
        }
        assert_eq!(status.code(), Some(0), "{signal}");
    }
}

#[test]
fn a_second_ctrl_c_does_not_wait() {
    let model = slow_model();
    let mut server = Server::start(model.path(), &[]);
    let mut long =
        server.open("/v1/completions", json!({"prompt": [5], "max_tokens": LONG, "stream": true}));
    read_events(&mut long, 2);
    server.signal("INT");
    std::thread::sleep(Duration::from_millis(300));
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(130));
}

#[test]
fn the_journal_sums_up_and_holds_no_line_for_every_pass() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal.jsonl");
    let mut server =
        Server::start(&fixture("gpt2-tiny"), &["--journal", journal.to_str().unwrap()]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    server.complete(json!({"prompt": "x", "max_tokens": 20}));
                    server.post("/v1/embeddings", json!({"input": "y"})).good();
                }
            });
        }
    });
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let text = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sum = |key: &str| -> u64 {
        let notes = lines.iter().filter(|line| line["op"] == "serve");
        notes.map(|note| note["context"][key].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("accepted"), sum("finished"), sum("failed")), (200, 200, 0));
    assert!(sum("tokens") > 2000 && sum("batches") > 20);
    let is_request = |line: &&serde_json::Value| line["context"]["request_id"].is_string();
    assert_eq!(lines.iter().filter(is_request).count(), 200, "each request once");
    let others = lines.len() - 200;
    assert!(others < 100, "{others} lines beside those of 200 requests");
}

#[cfg(unix)]
#[test]
fn issue_17_silent_connections_do_not_lock_others_out() {
    let program = assert_cmd::cargo::cargo_bin("surefoot");
    let server = Server::start_by("sh", &fixture("gpt2-tiny"), &[], |command| {
        command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(program);
    });
    let silent: Vec<_> = (0..100).map(|_| server.send("")).collect();
    let begun = Instant::now();
    server.get("/health").good();
    server.complete(json!({"prompt": "x", "max_tokens": 2}));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(silent);
    // Neither do those that send the beginning of a body.
    let head = format!("{JSON_HEAD}Content-Length: 8000000\r\n\r\n{{");
    let halves: Vec<_> = (0..100).map(|_| server.send(&head)).collect();
    let begun = Instant::now();
    server.get("/health").good();
    server.complete(json!({"prompt": "x", "max_tokens": 2}));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(halves);
}
