//! The server as a client sees it: what it announces, finds, offers and explains, and how it ends.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lsp_server::{Connection, Message, Notification, Request, RequestId};
use serde_json::{Value, json};
use surefoot_lsp::{ServeError, serve};

const BAD: &str = "import torch\n\nx = torch.zeros(3)\nx.half()\n";

/// A client that talks to a server in another thread.
struct Client {
    connection: Connection,
    server: JoinHandle<Result<(), ServeError>>,
    next: i32,
    /// Notifications that came while an answer was waited for.
    notes: Vec<Notification>,
}

impl Client {
    /// Starts a server and greets it with these encodings of positions.
    fn new(encodings: &[&str]) -> (Self, Value) {
        let (ours, theirs) = Connection::memory();
        let server = thread::spawn(move || serve(&theirs));
        let mut client = Self { connection: ours, server, next: 0, notes: Vec::new() };
        let capabilities = json!({"general": {"positionEncodings": encodings}});
        let greeting = client.ask("initialize", json!({"capabilities": capabilities}));
        client.tell("initialized", json!({}));
        (client, greeting.expect("a greeting"))
    }

    fn tell(&self, method: &str, params: Value) {
        let note = Notification { method: method.to_owned(), params };
        self.connection.sender.send(Message::Notification(note)).expect("sent");
    }

