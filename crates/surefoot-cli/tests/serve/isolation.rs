//! A server in a child process that is started again (issue 17).

use std::collections::BTreeSet;
use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{Server, fixture, kill, read_events, slow_model};

/// The child of a supervisor.
fn child_of(pid: u32) -> u32 {
    let begun = Instant::now();
    loop {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        if let Some(child) = children.unwrap().split_whitespace().next() {
            return child.parse().unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no child");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Asks on a connection of its own, and waits for the answer: 0 if the connection broke.
fn completed(server: &Server) -> (u16, Value) {
    let body = json!({"prompt": "tensor", "max_tokens": 5, "temperature": 0});
    let mut stream = server.open("/v1/completions", body);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut text = String::new();
    if stream.read_to_string(&mut text).is_err() || text.is_empty() {
        return (0, Value::Null);
    }
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    let body = text.split("\r\n\r\n").nth(1).unwrap();
    (status, serde_json::from_str::<Value>(body).unwrap()["choices"][0]["text"].clone())
}

#[test]
fn after_its_child_dies_the_address_is_the_same_and_clients_wait() {
    let mut server = Server::start(&fixture("gpt2-tiny"), &["--isolate"]);
    let (status, expected) = completed(&server);
    assert_eq!(status, 200);
    for _ in 0..2 {
        let first = child_of(server.pid());
        kill(first);
        // Nobody accepts connections now. The next child answers this one.
        assert_eq!(completed(&server), (200, expected.clone()));
        assert_ne!(child_of(server.pid()), first);
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_server_that_answers_in_between_is_restarted_as_often_as_it_dies() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let options = ["--isolate", "--watch"];
    let mut server = Server::start_with(&fixture("gpt2-tiny"), &options, |command| {
        command.stderr(log.reopen().unwrap());
    });
    for _ in 0..5 {
        assert_eq!(completed(&server).0, 200);
        // What it tells its supervisor has arrived then.
        std::thread::sleep(Duration::from_secs(1));
        kill(child_of(server.pid()));
    }
    assert_eq!(completed(&server).0, 200);
    // The page stayed where it was.
    let said = std::fs::read_to_string(log.path()).unwrap();
    let pages: Vec<&str> = said.lines().filter(|line| line.contains("watch it at")).collect();
    assert_eq!(pages.len(), 6, "{said}");
    assert!(pages.iter().all(|page| page == &pages[0]), "{pages:?}");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// The text of a stream that has come to its end, and the names that its events have.
fn text_of(events: &str) -> (String, BTreeSet<String>) {
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    let events = events.lines().filter_map(|line| line.strip_prefix("data: {"));
    let events: Vec<Value> =
        events.map(|event| serde_json::from_str(&format!("{{{event}")).unwrap()).collect();
    assert!(events.iter().all(|event| event.get("error").is_none()), "{events:?}");
    let text = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    (text, events.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn a_device_that_is_lost_at_any_moment_changes_no_answer() {
    let body = json!({"prompt": "tensor", "max_tokens": 5, "seed": 3});
    let alone = Server::start(&fixture("gpt2-tiny"), &[]);
    let expected = alone.complete(body.clone()).remove(0);
    // An answer has five passes: the prompt and four tokens more. The first process loses its device in the second
    // answer, and the next one gives this answer before it would lose its own.
    for step in 5..10 {
        for moment in ["before", "during", "after"] {
            for stream in [false, true] {
                let log = tempfile::NamedTempFile::new().unwrap();
                let drill = format!("device_lost:op=decode,step={step},at={moment},count=1");
                let options = ["--isolate", "--drill", &drill];
                let mut server = Server::start_with(&fixture("gpt2-tiny"), &options, |command| {
                    command.stderr(log.reopen().unwrap());
                });
                assert_eq!(server.complete(body.clone()), [expected.as_str()]);
                let first = child_of(server.pid());
                let second = match stream {
                    false => server.complete(body.clone()).remove(0),
                    true => {
                        let mut body = body.clone();
                        body["stream"] = json!(true);
                        let (text, names) = text_of(&server.post("/v1/completions", body).body);
                        assert_eq!(names.len(), 1, "{names:?}");
                        text
                    }
                };
                assert_eq!(second, expected, "{drill}, stream: {stream}");
                assert_ne!(child_of(server.pid()), first, "{drill}: no device was lost");
                let said = std::fs::read_to_string(log.path()).unwrap();
                assert!(said.contains("no device is left"), "{said}");
                assert!(said.contains("is restarted"), "{said}");
                assert!(said.contains("Start a new process"), "{said}");
                assert!(!said.contains("--isolate"), "{said}");
                server.signal("TERM");
                assert_eq!(server.wait().code(), Some(0));
            }
        }
    }
}

#[test]
fn streams_and_answers_go_on_after_their_process_was_killed() {
    let model = slow_model();
    let alone = Server::start(model.path(), &[]);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 900, "seed": 9});
    let expected = alone.complete(body.clone()).remove(0);
    drop(alone);
    let server = Server::start(model.path(), &["--isolate"]);
    let (mut seeded, mut unseeded) = (body.clone(), body.clone());
    seeded["stream"] = json!(true);
    unseeded["stream"] = json!(true);
    unseeded.as_object_mut().unwrap().remove("seed");
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| server.complete(body.clone()).remove(0));
        let mut streams = [seeded, unseeded].map(|body| server.open("/v1/completions", body));
        for moment in [3, 9] {
            let begun: Vec<String> =
                streams.iter_mut().map(|stream| read_events(stream, moment)).collect();
            assert!(begun.iter().all(|begun| !begun.contains("[DONE]")), "the model is too fast");
            kill(child_of(server.pid()));
            // Of what was read here, the next part is not the beginning.
            for (stream, begun) in streams.iter_mut().zip(begun) {
                let rest = read_events(stream, 2);
                assert!(!rest.contains("HTTP/1.1"), "{begun} and then {rest}");
            }
        }
        for stream in streams {
            let mut stream = stream;
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut rest = String::new();
            stream.read_to_string(&mut rest).unwrap();
            assert!(rest.contains("data: [DONE]"), "{rest}");
            assert!(!rest.contains("\"error\""), "{rest}");
        }
        assert_eq!(whole.join().unwrap(), expected);
    });
    // Token for token, in one piece.
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let killing = std::thread::spawn({
        let pid = server.pid();
        move || {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(70));
                kill(child_of(pid));
            }
        }
    });
    let (text, names) = text_of(&server.post("/v1/completions", streamed).body);
    assert_eq!((text, names.len()), (expected, 1));
    killing.join().unwrap();
}

