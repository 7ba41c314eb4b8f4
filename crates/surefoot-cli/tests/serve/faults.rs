//! Devices that fail under load, and requests that fail alone.

use std::path::Path;

use serde_json::json;

use crate::served::{Server, fixture, generated};

#[test]
fn a_drill_under_load_loses_nothing_and_changes_nothing() {
    let model = fixture("gpt2-tiny");
    let prompts: Vec<String> = (0..12).map(|number| "tensor ".repeat(1 + number % 5)).collect();
    let expected: Vec<String> = prompts
        .iter()
        .map(|prompt| {
            let alone = generated(&model, prompt, &["--max-tokens", "60"]);
            alone["text"].as_str().unwrap().to_owned()
        })
        .collect();
    // Kinds that are answered by reclaiming and by splitting, and one that has no rung. The two faults
    // of a command buffer must not strike at once, which would cost the device: the first one is
    // the very first batch of texts.
    let drill = "command_buffer:op=decode,step=1,count=1;out_of_memory:op=decode,step=3,count=3;\
                 numeric:op=decode,step=9,count=1;command_buffer:op=embed,step=0,count=1;\
                 out_of_memory:op=embed,step=4,count=2;numeric:op=embed,step=11,count=1";
    let server = Server::start(&model, &["--drill", drill, "--max-sequences", "8"]);
    let before = server.post("/v1/embeddings", json!({"input": prompts})).good();
    std::thread::scope(|scope| {
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..6 {
                    let body = json!({"prompt": prompt, "max_tokens": 60, "temperature": 0});
                    assert_eq!(&server.complete(body), std::slice::from_ref(expected));
                    server.post("/v1/embeddings", json!({"input": prompt})).good();
                }
            });
        }
    });
    let after = server.post("/v1/embeddings", json!({"input": prompts})).good();
    for (before, after) in
        before["data"].as_array().unwrap().iter().zip(after["data"].as_array().unwrap())
    {
        for (a, b) in before["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .zip(after["embedding"].as_array().unwrap())
        {
            assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-5);
        }
    }
    // The last ones strike the tenth and the twelfth try, which a fast machine may not have had.
    for _ in 0..12 {
        server.complete(json!({"prompt": "x", "max_tokens": 2}));
    }
    assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 0.0);
    assert_eq!(server.metric("surefoot_faults_total{kind=\"out_of_memory\"}"), 5.0);
    assert_eq!(server.metric("surefoot_faults_total{kind=\"command_buffer\"}"), 2.0);
    assert_eq!(server.metric("surefoot_faults_total{kind=\"numeric\"}"), 2.0);
    assert!(server.metric("surefoot_rungs_total{rung=\"split\"}") >= 2.0);
    assert!(server.metric("surefoot_rungs_total{rung=\"reclaim\"}") >= 2.0);
}

#[test]
fn issue_14_a_fault_at_any_moment_of_decoding_changes_no_answer() {
    let model = fixture("llama-tiny");
    let alone = Server::start(&model, &[]);
    let body = |number: usize| {
        let prompt: Vec<usize> = (0..3 + number).map(|at| (at * 7 + number) % 90).collect();
        json!({"prompt": prompt, "max_tokens": 40, "seed": number, "temperature": 0.8})
    };
    let expected: Vec<_> = (0..6).map(|number| alone.complete(body(number))).collect();
    // In turn with the first prompts, in the middle and late, at the first and at later points.
    for moment in ["at=before", "at=during", "at=during,nth=9", "at=after"] {
        let strike =
            |kind: &str, step: usize| format!("{kind}:op=decode,{moment},step={step},count=1");
        let drill = [
            strike("out_of_memory", 0),
            strike("command_buffer", 3),
            strike("out_of_memory", 9),
            strike("numeric", 20),
        ]
        .join(";");
        let server = Server::start(&model, &["--drill", &drill, "--max-sequences", "4"]);
        std::thread::scope(|scope| {
            for (number, expected) in expected.iter().enumerate() {
                let (server, body) = (&server, &body);
                scope.spawn(move || {
                    // Streamed, so that a token that is sent twice shows.
                    let events = server.events("/v1/completions", body(number));
                    let text = |event: &serde_json::Value| {
                        event["choices"][0]["text"].as_str().unwrap().to_owned()
                    };
                    let text: String = events.iter().map(text).collect();
                    assert_eq!(text, expected[0], "{moment}");
                });
            }
        });
        let faults = server.metric("surefoot_faults_total{kind=\"out_of_memory\"}");
        assert!(faults >= 1.0, "{moment}: no fault was made");
        assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 0.0);
    }
}

