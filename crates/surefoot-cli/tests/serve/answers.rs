//! Completions and chats.

use serde_json::{Value, json};

use crate::served::{Server, fixture, generated};

const PROMPTS: [&str; 6] = [
    "The tensor",
    "a",
    "Once upon a time there was a device",
    "The",
    "What is the loss of a model that never learns anything at all?",
    "tensor tensor",
];

#[test]
fn many_at_once_get_the_tokens_that_generate_gives_to_each_alone() {
    for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "qwen2-tiny"] {
        let model = fixture(name);
        let server = Server::start(&model, &[]);
        std::thread::scope(|scope| {
            for (number, prompt) in PROMPTS.iter().enumerate() {
                let (server, model) = (&server, &model);
                let tokens = 30 + number * 5;
                scope.spawn(move || {
                    let alone = generated(model, prompt, &["--max-tokens", &tokens.to_string()]);
                    for _ in 0..4 {
                        let body =
                            json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0});
                        let answer = server.post("/v1/completions", body).good();
                        let choice = &answer["choices"][0];
                        assert_eq!(choice["text"], alone["text"], "{name}: {prompt}");
                        let count = alone["tokens"].as_array().unwrap().len();
                        assert_eq!(answer["usage"]["completion_tokens"], count);
                        assert_eq!(answer["usage"]["prompt_tokens"], alone["prompt_tokens"]);
                        let end = if alone["ending"] == "max_tokens" { "length" } else { "stop" };
                        assert_eq!(choice["finish_reason"], end);
                    }
                });
            }
        });
    }
}

#[test]
fn prompts_of_one_request_are_run_as_one_batch() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let alone: Vec<String> = PROMPTS
        .iter()
        .flat_map(|prompt| server.complete(json!({"prompt": prompt, "temperature": 0})))
        .collect();
    let before = server.metric("surefoot_batch_size_count{engine=\"decode\"}");
    assert_eq!(server.complete(json!({"prompt": PROMPTS, "temperature": 0})), alone);
    let passes = server.metric("surefoot_batch_size_count{engine=\"decode\"}") - before;
    assert!(passes < 40.0, "{passes} passes for six times sixteen tokens");
}

