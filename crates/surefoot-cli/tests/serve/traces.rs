//! What is told of each request: its times in the journal, and its spans to an OpenTelemetry collector, which is a small
//! server of the test's own.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::served::{Server, fixture, slow_model};

/// The events of a journal that are about requests.
fn request_events(journal: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(journal).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["context"]["request_id"].is_string())
        .collect()
}

/// Waits until the journal has so many events about requests.
fn wait_for_requests(journal: &std::path::Path, count: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let events = request_events(journal);
        if events.len() >= count {
            return events;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{events:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_journal_has_the_times_of_each_request_once() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("serve.jsonl");
    let server = Server::start_with(&fixture("gpt2-tiny"), &["--journal"], |command| {
        command.arg(&journal);
    });
    let whole = json!({"prompt": "tensor", "max_tokens": 5, "temperature": 0, "n": 2});
    let answer = server.post("/v1/completions", whole.clone()).good();
    let streamed = server
        .events("/v1/completions", json!({"prompt": "tensor", "max_tokens": 4, "temperature": 0}));
    assert!(!streamed.is_empty());
    server.post("/v1/embeddings", json!({"input": "tensor"})).good();
    server
        .post("/v1/completions", json!({"prompt": "x", "max_tokens": 1 << 30}))
        .is_error(400, None);
    server.get("/health").good();
    let events = wait_for_requests(&journal, 4);
    assert_eq!(events.len(), 4, "each request once, and probes not at all: {events:?}");
    let find = |path: &str, status: u64, tokens: Option<u64>| {
        let fits = |event: &&Value| {
            event["op"] == path
                && event["context"]["status"] == status
                && event["context"]["tokens"].as_u64() == tokens
        };
        let found = events.iter().find(fits);
        found.unwrap_or_else(|| panic!("{path} {status} {tokens:?} in {events:?}")).clone()
    };
    let usage = &answer["usage"];
    let event = find("/v1/completions", 200, usage["completion_tokens"].as_u64());
    assert_eq!((&event["kind"], &event["device"]), (&json!("step"), &json!("cpu")));
    let context = &event["context"];
    assert_eq!((&context["sequences"], &context["model"]), (&json!(2), &json!(server.model)));
    assert_eq!(context["prompt_tokens"], usage["prompt_tokens"]);
    let number = |key: &str| context[key].as_f64().unwrap_or_else(|| panic!("{key}: {event}"));
    let took = event["duration_ns"].as_f64().unwrap() / 1e6;
    for key in ["queue_ms", "prompt_ms", "first_token_ms", "between_tokens_ms"] {
        assert!((0.0..=took).contains(&number(key)), "{key}: {event}");
    }
    assert!(number("first_token_ms") >= number("prompt_ms"), "{event}");
    assert!(number("longest_between_tokens_ms") >= number("between_tokens_ms"), "{event}");
    find("/v1/completions", 200, Some(4));
    find("/v1/embeddings", 200, None);
    find("/v1/completions", 400, None);
    // What people read of it.
    drop(server);
    let mut command = crate::served::program();
    let output = command.args(["journal", "--json"]).arg(&journal).output().unwrap();
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let operations = summary["operations"].as_array().unwrap();
    let of_path = operations.iter().find(|operation| operation["op"] == "/v1/completions").unwrap();
    assert_eq!((&of_path["count"], &of_path["kind"]), (&json!(3), &json!("step")));
}

#[test]
fn a_client_that_goes_away_is_told_too() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("serve.jsonl");
    let model = slow_model();
    let server = Server::start_with(model.path(), &["--journal"], |command| {
        command.arg(&journal);
    });
    let body = json!({"prompt": "tensor", "max_tokens": 400, "temperature": 0, "stream": true});
    let mut stream = server.open("/v1/completions", body);
    crate::served::read_events(&mut stream, 2);
    drop(stream);
    let events = wait_for_requests(&journal, 1);
    let tokens = events[0]["context"]["tokens"].as_u64().unwrap();
    assert!((1..400).contains(&tokens), "{events:?}");
}

/// A collector that keeps what it is sent.
pub(crate) struct Collector {
    pub(crate) url: String,
    received: Receiver<Value>,
}

impl Collector {
    fn start() -> Self {
        Self::speaking("http", |stream| stream)
    }

    /// One that reads and writes through what `wrapped` makes of a connection.
    pub(crate) fn speaking<S: Read + Write>(
        scheme: &str,
        wrapped: impl Fn(TcpStream) -> S + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (sender, received) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let rest = stream.try_clone().unwrap();
                let body = read_export(wrapped(stream));
                if body.is_some_and(|body| sender.send(body).is_err()) {
                    return;
                }
                // Closing a connection with something unread in it resets it, and takes back what was told last.
                let _ = rest.shutdown(Shutdown::Write);
                rest.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let _ = std::io::copy(&mut &rest, &mut std::io::sink());
            }
        });
        Self { url, received }
    }

    /// Waits until spans satisfy `is_enough`; all of them, each with its attributes as one object.
    pub(crate) fn spans(&self, mut is_enough: impl FnMut(&[Value]) -> bool) -> Vec<Value> {
        let mut spans = Vec::new();
        let until = Instant::now() + Duration::from_secs(120);
        while !is_enough(&spans) {
            let left = until.saturating_duration_since(Instant::now());
            let body = self.received.recv_timeout(left);
            let body = body.unwrap_or_else(|_| panic!("there are only {spans:#?}"));
            let resource = &body["resourceSpans"][0];
            let service = &resource["resource"]["attributes"][0];
            assert_eq!(service["value"]["stringValue"], "tested");
            spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
        }
        spans
    }
}

