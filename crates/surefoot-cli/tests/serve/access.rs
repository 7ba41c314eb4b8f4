//! Who may ask.

use serde_json::json;

use crate::served::{Server, fixture, program};

#[test]
fn with_keys_only_their_bearers_may_ask() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "sk-first\nsk-second\n").unwrap();
    let server = Server::start(&fixture("gpt2-tiny"), &["--api-key-file", file.to_str().unwrap()]);
    let body = || json!({"prompt": "x"});
    server.post("/v1/completions", body()).is_error(401, Some("invalid_api_key"));
    server.get("/v1/models").is_error(401, Some("invalid_api_key"));
    server.get("/metrics").is_error(401, None);
    for probe in ["/health", "/live", "/ready"] {
        server.get(probe).good();
    }
    let server = server.with_key("sk-third");
    server.post("/v1/completions", body()).is_error(401, Some("invalid_api_key"));
    let server = server.with_key("sk-second");
    server.post("/v1/completions", body()).good();
}

#[test]
fn a_key_can_come_from_the_environment() {
    let server = Server::start_with(&fixture("gpt2-tiny"), &[], |command| {
        command.env("SUREFOOT_API_KEY", "sk-env");
    });
    server.get("/v1/models").is_error(401, None);
    server.with_key("sk-env").get("/v1/models").good();
}

#[test]
fn other_machines_need_a_key_unless_anyone_is_allowed() {
    let model = fixture("gpt2-tiny");
    let output = program()
        .arg("serve")
        .arg(&model)
        .args(["--port", "0", "--host", "0.0.0.0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("--api-key-file") && told.contains("--allow-anyone"), "{told}");
    let open = Server::start(&model, &["--host", "0.0.0.0", "--allow-anyone"]);
    assert!(open.url.starts_with("http://0.0.0.0:"));
    open.get("/v1/models").good();
    let keyed = Server::start_with(&model, &["--host", "0.0.0.0"], |command| {
        command.env("SUREFOOT_API_KEY", "sk-env");
    });
    keyed.get("/v1/models").is_error(401, None);
    let wrong = program()
        .arg("serve")
        .arg(&model)
        .args(["--port", "0"])
        .env("SUREFOOT_API_KEY", " ")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2), "an empty key is a mistake, not no key");
}

/// What OpenAI's client for JavaScript sends, and what other clients add.
const HEADERS: &str = "authorization,content-type,openai-organization,traceparent,x-request-id,x-stainless-arch,\
                       x-stainless-lang,x-stainless-os,x-stainless-package-version,x-stainless-retry-count,\
                       x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout";

#[test]
fn pages_of_the_origins_that_are_listed_may_ask_and_no_others() {
    let model = fixture("gpt2-tiny");
    let server = Server::start_with(&model, &["--cors", "https://example.org"], |command| {
        command.env("SUREFOOT_API_KEY", "sk-page");
    });
    // What a browser asks before it sends a key.
    let preflight = |origin: &str| {
        let mut stream = server.send(&format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: here\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: {HEADERS}\r\nConnection: close\r\n\r\n"
        ));
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        answer.to_ascii_lowercase()
    };
    let allowed = preflight("https://example.org");
    assert!(allowed.starts_with("http/1.1 200"), "{allowed}");
    assert!(allowed.contains("access-control-allow-origin: https://example.org"), "{allowed}");
    assert!(allowed.contains(&format!("access-control-allow-headers: {HEADERS}")), "{allowed}");
    let other = preflight("https://elsewhere.org");
    assert!(!other.contains("access-control-allow-origin"), "{other}");
    let output =
        program().arg("serve").arg(&model).args(["--cors", "example.org"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not an origin"));
}