#[test]
fn a_seed_gives_what_generate_gives_and_no_seed_something_else_each_time() {
    let model = fixture("gpt2-tiny");
    let server = Server::start(&model, &[]);
    let body = json!({"prompt": "The", "max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 11});
    let options = [
        "--max-tokens",
        "24",
        "--temperature",
        "0.9",
        "--top-p",
        "0.95",
        "--top-k",
        "50",
        "--seed",
        "11",
    ];
    let alone = generated(&model, "The", &options);
    assert_eq!(server.complete(body.clone()), [alone["text"].as_str().unwrap()]);
    assert_eq!(server.complete(body), [alone["text"].as_str().unwrap()]);
    let free = json!({"prompt": "The", "max_tokens": 24});
    assert_ne!(server.complete(free.clone()), server.complete(free));
}

#[test]
fn choices_differ_and_keep_their_numbers_whole_and_streamed() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let body = json!({"prompt": ["The", "a"], "n": 3, "seed": 5, "max_tokens": 12});
    let whole = server.complete(body.clone());
    assert_eq!(whole.len(), 6);
    assert_ne!(whole[0], whole[1]);
    let mut streamed = vec![String::new(); 6];
    for event in server.events("/v1/completions", body) {
        assert_eq!(event["object"], "text_completion");
        let choice = &event["choices"][0];
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(streamed, whole);
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_part_of_it() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let body = json!({"prompt": "The tensor", "max_tokens": 40, "temperature": 0});
    let text = server.complete(body.clone()).remove(0);
    let letters: Vec<char> = text.chars().collect();
    let stop: String = letters[letters.len() / 2..][..2].iter().collect();
    let mut stopping = body;
    stopping["stop"] = json!([stop, "never"]);
    let answer = server.post("/v1/completions", stopping.clone()).good();
    assert_eq!(answer["choices"][0]["text"], text[..text.find(&stop).unwrap()]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let events = server.events("/v1/completions", stopping);
    let streamed: String =
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, text[..text.find(&stop).unwrap()]);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn token_ids_are_prompts_too_and_echo_gives_the_prompt_back() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let texts = server.complete(json!({"prompt": [[40, 41], [7]], "temperature": 0}));
    assert_eq!(server.complete(json!({"prompt": [40, 41], "temperature": 0})), texts[..1]);
    let plain = server.complete(json!({"prompt": "The", "temperature": 0})).remove(0);
    let body = json!({"prompt": "The", "temperature": 0, "echo": true});
    assert_eq!(server.complete(body.clone()), [format!("The{plain}")]);
    let events = server.events("/v1/completions", body);
    let streamed: String =
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, format!("The{plain}"));
}

#[test]
fn probabilities_are_given_where_they_are_asked_for() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--chat-template", "plain"]);
    let body = json!({"prompt": "The", "max_tokens": 6, "temperature": 0, "logprobs": 3});
    let choice = server.post("/v1/completions", body).good()["choices"][0].clone();
    let rated = &choice["logprobs"];
    let tokens: Vec<&str> =
        rated["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens.len(), 6);
    for (at, top) in rated["top_logprobs"].as_array().unwrap().iter().enumerate() {
        let chosen = rated["token_logprobs"][at].as_f64().unwrap();
        assert!(chosen < 0.0);
        let most = top.as_object().unwrap().values().map(|p| p.as_f64().unwrap());
        assert_eq!(most.fold(f64::NEG_INFINITY, f64::max), chosen, "greedy takes the likeliest");
    }
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0,
        "logprobs": true, "top_logprobs": 2,
    });
    let chat = server.post("/v1/chat/completions", body.clone()).good()["choices"][0].clone();
    let rated = chat["logprobs"]["content"].as_array().unwrap();
    assert_eq!(rated.len(), 6);
    assert_eq!(rated[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(rated[0]["top_logprobs"][0]["token"], rated[0]["token"]);
    let streamed: Vec<Value> = server
        .events("/v1/chat/completions", body)
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&streamed, rated);
}

#[test]
fn a_chat_streams_as_clients_expect_it() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--chat-template", "plain"]);
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "temperature": 0,
        "max_completion_tokens": 24,
    });
    let whole = server.post("/v1/chat/completions", body.clone()).good();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["role"], "assistant");
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let completed = server
        .complete(json!({"prompt": "user: Hi\nassistant:", "temperature": 0, "max_tokens": 24}));
    assert_eq!(completed, [text], "the prompt is what the template says");
    let mut body = body;
    body["stream_options"] = json!({"include_usage": true});
    let events = server.events("/v1/chat/completions", body);
    let (figures, choices) = events.split_last().unwrap();
    assert_eq!(figures["choices"], json!([]));
    assert_eq!(figures["usage"], whole["usage"]);
    assert_eq!(choices[0]["choices"][0]["delta"]["role"], "assistant");
    let mut streamed = String::new();
    for event in choices {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event["usage"], Value::Null);
        streamed += event["choices"][0]["delta"]["content"].as_str().unwrap_or("");
    }
    assert_eq!(streamed, text);
    let (last, before) = choices.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert!(before.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    let plain = server
        .events("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert!(plain.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn a_models_own_template_writes_its_chats() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("gpt2-tiny").join(name), folder.path().join(name)).unwrap();
    }
    let template = "{% for m in messages %}<{{ m.role }}> {{ m.content.strip() }}\n{% endfor %}\
                    {% if messages | length > 2 %}{{ raise_exception('too many') }}{% endif %}>";
    let config = json!({"chat_template": template, "bos_token": "<s>"});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let server = Server::start(folder.path(), &["--name", "mine"]);
    let message = |text: &str| json!({"role": "user", "content": text});
    let body = json!({"messages": [message(" Hi ")], "temperature": 0, "max_tokens": 8});
    let chat = server.post("/v1/chat/completions", body).good();
    assert_eq!(chat["model"], "mine");
    let completed =
        server.complete(json!({"prompt": "<user> Hi\n>", "temperature": 0, "max_tokens": 8}));
    assert_eq!(chat["choices"][0]["message"]["content"], completed[0]);
    let body = json!({"messages": [message("a"), message("b"), message("c")]});
    let refused = server.post("/v1/chat/completions", body);
    refused.is_error(400, None);
    assert!(refused.body.contains("too many"), "{}", refused.body);
}