/// Reads one request and answers it; none if it is no export.
fn read_export(mut stream: impl Read + Write) -> Option<Value> {
    let mut reader = BufReader::new(&mut stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_lowercase());
    }
    assert_eq!(head.first()?, "post /v1/traces http/1.1");
    assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let _ = stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    );
    serde_json::from_slice(&body).ok()
}

fn attribute<'v>(span: &'v Value, key: &str) -> &'v Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("{key} in {span}"))["value"]
}

fn nanos(span: &Value, key: &str) -> u128 {
    span[key].as_str().unwrap().parse().unwrap()
}

fn started_with(otlp: &str, options: &[&str]) -> Server {
    Server::start_with(&fixture("gpt2-tiny"), options, |command| {
        command.args(["--otlp", otlp]).env("OTEL_SERVICE_NAME", "tested");
        command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
    })
}

/// Posts with a header `traceparent`.
fn post_traced(server: &Server, path: &str, mut body: Value, parent: &str) -> u16 {
    body["model"] = json!(server.model);
    let body = body.to_string();
    let mut stream = server.send(&format!(
        "POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\ntraceparent: {parent}\r\n\
         X-Request-Id: mine\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    ));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_collector_gets_the_spans_of_a_request_of_its_stages_and_of_its_passes() {
    let collector = Collector::start();
    // A fault that is recovered from is an event of the pass that it struck.
    let server =
        started_with(&collector.url, &["--drill", "command_buffer:op=decode,step=1,count=1"]);
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let body = json!({"prompt": "tensor", "max_tokens": 4, "temperature": 0});
    let status = post_traced(&server, "/v1/completions", body, &format!("00-{trace}-{parent}-01"));
    assert_eq!(status, 200);
    let is_request = |span: &&Value| span["name"] == "POST /v1/completions";
    let spans = collector.spans(|spans| spans.iter().any(|span| is_request(&span)));
    let request = spans.iter().find(is_request).unwrap();
    assert!(spans.iter().all(|span| span["traceId"] == trace), "{spans:#?}");
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(parent), &json!(2)));
    assert_eq!(attribute(request, "http.response.status_code"), &json!({"intValue": "200"}));
    assert_eq!(attribute(request, "surefoot.request_id"), &json!({"stringValue": "mine"}));
    assert_eq!(attribute(request, "gen_ai.usage.output_tokens"), &json!({"intValue": "4"}));
    let mut of_name: HashMap<&str, Vec<&Value>> = HashMap::new();
    for span in &spans {
        of_name.entry(span["name"].as_str().unwrap()).or_default().push(span);
        if !is_request(&span) {
            assert_eq!(span["parentSpanId"], request["spanId"], "{span}");
        }
        let (start, end) = (nanos(span, "startTimeUnixNano"), nanos(span, "endTimeUnixNano"));
        assert!(before <= start && start <= end, "{span}");
    }
    let ids: std::collections::HashSet<&Value> = spans.iter().map(|span| &span["spanId"]).collect();
    assert_eq!(ids.len(), spans.len(), "each span has an identifier of its own");
    let [queue, prompt, answer] = ["queue", "prompt", "answer"].map(|name| of_name[name][0]);
    assert_eq!(queue["endTimeUnixNano"], prompt["startTimeUnixNano"]);
    assert_eq!(prompt["endTimeUnixNano"], answer["startTimeUnixNano"]);
    let passes = &of_name["decode"];
    assert_eq!(passes.len(), 4, "the prompt, and a pass for each token behind the first");
    for pass in passes {
        assert_eq!(attribute(pass, "surefoot.device"), &json!({"stringValue": "cpu"}));
    }
    let struck: Vec<&&Value> =
        passes.iter().filter(|pass| !pass["events"].as_array().unwrap().is_empty()).collect();
    assert_eq!(struck.len(), 1, "{passes:#?}");
    assert_eq!(struck[0]["events"][0]["name"], "fault");
    // Without the header a request begins a trace; one that is not sampled is not recorded.
    let unsampled = format!("00-{trace}-{parent}-00");
    let body = json!({"prompt": "tensor", "max_tokens": 2});
    assert_eq!(post_traced(&server, "/v1/completions", body.clone(), &unsampled), 200);
    server.post("/v1/completions", body).good();
    let spans = collector.spans(|spans| spans.iter().any(|span| is_request(&span)));
    let request = spans.iter().find(is_request).unwrap();
    assert!(request.get("parentSpanId").is_none() && request["traceId"] != trace, "{request}");
    assert!(spans.iter().all(|span| span["traceId"] == request["traceId"]), "{spans:#?}");
    server.wait_for("surefoot_trace_spans_total{outcome=\"exported\"}", 1.0);
}

