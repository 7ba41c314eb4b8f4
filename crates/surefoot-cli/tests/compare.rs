//! `surefoot compare` as people run it: folders, fingerprints, endpoints.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod changed;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

use changed::{copy, fingerprint, fixture, json, surefoot};
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};
use testkit::model_folders;

#[test]
fn the_same_folder_is_the_same_in_every_way_it_can_be_run() {
    let model = fixture("llama-tiny");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama.json");
    fingerprint(&model, &file, &[]);
    for options in [&[][..], &["--precision", "bf16"], &["--drill", "out_of_memory:count=2"]] {
        let found = surefoot("compare").arg(&file).arg(&model).args(options).arg("--json").assert();
        let found = json(found.code(0));
        assert_eq!(found["comparison"]["decision"]["verdict"], "SAME", "{options:?}");
        let rounding = options.contains(&"bf16");
        assert_eq!(found["comparison"]["class"], if rounding { "rounding" } else { "arithmetic" });
    }
    // Two folders, and challenges that nobody knew before.
    let two = || json(surefoot("compare").args([&model, &model]).arg("--json").assert().code(0));
    assert_ne!(two()["commitment"], two()["commitment"]);
}

#[test]
fn a_model_that_does_not_fit_is_streamed_and_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = model_folders::llama(folder.path(), 96 << 20, model_folders::FolderDtype::F32);
    let (file, transcript) = (folder.path().join("a.json"), folder.path().join("t.json"));
    fingerprint(folder.path(), &file, &["--challenges", "20", "--tokens", "4"]);
    let budget = format!("{}MiB", (bytes >> 20) * 3 / 4 + 40);
    surefoot("compare")
        .arg(&file)
        .arg(folder.path())
        .args(["--memory", &budget, "--out"])
        .arg(&transcript)
        .assert()
        .code(0);
    let written: Value = serde_json::from_slice(&std::fs::read(transcript).unwrap()).unwrap();
    assert_eq!(written["reference"]["run"]["placement"], "resident");
    assert_eq!(written["candidate"]["model"]["run"]["placement"], "mixed");
}

/// Noise is measured in several passes; all of them, and both models, stay within the budget.
#[cfg(target_os = "linux")]
#[test]
fn two_models_are_compared_within_the_memory_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    for folder in [&one, &other] {
        std::fs::create_dir(folder).unwrap();
    }
    let bytes = model_folders::llama(&one, 96 << 20, model_folders::FolderDtype::F32);
    model_folders::llama(&other, 96 << 20, model_folders::FolderDtype::F32);
    let budget = (bytes >> 20) * 3 / 4 + 64;
    let journal = folder.path().join("journal.jsonl");
    surefoot("compare")
        .args([&one, &other])
        .args(["--challenges", "20", "--tokens", "4", "--memory", &format!("{budget}MiB")])
        .arg("--journal")
        .arg(&journal)
        .assert()
        .code(0)
        .stdout(contains("files: the same, byte by byte"));
    let events: Vec<Value> = std::fs::read_to_string(journal)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let peaks: Vec<u64> =
        events.iter().filter_map(|event| event["context"]["peak_bytes"].as_u64()).collect();
    assert!(peaks.len() >= 8, "{events:?}");
    assert!(peaks.iter().all(|peak| *peak <= budget << 20), "{peaks:?} of {budget} MiB");
    // One footing for both models and all passes.
    let selections = events.iter().filter(|event| event["kind"] == "selection");
    assert_eq!(selections.count(), 1);
}