/// A folder with the model of a fixture and a template of its own.
fn with_template(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("gpt2-tiny").join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

#[test]
fn issue_17_a_template_with_generation_tags_is_served() {
    let model = with_template(
        "{% for m in messages %}{% generation %}<{{ m.role }}> {{ m.content }}\n\
         {% endgeneration %}{% endfor %}>",
    );
    let server = Server::start(model.path(), &[]);
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 8,
    });
    let chat = server.post("/v1/chat/completions", body).good();
    let completed =
        server.complete(json!({"prompt": "<user> Hi\n>", "temperature": 0, "max_tokens": 8}));
    assert_eq!(chat["choices"][0]["message"]["content"], completed[0]);
}

#[test]
fn issue_17_a_model_whose_template_is_wrong_still_serves_completions() {
    let model = with_template("{% nonsense %}");
    let server = Server::start(model.path(), &[]);
    assert_eq!(server.complete(json!({"prompt": "x", "max_tokens": 2})).len(), 1);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let refused = server.post("/v1/chat/completions", body);
    refused.is_error(400, Some("no_chat_template"));
    assert!(refused.body.contains("nonsense"), "the reason is given: {}", refused.body);
}

#[test]
fn issue_17_a_role_that_openai_does_not_know_is_refused() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--chat-template", "plain"]);
    let body = json!({"messages": [{"role": "wizard", "content": "Hi"}]});
    let refused = server.post("/v1/chat/completions", body);
    refused.is_error(400, Some("invalid_value"));
    assert_eq!(refused.json()["error"]["param"], "messages[0].role");
}