#[test]
fn clients_meet_the_same_server_through_its_supervisor() {
    let options = ["--isolate", "--cors", "https://example.org", "--max-body", "1KiB"];
    let server = Server::start_with(&fixture("gpt2-tiny"), &options, |command| {
        command.env("SUREFOOT_API_KEY", "secret");
    });
    server.post("/v1/completions", json!({"prompt": "x"})).is_error(401, Some("invalid_api_key"));
    let server = server.with_key("secret");
    server.complete(json!({"prompt": "x", "max_tokens": 2}));
    let long = json!({"prompt": "x".repeat(2048)});
    server.post("/v1/completions", long).is_error(413, Some("request_too_large"));
    server.post_text("/v1/completions", "text/plain", "x").is_error(415, Some("not_json"));
    server.post("/v1/nothing", json!({})).is_error(404, Some("not_found"));
    server.get("/v1/completions").is_error(405, Some("method_not_allowed"));
    assert_eq!(server.get("/v1/models").good()["data"][0]["id"], "gpt2-tiny");
    assert!(server.metric("surefoot_sequences_total{outcome=\"finished\"}") >= 1.0);
    for path in ["/health", "/ready", "/live"] {
        server.get(path).good();
    }
    // What a browser is told is told once.
    let mut stream = server.send(
        "GET /v1/models HTTP/1.1\r\nHost: here\r\nOrigin: https://example.org\r\n\
         Authorization: Bearer secret\r\nX-Request-Id: mine\r\nConnection: close\r\n\r\n",
    );
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let head = answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
    let count = |name: &str| head.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(count("access-control-allow-origin: https://example.org"), 1, "{head}");
    assert_eq!(count("x-request-id: mine"), 1, "{head}");
    assert_eq!(count("date:"), 1, "{head}");
}

#[test]
fn a_request_that_ends_each_process_fails_alone() {
    // Only the long one comes as far as its fourth pass.
    let drill = "device_lost:op=decode,step=3,count=1";
    let mut server = Server::start(&fixture("gpt2-tiny"), &["--isolate", "--drill", drill]);
    let short = json!({"prompt": "x", "max_tokens": 1});
    let long = json!({"prompt": "x", "max_tokens": 30});
    server.post("/v1/completions", long).is_error(503, Some("device_fault"));
    server.complete(short);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_process_that_hangs_is_told_to_who_asks_how_it_is() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--isolate"]);
    server.get("/health").good();
    let child = child_of(server.pid()).to_string();
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill").args([name, &child]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    for path in ["/health", "/ready", "/metrics"] {
        server.get(path).is_error(503, Some("not_ready"));
    }
    server.get("/live").good();
    signal("-CONT");
    server.get("/health").good();
}

#[test]
fn what_can_not_be_started_again_ends_with_a_fault() {
    // Each child loses its device with the first request.
    let drill = "device_lost:op=decode,step=0,count=1";
    let mut server = Server::start(&fixture("gpt2-tiny"), &["--isolate", "--drill", drill]);
    let begun = Instant::now();
    let asking = std::thread::spawn({
        let url = server.url.clone();
        move || {
            while let Ok(mut stream) =
                std::net::TcpStream::connect(url.strip_prefix("http://").unwrap())
            {
                use std::io::Write;
                let body = r#"{"model": "gpt2-tiny", "prompt": "x"}"#;
                let _ = write!(
                    stream,
                    "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: \
                     application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.read_to_end(&mut Vec::new());
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
            }
        }
    });
    assert_eq!(server.wait().code(), Some(3));
    asking.join().unwrap();
}

#[test]
fn a_server_that_lost_its_device_says_so_with_its_exit_code() {
    let drill = "device_lost:op=embed,step=0,count=1";
    let mut server = Server::start(&fixture("gpt2-tiny"), &["--drill", drill]);
    server.post("/v1/embeddings", json!({"input": "x"})).is_error(503, Some("device_fault"));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(3));
}