/// A model in which one token's embedding is not a number.
fn poisoned(fixture_name: &str, table: &str, token: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fixture(fixture_name)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("model.safetensors");
    poison(&path, table, token);
    folder
}

fn poison(path: &Path, table: &str, token: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let (start, cols) = (&header[table]["data_offsets"][0], &header[table]["shape"][1]);
    let cols = cols.as_u64().unwrap() as usize;
    let at = 8 + length + start.as_u64().unwrap() as usize + token * cols * 4;
    for number in bytes[at..at + cols * 4].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_sequence_that_is_not_a_number_fails_alone() {
    let model = poisoned("llama-tiny", "model.embed_tokens.weight", 77);
    let server = Server::start(model.path(), &["--max-sequences", "4"]);
    let body = |token: u32| json!({"prompt": [5, token, 9], "max_tokens": 30, "temperature": 0});
    let expected: Vec<_> = (0..8).map(|token| server.complete(body(token))).collect();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for _ in 0..5 {
                    if thread % 2 == 0 {
                        server.post("/v1/completions", body(77)).is_error(500, Some("not_finite"));
                    }
                    assert_eq!(server.complete(body(thread)), expected[thread as usize]);
                }
            });
        }
    });
    let mut streamed = body(77);
    streamed["stream"] = json!(true);
    let told = server.post("/v1/completions", streamed);
    assert!(told.body.contains("\"code\":\"not_finite\""), "{}", told.body);
    assert!(!told.body.contains("[DONE]"));
}

#[test]
fn a_text_that_is_not_a_number_fails_alone() {
    let model = poisoned("bert-tiny", "embeddings.word_embeddings.weight", 77);
    let server = Server::start(model.path(), &[]);
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..10 {
                    if thread % 2 == 0 {
                        let poisoned = json!({"input": [2, 77, 3]});
                        server.post("/v1/embeddings", poisoned).is_error(500, Some("not_finite"));
                    }
                    server.post("/v1/embeddings", json!({"input": [2, 10 + thread, 3]})).good();
                }
            });
        }
    });
}

#[test]
fn when_no_device_is_left_requests_fail_and_the_health_says_so() {
    let drill = "device_lost:op=embed,step=1,count=1";
    let server = Server::start(&fixture("gpt2-tiny"), &["--drill", drill]);
    server.post("/v1/embeddings", json!({"input": "x"})).good();
    server.post("/v1/embeddings", json!({"input": "x"})).is_error(503, Some("device_fault"));
    server.post("/v1/completions", json!({"prompt": "x"})).is_error(503, Some("device_fault"));
    for probe in ["/health", "/live", "/ready"] {
        server.get(probe).is_error(503, None);
    }
}

#[test]
fn issue_17_a_page_that_is_watched_does_not_silence_the_faults_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("stderr");
    let drill = "out_of_memory:op=embed,step=0,count=1";
    let server =
        Server::start_with(&fixture("gpt2-tiny"), &["--watch", "--drill", drill], |command| {
            command.stderr(std::fs::File::create(&log).unwrap());
        });
    server.post("/v1/embeddings", json!({"input": "x"})).good();
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(told.contains("watch it at http://"), "{told}");
    assert!(told.contains("embed on cpu: out_of_memory"), "{told}");
}
