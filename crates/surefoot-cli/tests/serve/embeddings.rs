//! `/v1/embeddings`, and the small paths beside it.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::served::{Server, fixture, program};

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let vector = |one: &Value| -> Vec<f64> {
        one["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    answer["data"].as_array().unwrap().iter().map(vector).collect()
}

fn are_near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// Texts of many lengths, so that several are stacked and padded.
fn texts() -> Vec<String> {
    (0..24).map(|number| "tensor device ".repeat(1 + number * 7 % 11)).collect()
}

#[test]
fn texts_that_are_stacked_get_the_vectors_that_embed_gives() {
    let model = fixture("llama-tiny");
    let mut child = program()
        .arg("embed")
        .arg(&model)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    write!(child.stdin.take().unwrap(), "{}", texts().join("\n")).unwrap();
    let output = child.wait_with_output().unwrap();
    let expected: Vec<Vec<f64>> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let server = Server::start(&model, &[]);
    let answer = server.post("/v1/embeddings", json!({"input": texts()})).good();
    let together = vectors(&answer);
    assert_eq!(together.len(), expected.len());
    for (number, (got, expected)) in together.iter().zip(&expected).enumerate() {
        assert_eq!(answer["data"][number]["index"], number);
        assert!(are_near(got, expected), "text {number}");
    }
    std::thread::scope(|scope| {
        for (text, expected) in texts().into_iter().zip(&expected) {
            let server = &server;
            scope.spawn(move || {
                let alone = server.post("/v1/embeddings", json!({"input": text})).good();
                assert!(are_near(&vectors(&alone)[0], expected), "{text}");
                assert_eq!(alone["usage"]["prompt_tokens"], alone["usage"]["total_tokens"]);
            });
        }
    });
    let passes = server.metric("surefoot_batch_size_count{engine=\"embed\"}");
    assert!(passes < 48.0, "{passes} passes for 48 texts");
}

#[test]
fn an_encoder_takes_token_ids_and_packs_its_numbers_if_asked() {
    let server = Server::start(&fixture("bert-tiny"), &[]);
    let input = json!([[2, 50, 60, 3], [2, 70, 3]]);
    let plain = vectors(&server.post("/v1/embeddings", json!({"input": input})).good());
    let one = json!({"input": [2, 50, 60, 3]});
    assert!(are_near(&vectors(&server.post("/v1/embeddings", one).good())[0], &plain[0]));
    let packed = json!({"input": input, "encoding_format": "base64"});
    let packed = server.post("/v1/embeddings", packed).good();
    for (vector, one) in plain.iter().zip(packed["data"].as_array().unwrap()) {
        let bytes = unpacked(one["embedding"].as_str().unwrap());
        let numbers: Vec<f64> = bytes
            .chunks_exact(4)
            .map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap())))
            .collect();
        assert!(are_near(&numbers, vector));
        let length: f64 = numbers.iter().map(|number| number * number).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
    server.post("/v1/completions", json!({"prompt": "x"})).is_error(400, Some("unsupported_model"));
    server.post("/v1/embeddings", json!({"input": "text"})).is_error(400, None);
}

