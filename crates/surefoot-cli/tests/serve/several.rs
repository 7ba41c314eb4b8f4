//! Several models behind one address, within one budget of memory.

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{Server, fixture, kill, program, read_events, slow_model};

fn serve(models: &[(&str, &Path)], options: &[&str]) -> Server {
    let named: Vec<String> =
        models.iter().map(|(name, folder)| format!("{name}={}", folder.display())).collect();
    let mut all: Vec<&str> = named[1..].iter().map(String::as_str).collect();
    all.extend(options);
    Server::start(Path::new(&named[0]), &all)
}

fn states(server: &Server) -> Vec<(String, String)> {
    let models = server.get("/v1/models").good();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |model: &Value| (text(&model["id"]), text(&model["state"]));
    models["data"].as_array().unwrap().iter().map(of).collect()
}

fn wait_for_states(server: &Server, expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
    let begun = Instant::now();
    loop {
        let now = states(server);
        if now == expected {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{now:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name, which may have spaces: the state, and the parent.
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if parent.and_then(|parent| parent.parse().ok()) == Some(of) {
            found.push(pid);
        }
    }
    found
}

#[test]
fn each_model_is_loaded_when_it_is_asked_for_and_answers_as_if_it_were_alone() {
    let (llama, bert) = (fixture("llama-tiny"), fixture("bert-tiny"));
    let alone = |folder: &Path, path: &str, body: &Value| {
        Server::start(folder, &[]).post(path, body.clone()).good()
    };
    let mut completion = json!({"prompt": "ab", "max_tokens": 6, "temperature": 0});
    let embedding = json!({"input": [[5, 6, 7]]});
    let text = alone(&llama, "/v1/completions", &completion)["choices"][0]["text"].clone();
    let vector = alone(&bert, "/v1/embeddings", &embedding)["data"][0]["embedding"].clone();
    let mut server = serve(&[("a", &llama), ("b", &bert)], &["--memory", "4GiB"]);
    wait_for_states(&server, &[("a", "unloaded"), ("b", "unloaded")]);
    server.model = "a".to_owned();
    let answer = server.post("/v1/completions", completion.clone()).good();
    assert_eq!((&answer["choices"][0]["text"], &answer["model"]), (&text, &json!("a")));
    wait_for_states(&server, &[("a", "loaded"), ("b", "unloaded")]);
    server.model = "b".to_owned();
    let answer = server.post("/v1/embeddings", embedding).good();
    assert_eq!(answer["data"][0]["embedding"], vector);
    wait_for_states(&server, &[("a", "loaded"), ("b", "loaded")]);
    assert_eq!(server.get("/ready").good()["models"], json!({"a": "loaded", "b": "loaded"}));
    assert_eq!(server.metric("surefoot_model_loads{model=\"a\"}"), 1.0);
    assert!(server.get("/metrics?model=a").body.contains("surefoot_"));
    // Streams pass through.
    server.model = "a".to_owned();
    let events = server.events("/v1/completions", completion.clone());
    let streamed: String =
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(json!(streamed), text);
    // Who asks for nothing, or for what is not here, is told what is.
    completion["model"] = json!("c");
    server.post("/v1/completions", completion.clone()).is_error(404, Some("model_not_found"));
    completion["model"] = Value::Null;
    server
        .post_text("/v1/completions", "application/json", &completion.to_string())
        .is_error(400, None);
    // A process that dies is started again for the next request, which does not notice.
    for pid in children(server.pid()) {
        kill(pid);
    }
    completion["model"] = json!("a");
    let answer = server.post("/v1/completions", completion).good();
    assert_eq!(answer["choices"][0]["text"], text);
    // And all of them end with the server.
    let left = children(server.pid());
    assert!(!left.is_empty());
    server.signal("TERM");
    assert!(server.wait().success());
    for pid in left {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
}

#[test]
fn the_journal_tells_what_each_model_is_doing() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("serve.jsonl");
    let (llama, bert) = (fixture("llama-tiny"), fixture("bert-tiny"));
    let file = journal.display().to_string();
    let options = ["--memory", "4GiB", "--journal", &file, "--watch"];
    let server = serve(&[("a", &llama), ("b", &bert)], &options);
    server.complete(json!({"model": "a", "prompt": "x", "max_tokens": 2}));
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(&journal).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut last = std::collections::BTreeMap::new();
        for event in events.filter(|event| event["op"] == "model") {
            let model = event["context"].clone();
            last.insert(model["name"].as_str().unwrap().to_owned(), model);
        }
        let is = |name: &str, state: &str, loads: u64| {
            last.get(name).is_some_and(|model| {
                model["state"] == state
                    && model["loads"] == loads
                    && model["requests"] == 0
                    && model["waiting"] == 0
                    && model["memory_bytes"].as_u64().unwrap() > 0
            })
        };
        if is("a", "loaded", 1) && is("b", "unloaded", 0) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{last:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn adapters_and_digests_are_given_for_each_model() {
    let folder = tempfile::tempdir().unwrap();
    let projections = vec![("model.layers.0.self_attn.q_proj".to_owned(), 64, 64)];
    testkit::model_folders::adapter(folder.path(), &projections, 1);
    let (llama, bert) = (fixture("llama-tiny"), fixture("bert-tiny"));
    let body = |model: &str| json!({"model": model, "prompt": "Hello", "max_tokens": 12, "temperature": 0});
    let own = folder.path().display().to_string();
    let alone = Server::start(&llama, &["--adapter", &format!("tuned={own}")]);
    let [plain, tuned] = ["llama-tiny", "tuned"].map(|model| alone.complete(body(model)));
    assert_ne!(plain, tuned);
    let adapter = format!("a:tuned={own}");
    let options = ["--memory", "4GiB", "--adapter", &adapter];
    let server = serve(&[("a", &llama), ("b", &bert)], &options);
    assert_eq!(server.complete(body("a:tuned")), tuned);
    assert_eq!(server.complete(body("a")), plain);
    let models = server.get("/v1/models").good();
    let listed = models["data"].as_array().unwrap().iter().find(|model| model["id"] == "a:tuned");
    assert_eq!(listed.unwrap()["parent"], "a");
    assert_eq!(server.get("/v1/models/a:tuned").good()["state"], "loaded");
    server.post("/v1/completions", body("b:tuned")).is_error(404, Some("model_not_found"));
    let refused = |options: &[&str]| {
        let mut command = program();
        command
            .arg("serve")
            .arg(format!("a={}", llama.display()))
            .arg(format!("b={}", bert.display()));
        let output =
            command.args(["--port", "0", "--memory", "4GiB"]).args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["--adapter", &format!("tuned={own}")]).contains("a:NAME=DIR"));
    assert!(refused(&["--expect-digest", "0"]).contains("MODEL=DIGEST"));
    let said = refused(&["--expect-digest", "b=0"]);
    assert!(said.contains("the files of 'b'") && said.contains("not 0"), "{said}");
    assert!(refused(&["--name", "x"]).contains("NAME=DIR"));
}

#[test]
fn where_one_model_fits_they_take_turns_and_nobody_is_refused() {
    let model = slow_model();
    let small = ["--context", "64", "--max-sequences", "1", "--pass-tokens", "16"];
    // What one of them takes at most; two of these don't fit into what is given.
    let output = {
        let mut one = program();
        one.arg("serve").arg(model.path()).args(["--port", "0", "--json"]).args(small);
        one.stdout(std::process::Stdio::piped());
        let mut child = one.spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        line
    };
    let told: Value = serde_json::from_str(&output).unwrap();
    let budget = told["planned_peak_bytes"].as_u64().unwrap() * 3 / 2;
    let memory = format!("{budget}B");
    let mut options = vec!["--memory", memory.as_str()];
    options.extend(small);
    let server = serve(&[("a", model.path()), ("b", model.path())], &options);
    let body = |name: &str, tokens: usize| json!({"model": name, "prompt": "ab", "max_tokens": tokens, "temperature": 0});
    let text = |name: &str| server.complete(body(name, 4)).remove(0);
    let expected = text("a");
    // A stream that runs keeps its model; the other one waits for its end.
    let mut streaming = body("a", 40);
    streaming["stream"] = json!(true);
    let mut stream = server.send(&{
        let body = streaming.to_string();
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    });
    read_events(&mut stream, 1);
    assert_eq!(text("b"), expected);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    wait_for_states(&server, &[("a", "unloaded"), ("b", "loaded")]);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (text, expected) = (&text, &expected);
            scope.spawn(move || {
                assert_eq!(&text(if number % 2 == 0 { "a" } else { "b" }), expected)
            });
        }
    });
    assert!(server.metric("surefoot_model_evictions{model=\"a\"}") >= 1.0);
}

