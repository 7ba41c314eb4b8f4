//! `surefoot lsp` over stdin and stdout, as an editor starts it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

const BAD: &str = "import torch\n\nx = torch.zeros(3)\nx.half()\n";

struct Editor {
    server: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Editor {
    fn start() -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_surefoot"))
            .arg("lsp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = server.stdin.take().expect("stdin");
        let output = BufReader::new(server.stdout.take().expect("stdout"));
        Self { server, input, output }
    }

    fn send(&mut self, message: Value) {
        let text = message.to_string();
        write!(self.input, "Content-Length: {}\r\n\r\n{text}", text.len()).expect("sent");
        self.input.flush().expect("sent");
    }

    /// The next message; nothing but framed messages may be on stdout.
    fn receive(&mut self) -> Value {
        let mut length = 0;
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("a line"), 0, "the server is gone");
            match line.trim_end().strip_prefix("Content-Length: ") {
                Some(number) => length = number.parse().expect("a number"),
                None if line == "\r\n" => break,
                None => panic!("not a header: {line:?}"),
            }
        }
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).expect("a body");
        serde_json::from_slice(&body).expect("JSON")
    }

    fn greet(&mut self) -> Value {
        let params = json!({"processId": null, "rootUri": null, "capabilities": {}});
        self.send(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}));
        let greeting = self.receive();
        self.send(json!({"jsonrpc": "2.0", "method": "initialized", "params": {}}));
        greeting
    }

    fn end(mut self) -> (ExitStatus, String) {
        drop(self.input);
        let mut errors = String::new();
        self.server.stderr.take().expect("stderr").read_to_string(&mut errors).expect("UTF-8");
        (self.server.wait().expect("it ends"), errors)
    }
}

#[test]
fn an_editor_is_served_from_greeting_to_exit() {
    let mut editor = Editor::start();
    let greeting = editor.greet();
    assert_eq!(greeting["result"]["capabilities"]["hoverProvider"], true);
    let document =
        json!({"uri": "untitled:a.py", "languageId": "python", "version": 7, "text": BAD});
    let opened = json!({"textDocument": document});
    editor.send(json!({"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": opened}));
    let found = editor.receive();
    assert_eq!(found["method"], "textDocument/publishDiagnostics");
    assert_eq!(found["params"]["version"], 7);
    assert_eq!(found["params"]["diagnostics"][0]["code"], "SF004");
    let place = json!({"line": 3, "character": 1});
    let asked = json!({"textDocument": {"uri": "untitled:a.py"}, "position": place});
    editor
        .send(json!({"jsonrpc": "2.0", "id": 2, "method": "textDocument/hover", "params": asked}));
    let hover = editor.receive();
    let text = hover["result"]["contents"]["value"].as_str().expect("text");
    assert!(text.contains("SF004: dropped-move"), "{text}");
    editor.send(json!({"jsonrpc": "2.0", "id": 3, "method": "shutdown"}));
    assert_eq!(editor.receive()["result"], Value::Null);
    editor.send(json!({"jsonrpc": "2.0", "method": "exit"}));
    let (status, errors) = editor.end();
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn an_editor_that_leaves_ends_the_server_with_2() {
    let mut editor = Editor::start();
    editor.greet();
    let (status, errors) = editor.end();
    assert_eq!(status.code(), Some(2));
    assert!(errors.contains("closed the connection"), "{errors}");
}
