//! A server that a test started, and how to talk to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::model_folders;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("surefoot"));
    command.env_remove("SUREFOOT_API_KEY");
    command
}

/// What `surefoot generate` gives, as JSON.
pub(crate) fn generated(model: &Path, prompt: &str, options: &[&str]) -> Value {
    let output =
        program().arg("generate").arg(model).arg(prompt).arg("--json").args(options).output();
    serde_json::from_slice::<Value>(&output.unwrap().stdout).unwrap()["completions"][0].clone()
}

/// A Llama that takes a few milliseconds a token, so that there is time to do something
/// meanwhile, with a tokenizer.
pub(crate) fn slow_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    model_folders::llama(folder.path(), 64 << 20, model_folders::FolderDtype::Bf16);
    std::fs::copy(
        fixture("llama-tiny").join("tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    folder
}

/// Kills a process at once, and waits until the last of its threads has ended: until then it may still take connections,
/// which break with it.
pub(crate) fn kill(pid: u32) {
    let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    let begun = Instant::now();
    loop {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let count = threads.map_or(0, Iterator::count);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if count <= 1 && (stat.is_empty() || stat.contains(") Z ")) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{pid} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) model: String,
    /// All that it said of itself at its start.
    pub(crate) told: Value,
    agent: ureq::Agent,
    key: Option<String>,
}

/// An answer: its status and its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: bool,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }

    /// The answer to what must have worked.
    pub(crate) fn good(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Checks the shape of an error.
    pub(crate) fn is_error(&self, status: u16, code: Option<&str>) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.json()["error"];
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert!(error["type"].is_string(), "{error}");
        let mut fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        fields.sort();
        assert_eq!(fields, ["code", "message", "param", "type"]);
        if let Some(code) = code {
            assert_eq!(error["code"], code, "{error}");
        }
        let again = error["code"] != "timeout";
        assert_eq!(self.retry_after, matches!(status, 429 | 503) && again);
    }
}

impl Server {
    pub(crate) fn start(model: &Path, options: &[&str]) -> Self {
        Self::start_with(model, options, |_| {})
    }

    pub(crate) fn start_with(
        model: &Path,
        options: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = program();
        command.arg("serve").arg(model).args(["--port", "0", "--json"]).args(options);
        prepare(&mut command);
        Self::of(command)
    }

    /// Starts the program by another one, whose first arguments `prepare` gives.
    #[cfg(unix)]
    pub(crate) fn start_by(
        starter: &str,
        model: &Path,
        options: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(starter);
        command.env_remove("SUREFOOT_API_KEY");
        prepare(&mut command);
        command.arg("serve").arg(model).args(["--port", "0", "--json"]).args(options);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).expect("the server tells its address");
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(120)))
            .build()
            .into();
        Self {
            child,
            url: told["url"].as_str().unwrap().to_owned(),
            model: told["model"].as_str().unwrap_or_default().to_owned(),
            told,
            agent,
            key: None,
        }
    }

    pub(crate) fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Posts text as it is.
    pub(crate) fn post_text(&self, path: &str, kind: &str, body: &str) -> Answer {
        let mut request =
            self.agent.post(format!("{}{path}", self.url)).header("Content-Type", kind);
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response = request.send(body).unwrap();
        Answer {
            status: response.status().as_u16(),
            retry_after: response.headers().contains_key("retry-after"),
            body: response.body_mut().read_to_string().unwrap(),
        }
    }

    /// Posts JSON, with the model's name if it has none.
    pub(crate) fn post(&self, path: &str, mut body: Value) -> Answer {
        if body.get("model").is_none() {
            body["model"] = json!(self.model);
        }
        self.post_text(path, "application/json", &body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        let call = || {
            let mut request = self.agent.get(format!("{}{path}", self.url));
            if let Some(key) = &self.key {
                request = request.header("Authorization", format!("Bearer {key}"));
            }
            request.call()
        };
        // A connection that was kept may have been closed since, after a body that was refused: clients ask again then.
        let mut response = call().or_else(|_| call()).unwrap();
        Answer {
            status: response.status().as_u16(),
            retry_after: response.headers().contains_key("retry-after"),
            body: response.body_mut().read_to_string().unwrap(),
        }
    }

    /// The texts of a completion's choices.
    pub(crate) fn complete(&self, body: Value) -> Vec<String> {
        let answer = self.post("/v1/completions", body).good();
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    }

    /// The events of a stream, without the last one, which must be the end.
    pub(crate) fn events(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = json!(true);
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let mut events: Vec<&str> = answer
            .body
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?}")))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Opens a connection and sends `bytes` on it.
    pub(crate) fn send(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    }

    /// Opens a connection and sends a request on it.
    pub(crate) fn open(&self, path: &str, mut body: Value) -> TcpStream {
        body["model"] = json!(self.model);
        let body = body.to_string();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    /// A figure of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").body;
        let family = name.split('{').next().unwrap();
        let family = ["_total", "_sum", "_count", "_bucket"]
            .iter()
            .find_map(|end| family.strip_suffix(end))
            .unwrap_or(family);
        assert!(metrics.contains(&format!("# TYPE {family} ")), "there is no {name}");
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    /// Waits until a figure is at least `least`.
    pub(crate) fn wait_for(&self, name: &str, least: f64) {
        let begun = Instant::now();
        while self.metric(name) < least {
            assert!(begun.elapsed() < Duration::from_secs(60), "{name} stays below {least}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads from a stream until `count` events have come.
pub(crate) fn read_events(stream: &mut TcpStream, count: usize) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while text.matches("data: ").count() < count {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended early: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}
