//! `surefoot quantize` as people run it, and what `compare` says of its results.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod changed;

use std::path::Path;

use changed::{copy, fixture, json, surefoot};
use predicates::prelude::*;
use predicates::str::contains;

fn quantize(model: &Path, to: &str, out: &Path) {
    surefoot("quantize").arg(model).args(["--to", to, "--out"]).arg(out).assert().success();
}

fn generated(model: &Path, options: &[&str]) -> String {
    let run = surefoot("generate")
        .arg(model)
        .args(["the quick", "--max-tokens", "12", "--json"])
        .args(options)
        .assert();
    json(run.success())["completions"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_quantised_folder_writes_what_quantising_while_loading_writes() {
    let folder = tempfile::tempdir().unwrap();
    for (fixture_name, form) in [("llama-tiny", "q8"), ("llama-tiny", "q4"), ("gpt2-tiny", "q4")] {
        let out = folder.path().join(format!("{fixture_name}-{form}"));
        let model = fixture(fixture_name);
        let mut run = surefoot("quantize");
        run.arg(&model).args(["--to", form, "--json", "--out"]).arg(&out);
        let made = json(run.assert().success());
        assert!(made["bytes"].as_u64() < made["stored_bytes"].as_u64(), "{made}");
        assert_eq!((&made["weights"], &made["resumed_bytes"]), (&form.into(), &0.into()));
        if fixture_name == "llama-tiny" {
            assert_eq!(generated(&out, &[]), generated(&model, &["--weights", form]));
        }
        let plan = json(surefoot("plan").arg(&out).arg("--json").assert().success());
        assert_eq!(plan["fits"], true);
    }
    surefoot("quantize")
        .arg(fixture("llama-tiny"))
        .args(["--to", "q4", "--out"])
        .arg(folder.path().join("llama-tiny-q4"))
        .assert()
        .code(2)
        .stderr(contains("exists already"));
}

/// The verdict, how the reference was rounded for it, and the class of noise.
fn verdict(reference: &Path, candidate: &Path, code: i32) -> (String, String, String) {
    let run = surefoot("compare").args([reference, candidate]).arg("--json").assert().code(code);
    let found = json(run);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    (
        text(&found["comparison"]["decision"]["verdict"]),
        text(&found["rounding"]),
        text(&found["comparison"]["class"]),
    )
}

/// The reference is rounded as the candidate is, so only the order of sums is allowed for.
#[test]
fn a_faithful_quantisation_is_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama-tiny");
    let q4 = folder.path().join("q4");
    quantize(&model, "q4", &q4);
    let gguf = |name: &str| model.join("../../gguf").join(name);
    for (candidate, formats) in [
        (gguf("llama-tiny.Q8_0.gguf"), "rounded to F32+Q8_0"),
        (gguf("llama-tiny.Q4_0.gguf"), "rounded to F32+Q4_0"),
        (q4, "rounded to F32+Q4_0+Q8_0"),
    ] {
        let (found, rounding, class) = verdict(&model, &candidate, 0);
        assert_eq!((found.as_str(), class.as_str()), ("SAME", "arithmetic"), "{candidate:?}");
        assert!(rounding.starts_with("rounded to ") && formats.contains(&rounding), "{rounding}");
    }
    let told = surefoot("compare").arg(&model).arg(gguf("llama-tiny.Q4_0.gguf")).assert();
    told.code(0).stdout(contains("allowed for: rounded to").and(contains("(q4)")));
}

/// Less than 4 bits can show changes many of these weights, not all: the change is found all the same.
#[test]
fn another_model_under_the_same_quantisation_is_different() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama-tiny");
    let (tuned, q4) = (folder.path().join("tuned"), folder.path().join("tuned-q4"));
    copy(&model, &tuned, "model.layers.1.self_attn.o_proj.weight", |number| number * 1.02 + 1e-3);
    quantize(&tuned, "q4", &q4);
    let (found, rounding, _) = verdict(&model, &q4, 1);
    assert_eq!(found, "DIFFERENT");
    assert!(rounding.starts_with("rounded to "), "{rounding}");
    // And it is the quantisation of the model that it was made from.
    assert_eq!(verdict(&tuned, &q4, 0).0, "SAME");
}

/// llama.cpp's own Q4_K (with Q5_K and Q6_K). Programs do not round to these formats alike, so more is allowed for; another model
/// is farther away than that.
#[test]
fn the_k_quantisation_of_another_program_is_the_same_model_and_that_of_another_model_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama-wide");
    let gguf = model.join("../../gguf/llama-wide.Q4_K.gguf");
    let (found, rounding, _) = verdict(&model, &gguf, 0);
    assert_eq!((found.as_str(), rounding.as_str()), ("SAME", "rounded to F32+Q4_K+Q5_K+Q6_K"));
    let other = folder.path().join("other");
    // Two numbers in bf16 are taken for one in f32: every second changes its sign.
    copy(&model, &other, "model.layers.0.mlp.down_proj.weight", |number| -number);
    assert_eq!(verdict(&other, &gguf, 1).0, "DIFFERENT");
}

#[test]
fn quality_shows_that_fewer_bits_are_farther_from_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    let text = "the quick brown fox jumps over the lazy dog, and then it sleeps. ".repeat(12);
    std::fs::write(&file, text).unwrap();
    let model = fixture("llama-tiny");
    let measured = |weights: &str| {
        let mut run = surefoot("compare");
        run.args([&model, &model]).arg("--quality").arg(&file);
        run.args(["--weights", weights, "--quality-tokens", "256", "--json"]);
        json(run.assert().code(0))["quality"].clone()
    };
    let (exact, q8, q4) = (measured("as-stored"), measured("q8"), measured("q4"));
    let number = |quality: &serde_json::Value, key: &str| quality[key].as_f64().unwrap();
    assert_eq!(exact["of"], "predictions");
    assert!(number(&exact, "kl_mean") < 1e-9 && number(&exact, "top1_agreement") == 1.0, "{exact}");
    assert!(number(&q8, "kl_mean") > 1e-7, "{q8}");
    assert!(number(&q4, "kl_mean") > 4.0 * number(&q8, "kl_mean"), "{q4} against {q8}");
    assert!(number(&q4, "kl_99") >= number(&q4, "kl_mean"), "{q4}");
    assert!(number(&q8, "top1_agreement") > 0.9, "{q8}");
    let (ours, theirs) = (number(&q8, "reference_perplexity"), number(&q8, "candidate_perplexity"));
    assert!(ours > 1.0 && (theirs / ours - 1.0).abs() < 0.1, "{q8}");
    // An encoder has no predictions.
    let bert = folder.path().join("bert");
    std::fs::create_dir(&bert).unwrap();
    for (from, name) in [
        ("bert-tiny", "config.json"),
        ("bert-tiny", "model.safetensors"),
        ("llama-tiny", "tokenizer.json"),
    ] {
        std::fs::copy(fixture(from).join(name), bert.join(name)).unwrap();
    }
    let mut run = surefoot("compare");
    run.args([&bert, &bert]).arg("--quality").arg(&file).args(["--weights", "q4", "--json"]);
    let q4 = json(run.assert().code(0))["quality"].clone();
    assert_eq!(q4["of"], "embeddings");
    let least = number(&q4, "cosine_least");
    assert!(least > 0.9 && least < 1.0, "{q4}");
    surefoot("compare")
        .args([&model, &model])
        .args(["--quality", "gone.txt"])
        .assert()
        .code(2)
        .stderr(contains("gone.txt can't be read"));
}
