//! What is refused, and how.

use serde_json::json;

use crate::served::{Server, fixture, program};

#[test]
fn a_model_that_only_scores_is_pointed_to_where_it_does() {
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests");
    for (folder, path) in [
        (models.join("cross_encoders/bert-cross"), "/v1/rerank"),
        (fixture("bert-tiny"), "/v1/embeddings"),
    ] {
        let server = Server::start(&folder, &[]);
        let refused = server.post("/v1/completions", json!({"prompt": "x"}));
        refused.is_error(400, Some("unsupported_model"));
        assert!(refused.body.contains(&format!("use {path}\"")), "{}", refused.body);
    }
}

#[test]
fn each_mistake_has_its_status_and_names_what_is_wrong() {
    let server =
        Server::start(&fixture("gpt2-tiny"), &["--max-body", "4KiB", "--max-tokens", "100"]);
    let completion = |body| server.post("/v1/completions", body);
    for (answer, status, code, param) in [
        (completion(json!({})), 422, None, Some("prompt")),
        (completion(json!({"prompt": 7})), 422, None, Some("prompt")),
        (completion(json!({"prompt": []})), 400, None, Some("prompt")),
        (completion(json!({"prompt": "x", "temperature": "hot"})), 422, None, Some("temperature")),
        (completion(json!({"prompt": "x", "temperature": 9})), 400, None, Some("temperature")),
        (completion(json!({"prompt": "x", "max_tokens": 101})), 400, None, Some("max_tokens")),
        (completion(json!({"prompt": "x", "n": 0})), 400, None, Some("n")),
        (
            completion(json!({"prompt": "x", "n": 128, "model": "no"})),
            404,
            Some("model_not_found"),
            Some("model"),
        ),
        (completion(json!({"prompt": "x", "model": 5})), 422, None, Some("model")),
        (
            completion(json!({"prompt": "x", "best_of": 3})),
            400,
            Some("unsupported_parameter"),
            Some("best_of"),
        ),
        (
            completion(json!({"prompt": "x", "logit_bias": {"256": 2}})),
            400,
            None,
            Some("logit_bias"),
        ),
        (
            completion(json!({"prompt": "x", "max_tokns": 5})),
            400,
            Some("unknown_parameter"),
            Some("max_tokns"),
        ),
        (completion(json!({"prompt": [1, 256]})), 400, None, Some("prompt")),
        (completion(json!({"prompt": vec![5; 129]})), 400, Some("context_length_exceeded"), None),
        (
            completion(json!({"prompt": vec![5; 100], "max_tokens": 29})),
            400,
            Some("context_length_exceeded"),
            None,
        ),
        (
            completion(json!({"prompt": "x", "stream_options": {}})),
            400,
            None,
            Some("stream_options"),
        ),
        (completion(json!({"prompt": "x".repeat(5000)})), 413, Some("request_too_large"), None),
        (
            server.post("/v1/embeddings", json!({"input": vec![5; 129]})),
            400,
            Some("context_length_exceeded"),
            Some("input"),
        ),
        (server.post("/v1/embeddings", json!({"input": ""})), 400, None, Some("input")),
        (
            server.post("/v1/embeddings", json!({"input": "x", "dimensions": 50_000})),
            400,
            None,
            Some("dimensions"),
        ),
        (
            server.post("/v1/embeddings", json!({"input": "x", "encoding_format": "hex"})),
            400,
            None,
            Some("encoding_format"),
        ),
        (
            server.post(
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "x"}]}),
            ),
            400,
            Some("no_chat_template"),
            None,
        ),
        (server.post("/v1/chat/completions", json!({"messages": []})), 400, None, Some("messages")),
        (
            server.post("/v1/chat/completions", json!({"messages": "x"})),
            422,
            None,
            Some("messages"),
        ),
        (server.post_text("/v1/completions", "application/json", "{\"model\":"), 400, None, None),
        (server.post_text("/v1/completions", "application/json", "[]"), 422, None, None),
        (server.post_text("/v1/completions", "text/plain", "{}"), 415, Some("not_json"), None),
        (server.get("/v1/completions"), 405, Some("method_not_allowed"), None),
        (server.get("/v2"), 404, Some("not_found"), None),
    ] {
        answer.is_error(status, code);
        if let Some(param) = param {
            assert_eq!(answer.json()["error"]["param"], param, "{}", answer.body);
        }
    }
    // None of it did any harm.
    let full = server.complete(json!({"prompt": vec![5; 100], "max_tokens": 28, "temperature": 0}));
    assert_eq!(full.len(), 1);
}

#[test]
fn what_can_not_be_served_is_refused_before_anything_listens() {
    let refused = |arguments: &[&str]| {
        let output = program().arg("serve").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let model = fixture("gpt2-tiny");
    let model = model.to_str().unwrap();
    assert!(refused(&["/nonexistent", "--port", "0"]).contains("doesn't exist"));
    assert!(refused(&[model, "--port", "0", "--host", "no.such.host.invalid"]).contains("--host"));
    assert!(refused(&[model, "--port", "0", "--memory", "1MiB"]).contains("--memory"));
    assert!(
        refused(&[model, "--port", "0", "--chat-template", "/no.jinja"]).contains("chat template")
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert!(refused(&[model, "--port", &port]).contains("--port 0"));
}
