//! Answers in a format: JSON schemas, regular expressions, choices and grammars, with a model whose
//! weights are random, so that nothing but the constraint makes its answers valid.

use std::path::Path;

use serde_json::{Value, json};

use crate::served::{Server, fixture};

/// A model whose tokens are the end of a text and all bytes but the last one.
fn byte_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("llama-tiny");
    std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    // Its positions are rotations, so that it takes longer texts than it was made for.
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["max_position_embeddings"] = json!(2048);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
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
fn a_format_that_can_not_be_is_a_400_that_says_where_and_why() {
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
    assert!(message.contains("'#/properties/a'") && message.contains("text"), "{message}");
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

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "description": "The weather of a place.", "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 8}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["place", "unit"], "additionalProperties": false,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        }}},
        {"type": "function", "function": {"name": "stop"}},
    ])
}

/// Checks a call's arguments.
fn check_call(name: &str, arguments: &str) {
    let value: Value =
        serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
    match name {
        "weather" => {
            assert!(value["place"].as_str().unwrap().chars().count() <= 8, "{arguments}");
            assert!(value["unit"] == "C" || value["unit"] == "F", "{arguments}");
        }
        "stop" => assert!(value.is_object(), "{arguments}"),
        other => panic!("{other} can't be called"),
    }
}

#[test]
fn tools_are_called_by_their_schemas_whole_and_streamed() {
    let model = byte_model();
    let server = Server::start(model.path(), &["--chat-template", "chatml"]);
    let body = |seed: usize, choice: Value| {
        let mut tools = tools();
        // A model with random weights writes free objects, and further calls, without end: what is required has neither.
        let is_required = choice != "auto" && choice != "none";
        if is_required {
            tools[1]["function"]["parameters"] =
                json!({"type": "object", "additionalProperties": false});
        }
        json!({"messages": [{"role": "user", "content": "How is it?"}], "tools": tools, "tool_choice": choice,
               "parallel_tool_calls": !is_required, "seed": seed, "max_tokens": 256})
    };
    for seed in 0..6 {
        let named = json!({"type": "function", "function": {"name": "weather"}});
        for choice in [json!("required"), named, json!("auto")] {
            let answer = server.post("/v1/chat/completions", body(seed, choice.clone())).good();
            let message = &answer["choices"][0]["message"];
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            for call in &calls {
                assert_eq!(call["type"], "function");
                let function = &call["function"];
                check_call(
                    function["name"].as_str().unwrap(),
                    function["arguments"].as_str().unwrap(),
                );
            }
            if choice != "auto" {
                assert!(!calls.is_empty(), "{answer}");
                assert_eq!(message["content"], Value::Null);
                assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
            }
            if choice.is_object() {
                assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")));
            }
            let mut streamed: Vec<(Value, String, String)> = Vec::new();
            let mut content = String::new();
            for event in server.events("/v1/chat/completions", body(seed, choice)) {
                let delta = &event["choices"][0]["delta"];
                content += delta["content"].as_str().unwrap_or_default();
                for call in delta["tool_calls"].as_array().unwrap_or(&Vec::new()) {
                    let number = call["index"].as_u64().unwrap() as usize;
                    let function = &call["function"];
                    if let Some(name) = function["name"].as_str() {
                        assert_eq!(number, streamed.len());
                        streamed.push((call["id"].clone(), name.to_owned(), String::new()));
                    }
                    streamed[number].2 += function["arguments"].as_str().unwrap();
                }
            }
            assert_eq!(content, message["content"].as_str().unwrap_or_default());
            assert_eq!(streamed.len(), calls.len());
            for (call, (id, name, arguments)) in calls.iter().zip(streamed) {
                assert!(id.as_str().unwrap().starts_with("call_"));
                assert_eq!(call["function"], json!({"name": name, "arguments": arguments}));
            }
        }
    }
    let mut none = body(0, json!("none"));
    none["max_tokens"] = json!(5);
    let answer = server.post("/v1/chat/completions", none).good();
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    // What was called, and what came of it, is part of the next prompt.
    let mut next = body(1, json!("auto"));
    next["messages"] = json!([
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]);
    server.post("/v1/chat/completions", next).good();
    let mut wrong = body(0, json!("auto"));
    wrong["tools"][0]["function"]["parameters"]["properties"]["place"] = json!({"type": "text"});
    server.post("/v1/chat/completions", wrong).is_error(400, Some("invalid_format"));
}

