//! How likely the tokens of prompts are: `echo` with `logprobs`, as evaluation harnesses ask for it.

use serde_json::{Value, json};

use crate::served::{Server, fixture, generated};

fn logprobs(answer: &Value) -> Vec<Option<f64>> {
    let list = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    list.iter().map(Value::as_f64).collect()
}

#[test]
fn a_prompt_is_rated_as_its_tokens_are_when_they_are_generated() {
    for name in ["gpt2-tiny", "llama-tiny", "qwen2-tiny"] {
        let model = fixture(name);
        // Few sequences, so that a prompt is rated in parts.
        let server = Server::start(&model, &["--max-sequences", "4"]);
        let prompt = "The tensor of the device";
        let tokens = server.post("/tokenize", json!({"prompt": prompt})).good()["tokens"].clone();
        let alone = generated(&model, prompt, &["--max-tokens", "12"]);
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2});
        let said = server.post("/v1/completions", body).good();
        let mut all = tokens.as_array().unwrap().clone();
        let before = all.len();
        all.extend(alone["tokens"].as_array().unwrap().clone());
        let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 2});
        let rated = server.post("/v1/completions", body.clone()).good();
        let (of_prompt, of_answer) = (logprobs(&rated), logprobs(&said));
        assert_eq!(of_prompt.len(), all.len(), "{name}");
        assert_eq!(of_prompt[0], None, "nothing is before the first token");
        assert_eq!(rated["choices"][0]["logprobs"]["top_logprobs"][0], Value::Null);
        assert!(of_prompt[1..].iter().all(|rating| rating.is_some_and(|rating| rating < 0.0)));
        assert_eq!(of_answer.len(), 12);
        for (a, b) in of_prompt[before..].iter().zip(&of_answer) {
            assert!((a.unwrap() - b.unwrap()).abs() < 1e-3, "{name}: {a:?} and {b:?}");
        }
        assert_eq!(rated["choices"][0]["finish_reason"], "length");
        assert_eq!(rated["usage"]["completion_tokens"], 0);
        // Greedy tokens are the most likely ones.
        let top = &rated["choices"][0]["logprobs"]["top_logprobs"][before];
        let most =
            top.as_object().unwrap().values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert!((most - of_prompt[before].unwrap()).abs() < 1e-6, "{name}: {top}");
        // With a token behind it, and streamed, the same.
        let mut more = body.clone();
        more["max_tokens"] = json!(1);
        more["temperature"] = json!(0);
        let longer = logprobs(&server.post("/v1/completions", more.clone()).good());
        assert_eq!(longer.len(), all.len() + 1);
        assert_eq!(longer[..all.len()], of_prompt);
        let mut streamed = Vec::new();
        let mut text = String::new();
        for event in server.events("/v1/completions", more) {
            text += event["choices"][0]["text"].as_str().unwrap();
            streamed.extend(logprobs(&event));
        }
        assert_eq!(streamed, longer);
        assert!(text.starts_with(prompt), "{text}");
    }
}

#[test]
fn faults_change_no_rating_and_no_tokens_without_an_echo_is_refused() {
    let model = fixture("llama-tiny");
    let body = |number: usize| {
        let prompt: Vec<usize> = (0..9 + 4 * number).map(|at| (at * 7 + number) % 90).collect();
        json!({"prompt": prompt, "max_tokens": number % 3, "echo": true, "logprobs": 1, "seed": number})
    };
    let alone = Server::start(&model, &["--max-sequences", "4"]);
    alone.post("/v1/completions", json!({"prompt": "x", "max_tokens": 0})).is_error(400, None);
    let expected: Vec<_> =
        (0..6).map(|n| logprobs(&alone.post("/v1/completions", body(n)).good())).collect();
    for moment in ["at=before", "at=during,nth=7", "at=after"] {
        let strike =
            |kind: &str, step: usize| format!("{kind}:op=decode,{moment},step={step},count=1");
        let drill = [strike("out_of_memory", 0), strike("command_buffer", 3), strike("numeric", 6)]
            .join(";");
        let server = Server::start(&model, &["--drill", &drill, "--max-sequences", "4"]);
        std::thread::scope(|scope| {
            for (number, expected) in expected.iter().enumerate() {
                let (server, body) = (&server, &body);
                scope.spawn(move || {
                    let got = logprobs(&server.post("/v1/completions", body(number)).good());
                    assert_eq!(got.len(), expected.len());
                    for (a, b) in got.iter().zip(expected) {
                        let close = match (a, b) {
                            (Some(a), Some(b)) => (a - b).abs() < 1e-4,
                            (a, b) => a == b,
                        };
                        assert!(close, "{moment}, {number}: {a:?} and {b:?}");
                    }
                });
            }
        });
    }
}
