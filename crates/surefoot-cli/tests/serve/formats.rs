//! Answers in a form: JSON schemas, regular expressions, choices and grammars, with a model whose
//! weights are random, so that nothing but the constraint makes its answers valid.

use std::path::Path;

use serde_json::{Value, json};

use crate::served::{Server, fixture};

/// A model whose tokens are the end of a text and all bytes but the last one.
fn byte_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("llama-tiny");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    write_tokenizer(folder.path());
    folder
}

fn write_tokenizer(folder: &Path) {
    let is_seen = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut unseen = 256;
    let mut vocab = serde_json::Map::new();
    vocab.insert("<|endoftext|>".to_owned(), json!(0));
    for byte in 0..255_u32 {
        let code = if is_seen(byte) {
            byte
        } else {
            unseen += 1;
            unseen - 1
        };
        vocab.insert(char::from_u32(code).unwrap().to_string(), json!(byte + 1));
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"], "additionalProperties": false,
    })
}

fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let name = value["name"].as_str().unwrap().chars().count();
    assert!((1..=12).contains(&name), "{text}");
    assert!(value["age"].as_u64().unwrap() <= 150, "{text}");
    let tags = value["tags"].as_array().unwrap();
    assert!(tags.len() <= 3 && tags.iter().all(|tag| tag == "a" || tag == "b"), "{text}");
    assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
}

fn schema_format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": true}})
}

#[test]
fn a_random_model_answers_by_the_schema_whole_and_streamed_in_chats_and_completions() {
    let model = byte_model();
    let server = Server::start(model.path(), &["--chat-template", "plain"]);
    for seed in 0..10 {
        let asked = json!({"response_format": schema_format(&person()), "max_tokens": 150, "seed": seed,
                           "temperature": 1.5});
        let mut chat = asked.clone();
        chat["messages"] = json!([{"role": "user", "content": "Who?"}]);
        let answer = server.post("/v1/chat/completions", chat.clone()).good();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        check_person(text);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let events = server.events("/v1/chat/completions", chat);
        let streamed: String = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(streamed, text);
        let mut completion = asked;
        completion["prompt"] = json!("Who?");
        completion["n"] = json!(2);
        for text in server.complete(completion) {
            check_person(&text);
        }
    }
}

#[test]
fn json_objects_regular_expressions_choices_and_grammars_are_kept_to() {
    let model = byte_model();
    let server = Server::start(model.path(), &[]);
    for seed in 0..6 {
        let complete = |mut body: Value| {
            body["prompt"] = json!("x");
            body["seed"] = json!(seed);
            body["max_tokens"] = json!(80);
            server.complete(body).remove(0)
        };
        let object = complete(json!({"response_format": {"type": "json_object"}}));
        assert!(serde_json::from_str::<Value>(&object).unwrap().is_object(), "{object}");
        let date = complete(json!({"guided_regex": "[0-9]{4}-[0-9]{2}"}));
        assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
        let color = complete(json!({"guided_choice": ["red", "green"]}));
        assert!(color == "red" || color == "green", "{color}");
        let grammar = "root ::= \"<\" [a-c]+ (\"|\" root)? \">\"";
        let nested = complete(json!({"grammar": grammar}));
        assert_eq!(nested.matches('<').count(), nested.matches('>').count(), "{nested}");
        assert!(nested.starts_with('<') && nested.ends_with('>'), "{nested}");
    }
}

#[test]
fn a_form_that_can_not_be_is_a_400_that_says_where_and_why() {
    let model = byte_model();
    let server = Server::start(model.path(), &["--chat-template", "plain"]);
    let refused = |body: Value| {
        let mut body = body;
        body["prompt"] = json!("x");
        let answer = server.post("/v1/completions", body);
        answer.is_error(400, Some("invalid_format"));
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let wrong = schema_format(&json!({"type": "object", "properties": {"a": {"type": "text"}}}));
    let message = refused(json!({"response_format": wrong}));
    assert!(
        message.contains("#/properties/a/type") && message.contains("\"text\" is no type"),
        "{message}"
    );
    assert!(refused(json!({"guided_regex": "("})).contains("regular expression"));
    assert!(refused(json!({"grammar": "root ::= a"})).contains("no rule 'a'"));
    assert!(
        refused(json!({"guided_json": {"type": "integer", "minimum": 2, "maximum": 1}}))
            .contains("no text")
    );
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    // Its vocabulary has no '['.
    let body = json!({"prompt": "x", "guided_json": {"type": "array"}});
    server.post("/v1/completions", body).is_error(400, Some("invalid_format"));
}

#[test]
fn faults_at_any_moment_change_no_answer_that_has_a_form() {
    let model = byte_model();
    let body = |number: usize| {
        let mut body =
            json!({"prompt": "Who? ".repeat(1 + number), "max_tokens": 120, "seed": number});
        match number % 3 {
            0 => body["guided_json"] = person(),
            1 => body["guided_regex"] = json!("([a-z]{3} ){4}end"),
            _ => body["grammar"] = json!("root ::= \"(\" root? \")\""),
        }
        body
    };
    let alone = Server::start(model.path(), &[]);
    let expected: Vec<_> = (0..6).map(|number| alone.complete(body(number))).collect();
    for moment in ["at=before", "at=during,nth=5", "at=after"] {
        let strike =
            |kind: &str, step: usize| format!("{kind}:op=decode,{moment},step={step},count=1");
        let drill = [
            strike("out_of_memory", 0),
            strike("command_buffer", 3),
            strike("out_of_memory", 9),
            strike("numeric", 20),
        ]
        .join(";");
        let server = Server::start(model.path(), &["--drill", &drill, "--max-sequences", "4"]);
        std::thread::scope(|scope| {
            for (number, expected) in expected.iter().enumerate() {
                let (server, body) = (&server, &body);
                scope.spawn(move || {
                    assert_eq!(&server.complete(body(number)), expected, "{moment}, {number}");
                });
            }
        });
    }
}
