//! Prompts that begin alike, and long prompts that join in parts while others are decoded: every answer is
//! the one that `generate` gives.

use serde_json::json;

use crate::served::{Server, fixture, generated};

/// Prompts of the same long beginning, and the texts that `generate` gives for them.
fn alike(model: &std::path::Path, count: usize) -> Vec<(String, String)> {
    let beginning = "The device has memory for the tensor. ".repeat(10);
    (0..count)
        .map(|number| {
            let prompt =
                format!("{beginning}Number {} is {}.", number % 4, "so ".repeat(number % 3));
            let alone = generated(model, &prompt, &["--max-tokens", "30"]);
            (prompt, alone["text"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn a_beginning_is_run_once_and_changes_no_answer() {
    for name in ["llama-tiny", "qwen2-tiny"] {
        let model = fixture(name);
        let server = Server::start(&model, &[]);
        let prompts = alike(&model, 6);
        let length =
            server.post("/tokenize", json!({"prompt": prompts[0].0})).good()["count"].clone();
        assert!((130..200).contains(&length.as_u64().unwrap()), "{name}: {length} tokens");
        for (prompt, expected) in &prompts {
            let body = json!({"prompt": prompt, "max_tokens": 30, "temperature": 0});
            assert_eq!(&server.complete(body)[0], expected, "{name}");
        }
        // The usage of an answer says it too: of a prompt that is new, and of one that was there.
        for (prompt, expected) in [
            ("Something else, and long enough for pages. ".repeat(3), 0..1),
            (prompts[0].0.clone(), 100..200),
        ] {
            let body = json!({"prompt": prompt, "max_tokens": 2, "n": 2});
            let usage = server.post("/v1/completions", body.clone()).good()["usage"].clone();
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            assert!(expected.contains(&cached), "{name}: {usage}");
            assert!(cached < usage["prompt_tokens"].as_u64().unwrap(), "{name}: {usage}");
        }
        let reused = server.metric("surefoot_tokens_total{kind=\"reused\"}");
        assert!(reused >= 5.0 * 100.0, "{name}: {reused} tokens were not run again");
    }
}

#[test]
fn long_prompts_join_in_parts_between_tokens_and_faults_change_nothing() {
    let model = fixture("llama-tiny");
    let prompts = alike(&model, 8);
    let short: Vec<(String, String)> = ["The", "a tensor", "device"]
        .iter()
        .map(|prompt| {
            let alone = generated(&model, prompt, &["--max-tokens", "120"]);
            ((*prompt).to_owned(), alone["text"].as_str().unwrap().to_owned())
        })
        .collect();
    for moment in ["at=before", "at=during,nth=4", "at=after"] {
        let strike =
            |kind: &str, step: usize| format!("{kind}:op=decode,{moment},step={step},count=1");
        let drill = [
            strike("out_of_memory", 1),
            strike("command_buffer", 5),
            strike("out_of_memory", 12),
            strike("numeric", 25),
        ]
        .join(";");
        // Passes of few tokens, so that each long prompt has several parts.
        let options = ["--drill", &drill, "--max-sequences", "6", "--pass-tokens", "48"];
        let server = Server::start(&model, &options);
        std::thread::scope(|scope| {
            for (prompt, expected) in
                short.iter().map(|one| (one, 120)).map(|((p, e), n)| (p, (e, n)))
            {
                let server = &server;
                scope.spawn(move || {
                    let (expected, count) = expected;
                    let body = json!({"prompt": prompt, "max_tokens": count, "temperature": 0});
                    assert_eq!(&server.complete(body)[0], expected, "{moment}");
                });
            }
            for (prompt, expected) in &prompts {
                let server = &server;
                scope.spawn(move || {
                    let body = json!({"prompt": prompt, "max_tokens": 30, "temperature": 0});
                    assert_eq!(&server.complete(body)[0], expected, "{moment}");
                });
            }
        });
        assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 0.0);
    }
}