/// The text, and the name and the arguments of each call, of a message and of the stream of the same answer, which are alike.
fn text_and_calls(server: &Server, body: &Value) -> (String, Vec<(String, String)>, String) {
    let answer = server.post("/v1/chat/completions", body.clone()).good();
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    let text = message["content"].as_str().unwrap_or_default().to_owned();
    let of =
        |call: &Value, key: &str| call["function"][key].as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let calls: Vec<(String, String)> =
        calls.iter().map(|call| (of(call, "name"), of(call, "arguments"))).collect();
    let (mut streamed_text, mut streamed) = (String::new(), Vec::<(String, String)>::new());
    let mut end = String::new();
    for event in server.events("/v1/chat/completions", body.clone()) {
        let choice = &event["choices"][0];
        streamed_text += choice["delta"]["content"].as_str().unwrap_or_default();
        for call in choice["delta"]["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            let number = call["index"].as_u64().unwrap() as usize;
            if number == streamed.len() {
                streamed.push(Default::default());
            }
            streamed[number].0 += &of(call, "name");
            streamed[number].1 += &of(call, "arguments");
        }
        end += choice["finish_reason"].as_str().unwrap_or_default();
    }
    assert_eq!((&streamed_text, &streamed), (&text, &calls));
    assert_eq!(end, choice["finish_reason"]);
    (text, calls, end)
}

/// What is asked of a model with two tools without free texts.
fn asked_for_calls(seed: usize, choice: &str) -> Value {
    let mut tools = tools();
    tools[1]["function"]["parameters"] =
        json!({"type": "object", "properties": {}, "additionalProperties": false});
    // Some templates insist on a description, and on the type of each field.
    tools[1]["function"]["description"] = json!("Stops.");
    let unit = json!({"type": "string", "enum": ["C", "F"]});
    tools[0]["function"]["parameters"]["properties"]["unit"] = unit;
    json!({"messages": [{"role": "user", "content": "How is it?"}], "tools": tools, "tool_choice": choice,
           "parallel_tool_calls": false, "seed": seed, "max_tokens": 256})
}

/// The templates of families, as `surefoot-models` has them for its tests.
fn family_template(name: &str) -> String {
    let templates =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/src/chat/templates");
    templates.join(name).to_str().unwrap().to_owned()
}

#[test]
fn tools_are_called_in_the_format_of_each_family() {
    let model = byte_model();
    // Templates end a message with the token that ends a text.
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
    std::fs::write(model.path().join("tokenizer_config.json"), tokens.to_string()).unwrap();
    for (template, marker) in [
        ("mistral.jinja", "[TOOL_CALLS]"),
        ("granite.jinja", "<|tool_call|>"),
        ("command-r7b.jinja", "<|START_ACTION|>"),
        ("command-r-plus.jinja", "Action:"),
        ("phi-4-mini.jinja", "<|tool_call|>"),
        ("qwen.jinja", "<tool_call>"),
        ("llama-3.jinja", "{"),
    ] {
        let server = Server::start(model.path(), &["--chat-template", &family_template(template)]);
        for seed in 0..3 {
            let asked = asked_for_calls(seed, "required");
            let (text, calls, end) = text_and_calls(&server, &asked);
            assert_eq!(
                (text.as_str(), calls.len(), end.as_str()),
                ("", 1, "tool_calls"),
                "{template}"
            );
            check_call(&calls[0].0, &calls[0].1);
            let mut rated = asked.clone();
            rated["logprobs"] = json!(true);
            let answer = server.post("/v1/chat/completions", rated).good();
            let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
            let written: String = tokens.iter().map(|one| one["token"].as_str().unwrap()).collect();
            assert!(written.trim_start().starts_with(marker), "{template}: {written}");
            // Wherever it is cut off, no part of what marks a call is text.
            for most in [1, 4, 9, 14] {
                let mut cut = asked.clone();
                cut["max_tokens"] = json!(most);
                let (text, _, end) = text_and_calls(&server, &cut);
                assert_eq!((text.as_str(), end.as_str()), ("", "length"), "{template}: {most}");
            }
        }
        // What was called is part of the next prompt.
        let mut next = asked_for_calls(0, "auto");
        next["max_tokens"] = json!(4);
        let function = json!({"name": "weather", "arguments": "{\"place\":\"x\",\"unit\":\"C\"}"});
        next["messages"] = json!([
            {"role": "user", "content": "How is it?"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "call_12_0_0", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "call_12_0_0", "content": "rain"},
        ]);
        let answer = server.post("/v1/chat/completions", next);
        assert_eq!(answer.status, 200, "{template}: {}", answer.body);
    }
}