/// The tokens of a greedy answer to `prompt` with more `fields`.
fn greedy(server: &Server, fields: serde_json::Value) -> Vec<String> {
    let mut body = json!({"prompt": [5, 9], "temperature": 0, "max_tokens": 12, "logprobs": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = server.post("/v1/completions", body).good();
    let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect()
}

#[test]
fn logits_are_changed_as_a_request_asks() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let spelt = |id: u32| {
        let text = server.post("/detokenize", json!({"tokens": [id]})).good();
        text["prompt"].as_str().unwrap().to_owned()
    };
    // A bias of 100 makes a token the only one, and one of -100 makes it none.
    assert_eq!(greedy(&server, json!({"logit_bias": {"70": 100}})), vec![spelt(70); 12]);
    let plain = greedy(&server, json!({}));
    let first = server.post("/tokenize", json!({"prompt": plain[0]})).good()["tokens"][0].clone();
    let banned = greedy(&server, json!({"logit_bias": {first.to_string(): -100}}));
    assert!(!banned.contains(&plain[0]), "{plain:?} {banned:?}");
    // With the same bias on three tokens, penalties make each of them come before one comes again.
    let mut once = greedy(
        &server,
        json!({
            "logit_bias": {"70": 90, "71": 90, "72": 90}, "max_tokens": 3,
            "presence_penalty": 2, "frequency_penalty": 2,
        }),
    );
    once.sort();
    let mut expected = vec![spelt(70), spelt(71), spelt(72)];
    expected.sort();
    assert_eq!(once, expected);
    // min_p 1 leaves the most likely token alone, at any temperature.
    let hot = json!({"temperature": 2, "min_p": 1, "seed": 7});
    assert_eq!(greedy(&server, hot), plain);
}

#[test]
fn texts_become_tokens_and_tokens_texts() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let answer = server.post("/tokenize", json!({"prompt": "tensor flow"})).good();
    let tokens = answer["tokens"].clone();
    assert_eq!(answer["count"], tokens.as_array().unwrap().len());
    assert_eq!(answer["max_model_len"], 128);
    let back = server.post("/detokenize", json!({"tokens": tokens})).good();
    assert_eq!(back["prompt"], "tensor flow");
    let as_ids = json!({"prompt": tokens, "max_tokens": 6, "temperature": 0});
    let as_text = json!({"prompt": "tensor flow", "max_tokens": 6, "temperature": 0});
    assert_eq!(server.complete(as_ids), server.complete(as_text));
    server.post("/detokenize", json!({"tokens": [256]})).is_error(400, None);
    server.post("/tokenize", json!({"prompt": ["a", "b"]})).is_error(422, None);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    server.post("/tokenize", json!({"messages": messages})).is_error(400, None);
    // A chat has the tokens that it is run with.
    let server = Server::start(&fixture("gpt2-tiny"), &["--chat-template", "plain"]);
    let chat = server.post("/tokenize", json!({"messages": messages})).good();
    let asked = json!({"messages": messages, "max_tokens": 1});
    let answer = server.post("/v1/chat/completions", asked).good();
    assert_eq!(chat["count"], answer["usage"]["prompt_tokens"]);
    let spelt = server.post("/detokenize", json!({"tokens": chat["tokens"]})).good();
    assert_eq!(spelt["prompt"], "user: Hi\nassistant:");
    let both = server.post("/tokenize", json!({"messages": messages, "prompt": "Hi"}));
    both.is_error(400, None);
    let neither = server.post("/tokenize", json!({"add_special_tokens": true}));
    neither.is_error(422, None);
    for refused in [both, neither] {
        let message = refused.json()["error"]["message"].clone();
        assert_eq!(message, "give either 'prompt' or 'messages'");
    }
    // What vLLM's clients send is taken where it asks for what is done.
    for (key, done) in [
        ("add_generation_prompt", true),
        ("continue_final_message", false),
        ("add_special_tokens", false),
        ("return_token_strs", false),
    ] {
        let same = server.post("/tokenize", json!({"messages": messages, key: done})).good();
        assert_eq!(same["tokens"], chat["tokens"], "{key}");
        let other = server.post("/tokenize", json!({"messages": messages, key: !done}));
        other.is_error(400, Some("unsupported_parameter"));
    }
    let template_only = json!({"prompt": "Hi", "add_generation_prompt": true});
    server.post("/tokenize", template_only).is_error(400, Some("unknown_parameter"));
}

#[test]
fn variables_of_the_template_and_long_instructions_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.jinja");
    let template = "{{ messages[0].content[:8] }}{{ 'yes' if enable_thinking else 'no' }}";
    std::fs::write(&file, template).unwrap();
    let options = ["--chat-template", file.to_str().unwrap()];
    let server = Server::start(&fixture("gpt2-tiny"), &options);
    let count =
        |text: &str| server.post("/tokenize", json!({"prompt": text})).good()["count"].clone();
    let used = |path: &str, mut body: Value, thinks: Value| {
        body["chat_template_kwargs"] = json!({"enable_thinking": thinks});
        let usage = server.post(path, body).good()["usage"].clone();
        usage.get("prompt_tokens").unwrap_or(&usage["input_tokens"]).clone()
    };
    assert_ne!(count("Hiyes"), count("Hino"), "else this test shows nothing");
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    let response = json!({"input": "Hi", "max_output_tokens": 1});
    for (path, body) in [("/v1/chat/completions", chat.clone()), ("/v1/responses", response)] {
        assert_eq!(used(path, body.clone(), json!(true)), count("Hiyes"), "{path}");
        assert_eq!(used(path, body, json!(false)), count("Hino"), "{path}");
    }
    let mut wrong = chat;
    wrong["chat_template_kwargs"] = json!({"messages": []});
    server.post("/v1/chat/completions", wrong.clone()).is_error(400, None);
    wrong["chat_template_kwargs"] = json!(7);
    server.post("/v1/chat/completions", wrong).is_error(422, None);
    // Instructions have the limit of messages, which is that of the model and no other.
    let long = json!({"input": "Hi", "instructions": "x".repeat(100_000)});
    server.post("/v1/responses", long).is_error(400, Some("context_length_exceeded"));
}

