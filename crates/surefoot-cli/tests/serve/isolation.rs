//! A server in a child process that is started again (issue 17).

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{Server, fixture, kill};

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

#[test]
fn a_child_without_a_device_is_started_again() {
    let log = tempfile::NamedTempFile::new().unwrap();
    // The first answer has five passes: the prompt and four tokens more.
    let drill = "device_lost:op=decode,step=5,count=1";
    let options = ["--isolate", "--drill", drill];
    let mut server = Server::start_with(&fixture("gpt2-tiny"), &options, |command| {
        command.stderr(log.reopen().unwrap());
    });
    let (status, expected) = completed(&server);
    assert_eq!(status, 200);
    assert_eq!(completed(&server).0, 503, "its device is lost");
    let first = child_of(server.pid());
    let begun = Instant::now();
    while completed(&server) != (200, expected.clone()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never serves again");
    }
    assert_ne!(child_of(server.pid()), first);
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert!(said.contains("no device is left"), "{said}");
    assert!(said.contains("is restarted"), "{said}");
    assert!(said.contains("Start a new process") && !said.contains("--isolate"), "{said}");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
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
