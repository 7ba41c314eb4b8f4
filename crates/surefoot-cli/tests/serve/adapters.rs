//! Several adapters of one model, each under a name of its own: every answer is the one that `generate --adapter` gives, however
//! the requests are mixed.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::model_folders;

use crate::served::{Server, fixture, generated, program};

const NAMES: [&str; 3] = ["llama-tiny", "first", "second"];

/// Two adapters for llama-tiny: the first one of some projections of the blocks, the second one of others and of the head.
fn adapters(folder: &Path) -> [PathBuf; 2] {
    let (hidden, kv, inner, vocab) = (64, 32, 176, 256);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for layer in 0..3 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        first.push((name("self_attn.q_proj"), hidden, hidden));
        first.push((name("mlp.down_proj"), inner, hidden));
        second.push((name("self_attn.q_proj"), hidden, hidden));
        second.push((name("self_attn.v_proj"), hidden, kv));
    }
    second.push(("lm_head".to_owned(), hidden, vocab));
    let folders = [folder.join("first"), folder.join("two")];
    model_folders::adapter(&folders[0], &first, 1);
    model_folders::adapter(&folders[1], &second, 2);
    folders
}

/// A server of llama-tiny with both adapters.
fn server(folders: &[PathBuf; 2], options: &[&str]) -> Server {
    let first = folders[0].display().to_string();
    let second = format!("second={}", folders[1].display());
    let mut all = vec!["--adapter", &first, "--adapter", &second];
    all.extend_from_slice(options);
    Server::start(&fixture("llama-tiny"), &all)
}

/// What `generate` says with each of the three models, prompt by prompt.
fn expected(folders: &[PathBuf; 2], prompts: &[String]) -> Vec<[String; 3]> {
    let model = fixture("llama-tiny");
    let said = |prompt: &str, options: &[&str]| {
        let mut all = vec!["--max-tokens", "24"];
        all.extend_from_slice(options);
        generated(&model, prompt, &all)["text"].as_str().unwrap().to_owned()
    };
    let with =
        |prompt: &str, at: usize| said(prompt, &["--adapter", &folders[at].display().to_string()]);
    prompts.iter().map(|prompt| [said(prompt, &[]), with(prompt, 0), with(prompt, 1)]).collect()
}

/// Short prompts, and long ones that begin alike and join in parts.
fn prompts() -> Vec<String> {
    let beginning = "The device has memory for the tensor. ".repeat(10);
    let long = (0..2).map(|number| format!("{beginning}Number {number}."));
    ["Hello", "One and two", "x"].map(str::to_owned).into_iter().chain(long).collect()
}

/// Asks a server for all prompts with all models at once, some times, and compares.
fn ask_mixed(server: &Server, prompts: &[String], expected: &[[String; 3]]) {
    std::thread::scope(|scope| {
        for client in 0..6 {
            scope.spawn(move || {
                for turn in 0..prompts.len() * NAMES.len() {
                    let which = (turn * 7 + client * 5) % (prompts.len() * NAMES.len());
                    let (prompt, name) = (which / NAMES.len(), which % NAMES.len());
                    let body = json!({
                        "model": NAMES[name], "prompt": prompts[prompt], "max_tokens": 24,
                        "temperature": 0,
                    });
                    let answer = server.post("/v1/completions", body).good();
                    assert_eq!(answer["model"], NAMES[name]);
                    let text = answer["choices"][0]["text"].as_str().unwrap();
                    assert_eq!(text, expected[prompt][name], "{} {prompt}", NAMES[name]);
                }
            });
        }
    });
}

#[test]
fn requests_of_different_adapters_run_together_and_each_gets_its_own_answer() {
    let folder = tempfile::tempdir().unwrap();
    let folders = adapters(folder.path());
    let prompts = prompts();
    let expected = expected(&folders, &prompts);
    assert!(
        expected.iter().any(|[base, first, second]| base != first && first != second),
        "the adapters change what is said: {expected:?}"
    );
    let server = server(&folders, &[]);
    ask_mixed(&server, &prompts, &expected);
    let reused = server.metric("surefoot_tokens_total{kind=\"reused\"}");
    assert!(reused > 0.0, "prompts that begin alike are run once for each model");
}

#[test]
fn faults_and_streamed_weights_change_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let folders = adapters(folder.path());
    let prompts = prompts();
    let expected = expected(&folders, &prompts);
    let server = server(
        &folders,
        &[
            "--drill",
            "out_of_memory:op=decode,step=9",
            "--drill",
            "command_buffer:op=decode,step=20",
        ],
    );
    ask_mixed(&server, &prompts, &expected);
}

#[test]
fn the_models_are_listed_and_others_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folders = adapters(folder.path());
    let server = server(&folders, &[]);
    let listed = server.get("/v1/models").good();
    let listed = listed["data"].as_array().unwrap();
    let names: Vec<&str> = listed.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);
    assert_eq!(listed[2]["parent"], "llama-tiny");
    assert_eq!(server.get("/v1/models/second").good()["id"], "second");
    let refused =
        server.post("/v1/completions", json!({"model": "third", "prompt": "x", "max_tokens": 1}));
    refused.is_error(404, Some("model_not_found"));
    for name in NAMES {
        assert!(refused.body.contains(&format!("'{name}'")), "{}", refused.body);
    }
}

/// The largest difference between two answers' vectors. Batches of other sizes add up in another order.
fn farthest(a: &Value, b: &Value) -> f64 {
    let numbers = |answer: &Value| -> Vec<f64> {
        let vectors = answer.as_array().unwrap().iter();
        vectors
            .flat_map(|one| one["embedding"].as_array().unwrap().clone())
            .map(|number| number.as_f64().unwrap())
            .collect()
    };
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn embeddings_are_those_of_the_adapter_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folders = adapters(folder.path());
    let server = server(&folders, &[]);
    let embedded = |name: &str| -> Value {
        let body = json!({"model": name, "input": ["Hello there", "Hello again"]});
        server.post("/v1/embeddings", body).good()["data"].clone()
    };
    let alone = NAMES.map(embedded);
    // The second adapter changes the last hidden state by its projections of the blocks.
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        assert!(farthest(&alone[one], &alone[other]) > 1e-3);
    }
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (embedded, alone) = (&embedded, &alone);
            scope.spawn(move || {
                for turn in 0..6 {
                    let at = (client + turn) % NAMES.len();
                    let far = farthest(&embedded(NAMES[at]), &alone[at]);
                    assert!(far < 1e-5, "{}: {far}", NAMES[at]);
                }
            });
        }
    });
}

#[test]
fn names_that_mean_two_models_are_refused_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let folders = adapters(folder.path());
    let output = program()
        .arg("serve")
        .arg(fixture("llama-tiny"))
        .args(["--port", "0", "--adapter"])
        .arg(format!("same={}", folders[0].display()))
        .arg("--adapter")
        .arg(format!("same={}", folders[1].display()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("both called 'same'") && told.contains("--adapter NAME=DIR"), "{told}");
}
