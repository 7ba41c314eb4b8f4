//! Answers with tokens that are proposed: the same as without, for all sorts of requests, several clients and faults; and the
//! accepted share where it is shown.

use serde_json::{Value, json};

use crate::served::{Server, fixture};

/// Requests of all sorts.
fn bodies() -> Vec<Value> {
    vec![
        json!({"prompt": "The tensor is on the device. The tensor is", "max_tokens": 60, "temperature": 0}),
        json!({"prompt": "a b a b a b", "max_tokens": 40, "temperature": 0.8, "seed": 7}),
        json!({"prompt": "Once upon", "max_tokens": 40, "temperature": 0, "frequency_penalty": 0.5}),
        json!({"prompt": "An object:", "max_tokens": 60, "temperature": 0, "guided_regex": "[a-f]{3,6}( [0-9]{2}){1,9}\\."}),
        json!({"prompt": "The device", "max_tokens": 30, "temperature": 0, "logprobs": 2}),
    ]
}

/// The choices of each answer.
fn answers(server: &Server, at_once: bool) -> Vec<Value> {
    let ask = |body: Value| {
        let mut answer = server.post("/v1/completions", body).good();
        answer["choices"].take()
    };
    if !at_once {
        return bodies().into_iter().map(ask).collect();
    }
    std::thread::scope(|scope| {
        let asking: Vec<_> =
            bodies().into_iter().map(|body| scope.spawn(move || ask(body))).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// The answers' texts: the last digit of a probability depends on the parts in which a prompt was run.
fn texts(answers: &[Value]) -> Vec<&str> {
    answers.iter().map(|choices| choices[0]["text"].as_str().unwrap()).collect()
}

#[test]
fn proposals_change_no_answer_and_the_accepted_share_is_shown() {
    let model = fixture("llama-tiny");
    let plain = answers(&Server::start(&model, &[]), false);
    let draft = fixture("qwen2-tiny").display().to_string();
    for options in [
        &["--speculate", "lookup"][..],
        &["--speculate", "auto"],
        &["--speculate", "draft", "--draft", &draft],
        &["--draft", &draft],
    ] {
        let server = Server::start(&model, options);
        assert_eq!(texts(&answers(&server, false)), texts(&plain), "{options:?}");
        assert_eq!(texts(&answers(&server, true)), texts(&plain), "{options:?}, at once");
        if options.contains(&"lookup") || options.contains(&"draft") {
            let accepted = server.metric("surefoot_proposed_tokens_total{result=\"accepted\"}");
            let rejected = server.metric("surefoot_proposed_tokens_total{result=\"rejected\"}");
            assert!(accepted + rejected > 0.0, "{options:?}");
        }
    }
    let server = Server::start(&model, &["--speculate", "lookup"]);
    let answer = server.post("/v1/completions", bodies().remove(0)).good();
    let details = &answer["usage"]["completion_tokens_details"];
    let told = |name: &str| details[name].as_f64().unwrap();
    assert_eq!(
        (told("accepted_prediction_tokens"), told("rejected_prediction_tokens")),
        (
            server.metric("surefoot_proposed_tokens_total{result=\"accepted\"}"),
            server.metric("surefoot_proposed_tokens_total{result=\"rejected\"}")
        )
    );
    assert!(told("accepted_prediction_tokens") > 0.0, "a tiny model repeats itself: {answer}");
}

#[test]
fn a_draft_model_that_is_not_smaller_is_left_out_with_a_note() {
    let model = fixture("llama-tiny");
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut server = Server::start_with(&model, &["--draft"], |command| {
        command.arg(&model).stderr(std::fs::File::create(said.path()).unwrap());
    });
    server.post("/v1/completions", bodies().remove(0)).good();
    server.signal("TERM");
    server.wait();
    let said = std::fs::read_to_string(said.path()).unwrap();
    assert!(said.contains("proposes no tokens") && said.contains("--speculate draft"), "{said}");
}

#[test]
fn a_fault_at_any_moment_changes_no_answer() {
    let model = fixture("llama-tiny");
    let plain = answers(&Server::start(&model, &[]), false);
    for moment in ["at=before", "at=during,nth=4", "at=after"] {
        let strike =
            |kind: &str, step: usize| format!("{kind}:op=decode,{moment},step={step},count=1");
        let drill = [strike("out_of_memory", 1), strike("command_buffer", 4), strike("numeric", 9)]
            .join(";");
        let server = Server::start(&model, &["--speculate", "lookup", "--drill", &drill]);
        assert_eq!(texts(&answers(&server, true)), texts(&plain), "{moment}");
        assert_eq!(server.metric("surefoot_sequences_total{outcome=\"failed\"}"), 0.0);
    }
}