#[test]
fn a_model_that_does_not_fit_alone_is_refused_by_its_name() {
    let model = slow_model();
    let small = fixture("llama-tiny");
    let output = program()
        .arg("serve")
        .arg(format!("small={}", small.display()))
        .arg(format!("large={}", model.path().display()))
        .args(["--port", "0", "--memory", "8MiB"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the model 'small' can't be served"), "{said}");
    let output = program().args(["serve", "a=x", "b=y", "--port", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--memory"));
}

#[test]
fn an_isolated_server_of_several_models_survives_its_process() {
    let (llama, bert) = (fixture("llama-tiny"), fixture("bert-tiny"));
    let options = ["--memory", "4GiB", "--isolate"];
    let mut server = serve(&[("a", &llama), ("b", &bert)], &options);
    let complete = |server: &Server| {
        let body = json!({"model": "a", "prompt": "ab", "max_tokens": 6, "temperature": 0});
        let text = server.post("/v1/completions", body).good()["choices"][0]["text"].clone();
        server.post("/v1/embeddings", json!({"model": "b", "input": [[5, 6, 7]]})).good();
        text
    };
    let text = complete(&server);
    let front = children(server.pid());
    assert_eq!(front.len(), 1, "the supervisor has one child");
    // The front shows its supervisor that it lives, although it works on nothing itself.
    let environment = std::fs::read(format!("/proc/{}/environ", front[0])).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let inherited =
        environment.split('\0').find_map(|line| line.strip_prefix("SUREFOOT_SUPERVISED="));
    let inherited: Value = serde_json::from_str(inherited.unwrap()).unwrap();
    let heartbeat = Path::new(inherited["heartbeat"].as_str().unwrap()).to_owned();
    let beat = || std::fs::read_to_string(&heartbeat).unwrap();
    let (first, begun) = (beat(), Instant::now());
    while beat() == first || beat().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it shows no life: {first:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let models = children(front[0]);
    assert_eq!(models.len(), 2);
    kill(front[0]);
    assert_eq!(complete(&server), text);
    server.signal("TERM");
    assert!(server.wait().success());
}

#[test]
fn a_stream_goes_on_after_the_process_of_its_model_was_killed() {
    let slow = slow_model();
    let mut server = serve(&[("a", slow.path())], &["--memory", "4GiB"]);
    server.model = "a".to_owned();
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 900, "seed": 9, "n": 2});
    let expected = server.complete(body.clone());
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let mut stream = server.open("/v1/completions", streamed);
    let mut text = read_events(&mut stream, 6);
    assert!(!text.contains("[DONE]"), "the model is too fast");
    for pid in children(server.pid()) {
        kill(pid);
    }
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    let mut texts = [String::new(), String::new()];
    for line in text.lines().filter(|line| line.starts_with("data: {")) {
        let event: Value = serde_json::from_str(&line["data: ".len()..]).unwrap();
        let choice = &event["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(texts, expected[..]);
}

#[test]
fn a_request_has_a_name_whoever_answers_it() {
    let llama = fixture("llama-tiny");
    let server = serve(&[("a", &llama), ("b", &llama)], &["--memory", "4GiB"]);
    let body =
        |model: &str| format!("{{\"model\": \"{model}\", \"prompt\": \"x\", \"max_tokens\": 1}}");
    // The front itself answers the second and the third.
    for (model, id) in [("a", "mine"), ("c", "mine"), ("c", "")] {
        let body = body(model);
        let given = if id.is_empty() { String::new() } else { format!("X-Request-Id: {id}\r\n") };
        let mut stream = server.send(&format!(
            "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n{given}\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let head = answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
        let names: Vec<&str> =
            head.lines().filter_map(|line| line.strip_prefix("x-request-id: ")).collect();
        assert_eq!(names.len(), 1, "{head}");
        assert!(
            if id.is_empty() { names[0].starts_with("req-") } else { names[0] == id },
            "{head}"
        );
    }
}