#[test]
fn a_marker_that_is_a_special_token_is_written_and_read_as_one() {
    let model = byte_model();
    let file = model.path().join("tokenizer.json");
    let mut tokenizer: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let replaced = vocab.iter().find(|(_, id)| **id == 255).unwrap().0.clone();
    vocab.remove(&replaced);
    vocab.insert("[TOOL_CALLS]".to_owned(), json!(255));
    let mut token = tokenizer["added_tokens"][0].clone();
    (token["id"], token["content"]) = (json!(255), json!("[TOOL_CALLS]"));
    tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let server =
        Server::start(model.path(), &["--chat-template", &family_template("mistral.jinja")]);
    for choice in ["required", "auto"] {
        let mut asked = asked_for_calls(1, choice);
        asked["logit_bias"] = json!({"255": 100});
        let (text, calls, end) = text_and_calls(&server, &asked);
        assert_eq!((text.as_str(), calls.len(), end.as_str()), ("", 1, "tool_calls"));
        check_call(&calls[0].0, &calls[0].1);
        asked["logprobs"] = json!(true);
        let answer = server.post("/v1/chat/completions", asked).good();
        assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["token"], "[TOOL_CALLS]");
    }
}

#[test]
fn tools_and_a_format_for_the_answer_go_together() {
    let model = byte_model();
    let server = Server::start(model.path(), &["--chat-template", "chatml"]);
    for seed in 0..4 {
        let mut asked = asked_for_calls(seed, "auto");
        asked["response_format"] = schema_format(&person());
        // Without `<` there is no call; without `{` nothing else, since a call has one only where nothing else may come.
        for (banned, is_call) in [(b'<', false), (b'{', true)] {
            let mut asked = asked.clone();
            asked["logit_bias"] = json!({(u32::from(banned) + 1).to_string(): -100});
            let (text, calls, end) = text_and_calls(&server, &asked);
            if is_call {
                assert_eq!((text.as_str(), calls.len(), end.as_str()), ("", 1, "tool_calls"));
                check_call(&calls[0].0, &calls[0].1);
            } else {
                assert_eq!((calls.len(), end.as_str()), (0, "stop"));
                check_person(&text);
            }
        }
        asked["tool_choice"] = json!("required");
        let (text, calls, _) = text_and_calls(&server, &asked);
        assert_eq!((text.as_str(), calls.len()), ("", 1));
        asked["tool_choice"] = json!("none");
        let (text, calls, _) = text_and_calls(&server, &asked);
        assert!(calls.is_empty());
        check_person(&text);
    }
    let mut wrong = asked_for_calls(0, "auto");
    wrong["response_format"] = schema_format(&json!({"type": "text"}));
    server.post("/v1/chat/completions", wrong).is_error(400, Some("invalid_format"));
}

/// The events of a response's stream: their names and their data.
fn response_events(body: &str) -> Vec<(String, Value)> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    events
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap().to_owned();
            (name, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
        })
        .collect()
}