    fn receive(&self) -> Message {
        self.connection.receiver.recv_timeout(Duration::from_secs(120)).expect("a message")
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, i32> {
        self.next += 1;
        let id = RequestId::from(self.next);
        let request = Request { id: id.clone(), method: method.to_owned(), params };
        self.connection.sender.send(Message::Request(request)).expect("sent");
        loop {
            match self.receive() {
                Message::Response(response) if response.id == id => {
                    return response.response_result.map_err(|error| error.code);
                }
                Message::Notification(note) => self.notes.push(note),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    fn open(&self, uri: &str, text: &str) {
        let document = json!({"uri": uri, "languageId": "python", "version": 1, "text": text});
        self.tell("textDocument/didOpen", json!({"textDocument": document}));
    }

    fn change(&self, uri: &str, version: i32, text: &str) {
        let document = json!({"uri": uri, "version": version});
        let changes = json!([{"text": text}]);
        self.tell(
            "textDocument/didChange",
            json!({"textDocument": document, "contentChanges": changes}),
        );
    }

    /// The next diagnostics that the server publishes.
    fn diagnostics(&mut self) -> Value {
        let note = if self.notes.is_empty() {
            match self.receive() {
                Message::Notification(note) => note,
                other => panic!("unexpected: {other:?}"),
            }
        } else {
            self.notes.remove(0)
        };
        assert_eq!(note.method, "textDocument/publishDiagnostics", "{}", note.params);
        note.params
    }

    fn actions(&mut self, uri: &str, line: u32, only: Option<&str>) -> Vec<Value> {
        let place = json!({"line": line, "character": 2});
        let mut context = json!({"diagnostics": []});
        if let Some(only) = only {
            context["only"] = json!([only]);
        }
        let params = json!({
            "textDocument": {"uri": uri},
            "range": {"start": place, "end": place},
            "context": context,
        });
        let answer = self.ask("textDocument/codeAction", params).expect("an answer");
        answer.as_array().expect("a list").clone()
    }

    fn hover(&mut self, uri: &str, line: u32, character: u32) -> Value {
        let position = json!({"line": line, "character": character});
        let params = json!({"textDocument": {"uri": uri}, "position": position});
        self.ask("textDocument/hover", params).expect("an answer")
    }

    fn end(mut self) {
        assert_eq!(self.ask("shutdown", Value::Null), Ok(Value::Null));
        self.tell("exit", Value::Null);
        self.server.join().expect("no panic").expect("a clean end");
    }
}

/// The text with the edits of an action applied; each edit lies within one line.
fn applied(text: &str, action: &Value) -> String {
    let edits = action["edit"]["documentChanges"][0]["edits"].as_array().expect("edits");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for edit in edits {
        let (start, end) = (&edit["range"]["start"], &edit["range"]["end"]);
        assert_eq!(start["line"], end["line"]);
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        let (from, to) = (number(&start["character"]), number(&end["character"]));
        let new = edit["newText"].as_str().expect("text");
        lines[number(&start["line"])].replace_range(from..to, new);
    }
    lines.join("\n") + "\n"
}

#[test]
fn findings_come_and_go_with_the_text() {
    let (mut client, greeting) = Client::new(&["utf-16"]);
    assert_eq!(greeting["serverInfo"]["name"], "surefoot");
    assert_eq!(greeting["capabilities"]["positionEncoding"], "utf-16");
    let uri = "untitled:a.py";
    client.open(uri, BAD);
    let found = client.diagnostics();
    assert_eq!((&found["uri"], &found["version"]), (&json!(uri), &json!(1)));
    let diagnostic = &found["diagnostics"][0];
    assert_eq!(diagnostic["code"], "SF004");
    assert_eq!(diagnostic["severity"], 1);
    assert_eq!(diagnostic["range"]["start"], json!({"line": 3, "character": 0}));
    assert_eq!(diagnostic["range"]["end"], json!({"line": 3, "character": 8}));
    client.change(uri, 2, &BAD.replace("x.half()", "x = x.half()"));
    assert_eq!(client.diagnostics()["diagnostics"], json!([]));
    // A text that doesn't parse is a note, not an error.
    client.change(uri, 3, "import torch\nx = (\n");
    let broken = client.diagnostics();
    assert_eq!(broken["diagnostics"][0]["severity"], 4);
    assert!(broken["diagnostics"][0]["message"].as_str().is_some_and(|m| m.contains("syntax")));
    client.tell("textDocument/didClose", json!({"textDocument": {"uri": uri}}));
    assert_eq!(client.diagnostics()["diagnostics"], json!([]));
    client.end();
}

#[test]
fn quick_fixes_mend_silence_and_mend_everything() {
    let (mut client, _) = Client::new(&["utf-8", "utf-16"]);
    let uri = "untitled:a.py";
    client.open(uri, BAD);
    client.diagnostics();
    let actions = client.actions(uri, 3, None);
    let titles: Vec<&str> = actions.iter().filter_map(|action| action["title"].as_str()).collect();
    assert_eq!(titles.len(), 3, "{titles:?}");
    assert_eq!(applied(BAD, &actions[0]), BAD.replace("x.half()", "x = x.half()"));
    assert_eq!(actions[0]["isPreferred"], true);
    assert_eq!(applied(BAD, &actions[1]), BAD.replace("x.half()", "x.half()  # noqa: SF004"));
    assert_eq!(actions[2]["kind"], "source.fixAll.surefoot");
    assert_eq!(
        actions[2]["edit"]["documentChanges"][0]["edits"][0]["newText"],
        BAD.replace("x.half()", "x = x.half()")
    );
    assert_eq!(client.actions(uri, 3, Some("source.fixAll")).len(), 1);
    assert_eq!(client.actions(uri, 3, Some("quickfix")).len(), 2);
    assert_eq!(client.actions(uri, 3, Some("refactor")).len(), 0);
    assert_eq!(client.actions(uri, 0, Some("quickfix")).len(), 0);
    client.end();
}

#[test]
fn hovering_explains_the_rule() {
    let (mut client, _) = Client::new(&[]);
    let uri = "untitled:a.py";
    client.open(uri, BAD);
    client.diagnostics();
    let hover = client.hover(uri, 3, 3);
    let text = hover["contents"]["value"].as_str().expect("text");
    assert!(text.contains("# SF004: dropped-move") && text.contains("## Why"), "{text}");
    assert_eq!(client.hover(uri, 2, 3), Value::Null);
    assert_eq!(client.hover("untitled:other.py", 0, 0), Value::Null);
    client.end();
}

#[test]
fn positions_are_counted_as_agreed() {
    for (encodings, unit, column) in [(&["utf-8"][..], "utf-8", 10), (&["utf-16"], "utf-16", 7)] {
        let (mut client, greeting) = Client::new(encodings);
        assert_eq!(greeting["capabilities"]["positionEncoding"], unit);
        let text = "import torch\nx = torch.zeros(3)\n'é𝄞'; x.half()\n";
        client.open("untitled:a.py", text);
        let found = client.diagnostics();
        let start = &found["diagnostics"][0]["range"]["start"];
        assert_eq!(start, &json!({"line": 2, "character": column}));
        let actions = client.actions("untitled:a.py", 2, Some("quickfix"));
        assert!(actions.is_empty(), "the place asked about is before the finding");
        client.end();
    }
}

#[test]
fn settings_of_the_project_decide_and_are_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("pyproject.toml");
    fs::write(&settings, "[tool.surefoot]\nignore = [\"SF004\"]\n").expect("written");
    let uri = format!("file://{}/a.py", folder.path().display());
    let (mut client, _) = Client::new(&[]);
    client.open(&uri, BAD);
    assert_eq!(client.diagnostics()["diagnostics"], json!([]));
    fs::write(&settings, "[tool.surefoot]\n").expect("written");
    let saved = json!({"uri": format!("file://{}", settings.display())});
    client.tell("textDocument/didSave", json!({"textDocument": saved}));
    assert_eq!(client.diagnostics()["diagnostics"][0]["code"], "SF004");
    // Settings that can't be read are named, and the defaults apply.
    fs::write(&settings, "[tool.surefoot]\nselekt = 1\n").expect("written");
    client.tell("workspace/didChangeWatchedFiles", json!({"changes": []}));
    match client.receive() {
        Message::Notification(note) => {
            assert_eq!(note.method, "window/showMessage");
            assert!(note.params["message"].as_str().is_some_and(|text| text.contains("selekt")));
        }
        other => panic!("unexpected: {other:?}"),
    }
    assert_eq!(client.diagnostics()["diagnostics"][0]["code"], "SF004");
    client.end();
}

#[test]
fn other_languages_methods_and_ends_are_answered_as_the_protocol_says() {
    let (mut client, _) = Client::new(&[]);
    let json_file =
        json!({"uri": "file:///a.json", "languageId": "json", "version": 1, "text": BAD});
    client.tell("textDocument/didOpen", json!({"textDocument": json_file}));
    client.tell("$/unknown", json!({}));
    const METHOD_NOT_FOUND: i32 = -32601;
    const INVALID_PARAMS: i32 = -32602;
    assert_eq!(client.ask("textDocument/rename", json!({})), Err(METHOD_NOT_FOUND));
    assert_eq!(client.ask("textDocument/hover", json!({"x": 1})), Err(INVALID_PARAMS));
    assert!(client.notes.is_empty());
    // An exit without a shutdown is an error, as the protocol wants.
    client.tell("exit", Value::Null);
    let ended = client.server.join().expect("no panic");
    assert!(matches!(ended, Err(ServeError::Closed)), "{ended:?}");
}

/// Prints how long a change takes from the client's message to the diagnostics. The limit is far above
/// what is measured (see BENCHMARKS.md), since tests run on busy machines.
#[test]
fn a_change_is_checked_soon() {
    let mut text = String::from("import torch\nfrom torch import nn\n");
    for n in 0..40 {
        text.push_str(&format!(
            "\n\ndef train_{n}(model, loader, optimizer, criterion, device):\n    model.train()\n    \
             for x, y in loader:\n        x, y = x.to(device), y.to(device)\n        \
             optimizer.zero_grad()\n        loss = criterion(model(x), y)\n        \
             loss.backward()\n        optimizer.step()\n"
        ));
    }
    let (mut client, _) = Client::new(&[]);
    client.open("untitled:a.py", &text);
    client.diagnostics();
    let mut times: Vec<Duration> = (0..100)
        .map(|n| {
            let changed = format!("{text}# {n}\n");
            let start = Instant::now();
            client.change("untitled:a.py", n + 2, &changed);
            assert_eq!(client.diagnostics()["diagnostics"], json!([]));
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("{} lines: median {:?}, worst {:?}", text.lines().count(), times[50], times[99]);
    assert!(times[50] < Duration::from_secs(1));
    client.end();
}