fn unpacked(text: &str) -> Vec<u8> {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values: Vec<u32> =
        text.trim_end_matches('=').chars().map(|c| LETTERS.find(c).unwrap() as u32).collect();
    let mut bytes = Vec::new();
    for four in values.chunks(4) {
        let bits = four.iter().fold(0, |bits, value| bits << 6 | value) << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[test]
fn the_model_the_health_and_the_metrics_are_told() {
    let server = Server::start(&fixture("gpt2-tiny"), &["--name", "org/gpt2"]);
    let models = server.get("/v1/models").good();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "org/gpt2");
    assert_eq!(server.get("/v1/models/org/gpt2").good()["id"], "org/gpt2");
    server.get("/v1/models/other").is_error(404, Some("model_not_found"));
    let health = server.get("/health").good();
    assert_eq!((health["status"].as_str(), health["device"].as_str()), (Some("ok"), Some("cpu")));
    server.complete(json!({"prompt": "x"}));
    let metrics = server.get("/metrics").body;
    for name in [
        "surefoot_queue_depth{engine=\"decode\"} 0",
        "surefoot_batch_size_bucket{le=\"1.0\",engine=\"decode\"}",
        "surefoot_http_request_seconds_count{path=\"/v1/completions\"} 1",
        "surefoot_http_requests_total{path=\"/v1/completions\",status=\"200\"} 1",
        "surefoot_first_token_seconds_count 1",
        "surefoot_sequences_total{outcome=\"finished\"} 1",
        "surefoot_memory_bytes{device=\"cpu\",when=\"now\"}",
        "# EOF",
    ] {
        assert!(metrics.contains(name), "{name} is not in\n{metrics}");
    }
}

#[test]
fn vectors_can_be_shorter() {
    let server = Server::start(&fixture("bert-tiny"), &[]);
    let vector = |body: serde_json::Value| -> Vec<f64> {
        let answer = server.post("/v1/embeddings", body).good();
        let numbers = answer["data"][0]["embedding"].as_array().unwrap();
        numbers.iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let whole = vector(json!({"input": [2, 10, 3]}));
    let short = vector(json!({"input": [2, 10, 3], "dimensions": 8}));
    assert_eq!(short.len(), 8);
    let norm = whole[..8].iter().map(|number| number * number).sum::<f64>().sqrt();
    for (short, whole) in short.iter().zip(&whole) {
        assert!((short - whole / norm).abs() < 1e-6);
    }
    let many = json!({"input": [2, 10, 3], "dimensions": whole.len() + 1});
    server.post("/v1/embeddings", many).is_error(400, None);
}

fn cross_encoder(name: &str) -> (std::path::PathBuf, serde_json::Value) {
    let all = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = all.join("../surefoot-models/tests/cross_encoders").join(name);
    let golden = std::fs::read_to_string(folder.join("pairs.json")).unwrap();
    (folder, serde_json::from_str(&golden).unwrap())
}

#[test]
fn a_cross_encoder_scores_documents_as_transformers_does() {
    for name in ["bert-cross", "xlm-roberta-cross", "modernbert-cross-mean"] {
        let (folder, golden) = cross_encoder(name);
        let server = Server::start(&folder, &[]);
        let pairs = golden["pairs"].as_array().unwrap();
        for query in ["how much memory does a tensor need", "what is a device"] {
            let of_query: Vec<&serde_json::Value> =
                pairs.iter().filter(|pair| pair["query"] == query).collect();
            let documents: Vec<&serde_json::Value> =
                of_query.iter().map(|pair| &pair["document"]).collect();
            let body = json!({"query": query, "documents": documents, "return_documents": true,
                              "truncate_prompt_tokens": golden["longest"]});
            let ranked = server.post("/v1/rerank", body.clone()).good();
            assert_eq!(ranked["method"], "cross-encoder");
            let results = ranked["results"].as_array().unwrap();
            assert_eq!(results.len(), documents.len());
            let mut last = f64::INFINITY;
            for result in results {
                let pair = of_query[result["index"].as_u64().unwrap() as usize];
                let score = result["relevance_score"].as_f64().unwrap();
                let expected = pair["score"].as_f64().unwrap();
                assert!((score - expected).abs() < 1e-4, "{name}: {score}, not {expected}");
                assert!(score <= last, "{name}: best first");
                assert_eq!(result["document"]["text"], pair["document"]);
                last = score;
            }
            let tokens: usize =
                of_query.iter().map(|pair| pair["ids"].as_array().unwrap().len()).sum();
            assert_eq!(ranked["usage"]["total_tokens"], tokens);
            let mut best = body;
            best["top_n"] = json!(2);
            best["raw_scores"] = json!(true);
            let best = server.post("/v1/rerank", best).good();
            let best = best["results"].as_array().unwrap();
            assert_eq!((best.len(), &best[0]["index"]), (2, &results[0]["index"]));
            let pair = of_query[best[0]["index"].as_u64().unwrap() as usize];
            let number = best[0]["relevance_score"].as_f64().unwrap();
            assert!((number - pair["number"].as_f64().unwrap()).abs() < 1e-4, "{number}");
        }
        // What is longer than the model takes is cut only if that was asked for.
        let mut long =
            json!({"query": "memory", "documents": ["a tensor", "a tensor ".repeat(60)]});
        let refused = server.post("/v1/rerank", long.clone());
        refused.is_error(400, Some("context_length_exceeded"));
        assert!(refused.body.contains("truncate_prompt_tokens"), "{}", refused.body);
        long["truncate_prompt_tokens"] = json!(-1);
        assert_eq!(server.post("/v1/rerank", long).good()["results"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn faults_while_pairs_are_scored_change_no_score() {
    let (folder, golden) = cross_encoder("bert-cross");
    let drill =
        "out_of_memory:op=classify,count=2;command_buffer:op=classify,at=during,nth=3,count=1";
    let server = Server::start(&folder, &["--drill", drill]);
    for pair in golden["pairs"].as_array().unwrap() {
        let body = json!({"query": pair["query"], "documents": [pair["document"]],
                          "truncate_prompt_tokens": golden["longest"]});
        let score = server.post("/v1/rerank", body).good()["results"][0]["relevance_score"].clone();
        let (score, expected) = (score.as_f64().unwrap(), pair["score"].as_f64().unwrap());
        assert!((score - expected).abs() < 1e-4, "{score}, not {expected}");
    }
}

#[test]
fn documents_are_ranked_by_the_cosine_of_their_embeddings() {
    let server = Server::start(&fixture("llama-tiny"), &[]);
    let documents = ["tensor device", "The tensor", "loss of a model"];
    let body = json!({"query": "The tensor", "documents": documents, "return_documents": true});
    let ranked = server.post("/v1/rerank", body.clone()).good();
    let results = ranked["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    // The same text has the same vector.
    assert_eq!(
        (&results[0]["index"], &results[0]["document"]["text"]),
        (&json!(1), &json!("The tensor"))
    );
    let score = |number: usize| results[number]["relevance_score"].as_f64().unwrap();
    assert!((score(0) - 1.0).abs() < 1e-5 && score(0) >= score(1) && score(1) >= score(2));
    assert_eq!(ranked["method"], "cosine of embeddings");
    let vectors = vectors(
        &server
            .post("/v1/embeddings", json!({"input": ["The tensor", documents[0], documents[2]]}))
            .good(),
    );
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    for result in &results[1..] {
        let vector = if result["index"] == 0 { &vectors[1] } else { &vectors[2] };
        let expected = cosine(&vectors[0], vector);
        assert!((result["relevance_score"].as_f64().unwrap() - expected).abs() < 1e-4);
    }
    let mut best = body;
    best["top_n"] = json!(1);
    best["documents"] = json!([{"text": "a"}, {"text": "b"}]);
    assert_eq!(server.post("/v1/rerank", best).good()["results"].as_array().unwrap().len(), 1);
    server.post("/v1/rerank", json!({"query": "x", "documents": []})).is_error(400, None);
}
