//! `surefoot rerank` as people run it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests")
}

/// The pairs of a query, with what transformers gives for them; those that are not cut.
fn golden(folder: &Path, query: &str) -> Vec<(String, f64, f64)> {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(folder.join("pairs.json")).unwrap()).unwrap();
    let longest = golden["longest"].as_u64().unwrap() as usize;
    let pairs = golden["pairs"].as_array().unwrap().iter();
    pairs
        .filter(|pair| pair["query"] == query && pair["ids"].as_array().unwrap().len() < longest)
        .map(|pair| {
            let number = |key: &str| pair[key].as_f64().unwrap();
            (pair["document"].as_str().unwrap().to_owned(), number("score"), number("number"))
        })
        .collect()
}

fn rerank(folder: &Path, query: &str, texts: &str, options: &[&str]) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("rerank").arg(folder).args(["--query", query]).args(options).write_stdin(texts);
    command
}

#[test]
fn lines_are_printed_best_first_with_the_scores_of_transformers() {
    let query = "what is a device";
    for name in ["bert-cross", "roberta-cross"] {
        let folder = models().join("cross_encoders").join(name);
        let golden = golden(&folder, query);
        assert!(golden.len() >= 3);
        let texts: String = golden.iter().map(|(text, ..)| format!("{text}\n")).collect();
        let output = rerank(&folder, query, &texts, &[]).assert().success();
        let printed = String::from_utf8(output.get_output().stdout.clone()).unwrap();
        let mut expected: Vec<usize> = (0..golden.len()).collect();
        expected.sort_by(|a, b| golden[*b].1.total_cmp(&golden[*a].1));
        assert_eq!(printed.lines().count(), golden.len());
        for (line, index) in printed.lines().zip(expected) {
            let [score, number, text] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            assert_eq!((number, text), (&*(index + 1).to_string(), &*golden[index].0));
            assert!((score.parse::<f64>().unwrap() - golden[index].1).abs() < 1e-4, "{line}");
        }
        let options = ["--json", "--raw", "--top-n", "1", "--isolate"];
        let output = rerank(&folder, query, &texts, &options).assert().success();
        let document: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let results = document["results"].as_array().unwrap();
        let best = &golden[results[0]["index"].as_u64().unwrap() as usize];
        assert_eq!((results.len(), &document["activation"]), (1, &"identity".into()));
        assert!((results[0]["relevance_score"].as_f64().unwrap() - best.2).abs() < 1e-4);
        assert_eq!(results[0]["document"], *best.0);
    }
}

#[test]
fn a_text_that_is_too_long_is_cut_with_a_note() {
    let folder = models().join("cross_encoders/bert-cross");
    let texts = format!("short\n{}\n", "memory ".repeat(100));
    rerank(&folder, "a device", &texts, &[])
        .assert()
        .success()
        .stderr(contains("1 of 2 texts were cut").and(contains("line 2")));
}

#[test]
fn a_model_that_is_no_cross_encoder_is_refused_with_what_to_do() {
    let refused = rerank(&models().join("fixtures/bert-tiny"), "x", "y\n", &[]).assert().code(2);
    refused.stderr(contains("is not a cross-encoder").and(contains("surefoot embed")));
    let folder = models().join("cross_encoders/bert-cross");
    rerank(&folder, "x", "", &[]).assert().code(2).stderr(contains("no texts"));
}