#[test]
fn parameters_that_openai_has_and_this_server_has_not_are_not_called_unknown() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--chat-template", "plain"]);
    for (key, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("c")),
        ("reasoning", json!({})),
    ] {
        let answer = server.post("/v1/responses", json!({"input": "Hi", key: value}));
        answer.is_error(400, Some("unsupported_parameter"));
        assert_eq!(answer.json()["error"]["param"], key);
    }
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low"});
    server.post("/v1/chat/completions", chat).is_error(400, Some("unsupported_parameter"));
    let nothing = json!({"input": "Hi", "previous_response_id": null, "max_output_tokens": 1});
    server.post("/v1/responses", nothing).good();
}

#[test]
fn a_request_keeps_its_name_or_gets_one() {
    let server = Server::start(&fixture("gpt2-tiny"), &[]);
    let id_of = |given: Option<&str>| {
        let header = given.map_or(String::new(), |id| format!("X-Request-Id: {id}\r\n"));
        let ask =
            format!("GET /v1/models HTTP/1.1\r\nHost: here\r\n{header}Connection: close\r\n\r\n");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut server.send(&ask), &mut answer).unwrap();
        let line = answer.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        line.unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    assert_eq!(id_of(Some("mine-7")), "mine-7");
    let made = (id_of(None), id_of(None));
    assert!(made.0.starts_with("req-") && made.0 != made.1, "{made:?}");
    assert!(id_of(Some(&"x".repeat(200))).starts_with("req-"), "too long to be kept");
}

#[test]
fn responses_give_the_text_of_a_chat_whole_and_as_typed_events() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--chat-template", "plain"]);
    let asked = json!({"temperature": 0, "max_output_tokens": 20});
    let chat = json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Hi"}],
                      "temperature": 0, "max_tokens": 20});
    let expected = server.post("/v1/chat/completions", chat).good();
    let text = expected["choices"][0]["message"]["content"].as_str().unwrap();
    for input in [
        json!("Hi"),
        json!([{"role": "user", "content": "Hi"}]),
        json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]),
    ] {
        let mut body = asked.clone();
        body["input"] = input;
        body["instructions"] = json!("be brief");
        let whole = server.post("/v1/responses", body.clone()).good();
        assert_eq!(whole["object"], "response");
        assert_eq!(whole["output"][0]["content"][0]["text"], text);
        assert_eq!(whole["usage"]["output_tokens"], expected["usage"]["completion_tokens"]);
        assert_eq!(whole["usage"]["input_tokens"], expected["usage"]["prompt_tokens"]);
        let is_short = expected["choices"][0]["finish_reason"] == "length";
        assert_eq!(whole["status"], if is_short { "incomplete" } else { "completed" });
        body["stream"] = json!(true);
        let answer = server.post("/v1/responses", body);
        let events: Vec<(&str, Value)> = answer
            .body
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                (name.strip_prefix("event: ").unwrap(), data)
            })
            .collect();
        for (number, (name, data)) in events.iter().enumerate() {
            assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        }
        let deltas: String = events
            .iter()
            .filter(|(name, _)| *name == "response.output_text.delta")
            .map(|(_, data)| data["delta"].as_str().unwrap())
            .collect();
        assert_eq!(deltas, text);
        assert_eq!(events[0].0, "response.created");
        let last = &events.last().unwrap().1["response"];
        assert_eq!(
            (&last["output"][0]["content"][0]["text"], &last["usage"]),
            (&json!(text), &whole["usage"])
        );
    }
    let schema = json!({"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["red", "green"]}}});
    let body = json!({"input": "Hi", "text": schema, "max_output_tokens": 20});
    let chosen = server.post("/v1/responses", body).good();
    let chosen = chosen["output"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(chosen == "\"red\"" || chosen == "\"green\"", "{chosen}");
    for wrong in [
        json!({"input": []}),
        json!({"input": "x", "previous_response_id": "resp-1"}),
        json!({"input": [{"type": "reasoning"}]}),
    ] {
        server.post("/v1/responses", wrong).is_error(400, None);
    }
}
