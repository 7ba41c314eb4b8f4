//! What a load balancer and an orchestrator ask of one server among several.

use std::io::{BufRead, BufReader};

use serde_json::json;

use crate::served::{Server, fixture, program, slow_model};

/// More tokens than a test waits for.
const LONG: usize = 1500;

#[test]
fn a_server_whose_queue_is_full_is_alive_but_not_ready() {
    let model = slow_model();
    let server = Server::start(model.path(), &["--max-sequences", "1", "--queue", "1"]);
    let ready = server.get("/ready").good();
    assert_eq!(ready["status"], "ready");
    assert_eq!(ready["queue"], json!({"waiting": 0, "room": 1}));
    let body = json!({"prompt": [5], "max_tokens": LONG, "stream": true});
    let running = server.open("/v1/completions", body.clone());
    let mut lines = BufReader::new(&running).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("data: ")).unwrap();
    let waiting = server.open("/v1/completions", body);
    server.wait_for("surefoot_queue_depth{engine=\"decode\"}", 1.0);
    let answer = server.get("/ready");
    answer.is_error(503, Some("queue_full"));
    assert!(answer.retry_after);
    assert_eq!(server.get("/live").good()["status"], "live");
    drop(waiting);
    server.wait_for("surefoot_sequences_total{outcome=\"cancelled\"}", 1.0);
    server.get("/ready").good();
}

#[test]
fn a_replica_with_other_weights_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let output = program()
        .args(["fingerprint", "--json", "--challenges", "1", "--tokens", "4", "--out"])
        .arg(folder.path().join("out.json"))
        .arg(fixture("gpt2-tiny"))
        .output()
        .unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let digest = told["files"].as_str().unwrap();
    Server::start(&fixture("gpt2-tiny"), &["--expect-digest", digest]).get("/ready").good();
    let output = program()
        .arg("serve")
        .arg(fixture("llama-tiny"))
        .args(["--name", "gpt2", "--port", "0", "--expect-digest", digest])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the files of 'gpt2'") && error.contains(digest), "{error}");
}