/// Issue 17: a change that no challenge meets was not mentioned.
#[test]
fn a_changed_row_that_no_challenge_meets_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (model, other) = (fixture("llama-tiny"), folder.path().join("other"));
    let prompts = folder.path().join("prompts.txt");
    std::fs::write(&prompts, "a\n".repeat(32)).unwrap();
    let at = std::cell::Cell::new(0_usize);
    // The row of token 200, which is in none of the prompts: rows have 64 numbers.
    copy(&model, &other, "model.embed_tokens.weight", |x| {
        let number = at.replace(at.get() + 1);
        if number / 64 == 200 { x + 1.0 } else { x }
    });
    let compare = |options: &[&str]| {
        let mut command = surefoot("compare");
        command.args([&model, &other]).arg("--prompts").arg(&prompts).args(options);
        command.assert().code(0)
    };
    compare(&[]).stdout(
        contains("SAME")
            .and(contains("files: model.safetensors differ; the weights differ in 1 tensor"))
            .and(contains("model.embed_tokens.weight: 1 of 256 rows differ")),
    );
    let files = json(compare(&["--json"]))["files"].clone();
    assert_eq!(files["same"], false);
    assert_eq!(files["differing_tensors"][0]["name"], "model.embed_tokens.weight");
    assert_eq!(files["differing_tensors"][0]["rows"], 1);
    surefoot("compare")
        .args([&model, &model])
        .assert()
        .code(0)
        .stdout(contains("files: the same, byte by byte"));
}

#[test]
fn a_changed_layer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (model, other) = (fixture("llama-tiny"), folder.path().join("other"));
    copy(&model, &other, "model.layers.1.mlp.down_proj.weight", |x| x * 1.01);
    surefoot("compare")
        .args([&model, &other])
        .assert()
        .code(1)
        .stdout(contains("DIFFERENT").and(contains("first diverging site: block 1")));
    let (from, to) = (folder.path().join("a.json"), folder.path().join("b.json"));
    fingerprint(&model, &from, &[]);
    fingerprint(&other, &to, &[]);
    surefoot("compare").args([&from, &to]).assert().code(1).stdout(contains("block 1"));
}

#[test]
fn another_seed_or_architecture_is_different() {
    surefoot("compare")
        .args([fixture("llama-tiny"), fixture("qwen2-tiny")])
        .assert()
        .code(1)
        .stdout(contains("first diverging site: embeddings"));
    surefoot("compare").args([fixture("llama-tiny"), fixture("gpt2-tiny")]).assert().code(1);
}

#[test]
fn too_few_challenges_leave_it_undecided() {
    surefoot("compare")
        .args([fixture("llama-tiny"), fixture("llama-tiny")])
        .args(["--challenges", "4"])
        .assert()
        .code(4)
        .stdout(contains("UNDECIDED after 4 of 4"));
}

#[test]
fn report_and_transcript_are_written_and_hold() {
    let folder = tempfile::tempdir().unwrap();
    let (page, transcript) = (folder.path().join("r.html"), folder.path().join("t.json"));
    surefoot("compare")
        .args([fixture("llama-tiny"), fixture("llama-tiny")])
        .arg("--html")
        .arg(&page)
        .arg("--out")
        .arg(&transcript)
        .assert()
        .success();
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("data-page=\"evidence\"") && page.contains("\"verdict\":\"SAME\""));
    surefoot("verify").arg(transcript).assert().success().stdout(contains("computed again: SAME"));
}

#[test]
fn what_can_not_be_compared_is_exit_two_and_never_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama-tiny");
    let refused = |sides: [&Path; 2], words: &str| {
        surefoot("compare")
            .args(sides)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(words.to_owned()));
    };
    let file = |name: &str, options: &[&str]| {
        let file = folder.path().join(name);
        fingerprint(&model, &file, options);
        file
    };
    let (one, other) = (file("1.json", &[]), file("2.json", &["--run-id", "other"]));
    refused([&one, &other], "different challenges");
    refused([&one, &file("3.json", &["--bits", "1024"])], "bits");
    refused([&one, &file("4.json", &["--sites", "auto"])], "lacks the site");
    // Another tokenizer: the same ids are other questions.
    let spoken = folder.path().join("spoken");
    copy(&model, &spoken, "model.norm.weight", |x| x);
    let tokenizer = std::fs::read_to_string(spoken.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    tokenizer["model"]["ignore_merges"] = json!(true);
    std::fs::write(spoken.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    refused([&one, &spoken], "different tokenizers");
    // A damaged fingerprint, one of another version, one that is none.
    let text = std::fs::read_to_string(&one).unwrap();
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, text.replacen("cpu", "gpu", 1)).unwrap();
    refused([&bad, &model], "damaged");
    std::fs::write(&bad, "{}").unwrap();
    refused([&bad, &model], "no seal");
    refused([&model, Path::new("/nowhere")], "doesn't exist");
    refused([Path::new("http://localhost:1"), &model], "can't be the reference");
    surefoot("compare").args([&one, &one]).args(["--alpha", "0"]).assert().code(2);
}