#[test]
fn responses_call_tools_whole_and_streamed_and_take_their_results() {
    let model = byte_model();
    let server = Server::start(model.path(), &["--chat-template", "chatml"]);
    // The same functions as chats have them, in the notation of responses.
    let flat: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let mut flat = tool["function"].clone();
            flat["type"] = json!("function");
            flat
        })
        .collect();
    let body = |seed: usize, choice: Value| json!({"input": "How is it?", "tools": flat, "tool_choice": choice, "seed": seed, "max_output_tokens": 160});
    for seed in 0..6 {
        let named = json!({"type": "function", "name": "weather"});
        for choice in [json!("required"), named, json!("auto")] {
            let whole = server.post("/v1/responses", body(seed, choice.clone())).good();
            assert_eq!(whole["tool_choice"], choice);
            assert_eq!(whole["tools"][0]["name"], "weather");
            let output = whole["output"].as_array().unwrap();
            let calls: Vec<&Value> =
                output.iter().filter(|item| item["type"] == "function_call").collect();
            for call in &calls {
                assert_eq!(call["status"], "completed");
                check_call(call["name"].as_str().unwrap(), call["arguments"].as_str().unwrap());
            }
            // What a chat with the same seed says.
            let mut chat = body(seed, choice.clone());
            for (old, new) in [("input", "messages"), ("max_output_tokens", "max_tokens")] {
                chat[new] = chat.as_object_mut().unwrap().remove(old).unwrap();
            }
            chat["messages"] = json!([{"role": "user", "content": "How is it?"}]);
            chat["tools"] = tools();
            if choice.is_object() {
                chat["tool_choice"] = json!({"type": "function", "function": {"name": "weather"}});
            }
            let chat = server.post("/v1/chat/completions", chat).good();
            let message = &chat["choices"][0]["message"];
            let chat_calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            assert_eq!(calls.len(), chat_calls.len(), "{whole} {chat}");
            for (call, chat) in calls.iter().zip(&chat_calls) {
                let function = json!({"name": call["name"], "arguments": call["arguments"]});
                assert_eq!(function, chat["function"]);
            }
            if choice != "auto" {
                assert!(!calls.is_empty() && calls.len() == output.len(), "{whole}");
                assert_eq!(whole["status"], "completed");
            }
            let mut streamed = body(seed, choice);
            streamed["stream"] = json!(true);
            let answer = server.post("/v1/responses", streamed);
            let events = response_events(&answer.body);
            let mut arguments = vec![String::new(); output.len()];
            for (number, (name, data)) in events.iter().enumerate() {
                assert_eq!(data["sequence_number"], json!(number));
                let index = data["output_index"].as_u64().unwrap_or(0) as usize;
                match name.as_str() {
                    "response.function_call_arguments.delta" => {
                        arguments[index] += data["delta"].as_str().unwrap();
                    }
                    "response.function_call_arguments.done" => {
                        assert_eq!(data["arguments"], arguments[index].as_str());
                        assert_eq!(data["arguments"], output[index]["arguments"]);
                    }
                    "response.output_item.added" => {
                        assert_eq!(data["item"]["type"], output[index]["type"]);
                        assert_eq!(data["item"]["name"], output[index]["name"]);
                    }
                    _ => {}
                }
            }
            let (last, data) = events.last().unwrap();
            assert_eq!(*last, format!("response.{}", whole["status"].as_str().unwrap()));
            let mut usage = data["response"]["usage"].clone();
            // The prompt was there already, up to a whole page.
            let cached = usage["input_tokens_details"]["cached_tokens"].take().as_u64().unwrap();
            let input = usage["input_tokens"].as_u64().unwrap();
            assert!(cached < input && cached + 32 > input, "{cached} of {input}");
            usage["input_tokens_details"]["cached_tokens"] =
                whole["usage"]["input_tokens_details"]["cached_tokens"].clone();
            assert_eq!(usage, whole["usage"]);
            let said = |output: &Value| -> Vec<Value> {
                let items = output.as_array().unwrap().iter();
                items.map(|i| json!([i["type"], i["name"], i["arguments"], i["content"]])).collect()
            };
            assert_eq!(said(&data["response"]["output"]), said(&whole["output"]));
        }
    }
    // The next turn: the items of the answer and the result of the call are sent back.
    let first =
        server.post("/v1/responses", body(1, json!({"type": "function", "name": "stop"}))).good();
    let call = &first["output"][0];
    let mut next = body(1, json!("none"));
    next["max_output_tokens"] = json!(5);
    next["input"] = json!([
        {"role": "user", "content": "How is it?"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "done"},
    ]);
    let answered = server.post("/v1/responses", next.clone()).good();
    let chat = json!({"messages": [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": call["call_id"], "type": "function",
            "function": {"name": "stop", "arguments": call["arguments"]}}]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "done"},
    ], "max_tokens": 5, "seed": 1});
    let chat = server.post("/v1/chat/completions", chat).good();
    assert_eq!(answered["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(
        answered["output"][0]["content"][0]["text"],
        chat["choices"][0]["message"]["content"]
    );
    next["input"][2]["call_id"] = json!("call_of_another");
    let refused = server.post("/v1/responses", next);
    refused.is_error(400, None);
    assert_eq!(refused.json()["error"]["param"], "input[2]");
    let mut both = body(0, json!("auto"));
    both["text"] = json!({"format": {"type": "json_object"}});
    // An answer is then a call, or has the format.
    let answer = server.post("/v1/responses", both).good();
    let item = &answer["output"][0];
    match item["type"].as_str().unwrap() {
        "function_call" => assert_eq!(item["name"], "weather"),
        _ => {
            let text = item["content"][0]["text"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}");
        }
    }
}

#[test]
fn faults_at_any_moment_change_no_answer_that_has_a_format() {
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