#[test]
fn a_collector_that_is_away_or_hangs_slows_and_fails_nothing_and_lost_spans_are_counted() {
    // Accepts connections and answers none.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for address in [away, hanging.local_addr().unwrap()] {
        let mut server = started_with(&format!("http://{address}"), &[]);
        let body = json!({"prompt": "tensor", "max_tokens": 2, "temperature": 0});
        let expected = server.complete(body.clone());
        for _ in 0..20 {
            assert_eq!(server.complete(body.clone()), expected);
        }
        server.wait_for("surefoot_trace_spans_total{outcome=\"dropped\"}", 1.0);
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn the_standard_variable_switches_traces_on_and_a_wrong_address_is_refused() {
    let collector = Collector::start();
    let server = Server::start_with(&fixture("bert-tiny"), &[], |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
        command.env("OTEL_SERVICE_NAME", "tested");
    });
    server.post("/v1/embeddings", json!({"input": [2, 10, 3]})).good();
    let is_request = |span: &Value| span["name"] == "POST /v1/embeddings";
    let spans = collector.spans(|spans| spans.iter().any(is_request));
    assert!(spans.iter().any(|span| span["name"] == "embed"), "{spans:#?}");
    let mut command = crate::served::program();
    command.arg("serve").arg(fixture("bert-tiny")).args(["--port", "0", "--otlp", "ftp://far"]);
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--otlp") && said.contains("neither with http:// nor"), "{said}");
}