/// An endpoint that answers with what `answer` makes of a challenge's number.
struct Mock(String);

impl Mock {
    fn start(
        fingerprint: &Path,
        answer: impl Fn(usize, &Value) -> (u16, Value) + Send + 'static,
    ) -> Self {
        let document: Value = serde_json::from_slice(&std::fs::read(fingerprint).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut number = 0;
                let mut stream = stream.unwrap();
                while let Some((path, body)) = request(&mut stream) {
                    let (status, body) = if path.ends_with("/models") {
                        (200, json!({"data": [{"id": "mock"}]}))
                    } else {
                        let asked: Value = serde_json::from_slice(&body).unwrap();
                        assert_eq!(asked["max_tokens"], 1);
                        let all = document["challenges"]["sequences"].as_array().unwrap();
                        let known = all.iter().position(|ids| *ids == asked["prompt"]);
                        let (status, body) = answer(known.unwrap_or(number), &asked["prompt"]);
                        number += usize::from(status == 200);
                        (status, body)
                    };
                    let body = body.to_string();
                    write!(
                        stream,
                        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
                         content-length: {}\r\n\r\n{body}",
                        body.len()
                    )
                    .unwrap();
                }
            }
        });
        Self(url)
    }
}

fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, body))
}

/// The log-probabilities that a fingerprint has of a challenge.
fn logprobs(fingerprint: &Path) -> Vec<Vec<f32>> {
    let document: Value = serde_json::from_slice(&std::fs::read(fingerprint).unwrap()).unwrap();
    let of_challenge = |text: &Value| {
        let bytes = surefoot_verify::hex::decode(text.as_str().unwrap()).unwrap();
        bytes.chunks_exact(8).map(|b| f32::from_le_bytes(b[4..].try_into().unwrap())).collect()
    };
    document["next"].as_array().unwrap().iter().map(of_challenge).collect()
}

fn completion(top: &[f32]) -> Value {
    let top: serde_json::Map<String, Value> =
        top.iter().take(5).enumerate().map(|(at, p)| (format!("t{at}"), json!(p))).collect();
    json!({"choices": [{"text": "x", "logprobs": {"top_logprobs": [top]}}]})
}

#[test]
fn an_endpoint_is_compared_by_its_log_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (folder.path().join("own.json"), folder.path().join("other.json"));
    fingerprint(&fixture("llama-tiny"), &own, &[]);
    fingerprint(&fixture("qwen2-tiny"), &other, &[]);
    let compare = |answers: Vec<Vec<f32>>| {
        let mock = Mock::start(&own, move |number, _| (200, completion(&answers[number])));
        surefoot("compare").arg(&own).arg(&mock.0).assert()
    };
    compare(logprobs(&own)).code(0).stdout(contains("SAME").and(contains("weak evidence")));
    compare(logprobs(&other)).code(1).stdout(contains("DIFFERENT"));
}

#[test]
fn an_endpoint_without_log_probabilities_is_compared_by_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.json");
    fingerprint(&fixture("llama-tiny"), &own, &[]);
    let text =
        |_: usize, _: &Value| (200, json!({"choices": [{"text": "surely not", "logprobs": null}]}));
    // A fingerprint alone doesn't know how its tokens are spelt.
    let mock = Mock::start(&own, text);
    surefoot("compare").arg(&own).arg(&mock.0).assert().code(2).stderr(contains("tokenizer"));
    let mock = Mock::start(&own, text);
    surefoot("compare")
        .arg(fixture("llama-tiny"))
        .arg(&mock.0)
        .assert()
        .code(1)
        .stdout(contains("DIFFERENT").and(contains("weak evidence: 1 numbers")));
}

#[test]
fn an_endpoint_that_takes_no_token_ids_is_asked_in_text() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.json");
    fingerprint(&fixture("llama-tiny"), &own, &[]);
    let mock = Mock::start(&own, |_, prompt| {
        if prompt.is_string() {
            (200, completion(&[-0.1, -5.0]))
        } else {
            (400, json!({"error": {"message": "prompt must be a string"}}))
        }
    });
    // Texts that come back as other ids are not asked; what is asked shows another model.
    let prompts = folder.path().join("prompts.txt");
    let lines: Vec<String> = (0..24).map(|number| format!("question {number}")).collect();
    std::fs::write(&prompts, lines.join("\n")).unwrap();
    surefoot("compare")
        .arg(fixture("llama-tiny"))
        .arg(&mock.0)
        .arg("--prompts")
        .arg(&prompts)
        .assert()
        .code(1)
        .stdout(contains("DIFFERENT"));
}

#[test]
fn an_endpoint_that_is_none_is_exit_two() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.json");
    fingerprint(&fixture("llama-tiny"), &own, &["--challenges", "2"]);
    let refused = |url: &str, words: &str| {
        surefoot("compare")
            .arg(&own)
            .arg(url)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(words.to_owned()));
    };
    refused("http://127.0.0.1:1/v1", "doesn't answer");
    refused(&Mock::start(&own, |_, _| (500, json!({}))).0, "status 500");
    refused(&Mock::start(&own, |_, _| (200, json!([1, 2]))).0, "not an OpenAI completion");
}

/// `surefoot serve` of a fixture, with options, while `asked` runs with its base URL.
fn with_served<T>(model: &str, options: &[&str], asked: impl Fn(&str) -> T) -> T {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("surefoot"))
        .arg("serve")
        .arg(fixture(model))
        .args(["--port", "0", "--json"])
        .args(options)
        .env_remove("SUREFOOT_API_KEY")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    let url = told["url"].as_str().unwrap().trim_end_matches('/').to_owned();
    let base = if url.ends_with("/v1") { url } else { format!("{url}/v1") };
    let answer = asked(&base);
    child.kill().unwrap();
    child.wait().unwrap();
    answer
}

/// The real one: `surefoot serve` of the same model and of another.
#[test]
fn a_served_model_is_the_one_that_is_served() {
    for (served, code) in [("llama-tiny", 0), ("qwen2-tiny", 1)] {
        let compare =
            |base: &str| surefoot("compare").arg(fixture("llama-tiny")).arg(base).assert();
        with_served(served, &[], compare).code(code);
    }
}

/// Is what is served the Q4 of that model? Asked with the reference rounded in the same way, and in others.
#[test]
fn a_served_quantisation_is_told_from_others_by_its_log_probabilities() {
    for (served, claims) in
        [("q4", &[("q4", 0), ("q8", 1), ("as-stored", 1)][..]), ("q8", &[("q8", 0), ("q4", 1)])]
    {
        with_served("llama-tiny", &["--weights", served], |base| {
            for (claimed, code) in claims {
                let mut compare = surefoot("compare");
                compare.arg(fixture("llama-tiny")).arg(base).args(["--weights", claimed]);
                let run = compare.assert();
                let found = run.get_output().status.code();
                assert_eq!(found, Some(*code), "served {served}, said to be {claimed}");
            }
        });
    }
}
