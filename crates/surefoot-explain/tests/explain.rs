//! The text classifier against real messages: the sample set, and the rounds that it was tuned on.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;
use surefoot_core::fault::FaultKind;
use surefoot_explain::{explain, explain_by_rules};

#[derive(Deserialize)]
struct Row {
    message: String,
    label: FaultKind,
}

fn rows(jsonl: &str) -> Vec<Row> {
    jsonl.lines().map(|line| serde_json::from_str(line).expect("a row of JSON")).collect()
}

/// The share that is right, and what is wrong.
fn accuracy(rows: &[Row]) -> (f64, Vec<String>) {
    let wrong: Vec<String> = rows
        .iter()
        .map(|row| (row, explain(&row.message)))
        .filter(|(row, found)| found.kind != row.label)
        .map(|(row, found)| {
            format!(
                "{} taken for {} by {:?}: {}",
                row.label, found.kind, found.evidence, row.message
            )
        })
        .collect();
    (1.0 - wrong.len() as f64 / rows.len() as f64, wrong)
}

#[test]
fn the_sample_set_is_explained() {
    let rows = rows(include_str!("data/errors.jsonl"));
    assert_eq!(rows.len(), 121);
    let (share, wrong) = accuracy(&rows);
    assert!(share >= 0.97, "{:.1} %\n{}", share * 100.0, wrong.join("\n"));
}

#[test]
fn the_messages_that_the_rules_were_tuned_on_stay_explained() {
    let rows = rows(include_str!("data/errors-tuned-on.jsonl"));
    assert!(rows.len() >= 250);
    let (share, wrong) = accuracy(&rows);
    assert!(share >= 0.97, "{:.1} %\n{}", share * 100.0, wrong.join("\n"));
}

#[test]
fn the_tuned_on_set_shares_no_message_with_the_samples_and_has_every_kind() {
    let samples = rows(include_str!("data/errors.jsonl"));
    let tuned_on = rows(include_str!("data/errors-tuned-on.jsonl"));
    let mut kinds = BTreeMap::new();
    for row in &tuned_on {
        assert!(samples.iter().all(|sample| sample.message != row.message), "{}", row.message);
        *kinds.entry(row.label).or_insert(0) += 1;
    }
    // No message of another program means that our own run lost its state.
    assert_eq!(kinds.len(), FaultKind::ALL.len() - 1);
    assert!(!kinds.contains_key(&FaultKind::StateLost));
    assert!(kinds.values().all(|&count| count >= 10), "{kinds:?}");
}

/// What people and programs put around a message.
const WRAPPINGS: &[fn(&str) -> String] = &[
    |m| format!("2024-05-14 09:12:44,871 - trainer - ERROR - {m}"),
    |m| format!("Error: inference request failed: {m}"),
    |m| format!("```\n{m}\n```"),
    |m| format!("\x1b[31m{m}\x1b[0m"),
    |m| m.replace('\n', "\r\n"),
    |m| m.replace('\n', "\\n"),
    |m| m.to_lowercase(),
    |m| format!("{m}\n\nProcess finished with exit code 1"),
    |m| format!("{m}\nAborted (core dumped)"),
    |m| {
        format!(
            "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.\nEpoch 1/10:  34%|###4 | 120/353\n{m}"
        )
    },
    |m| {
        format!(
            "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 97, in main\n    loss = step(model, batch)\n{m}"
        )
    },
    |m| {
        format!(
            "thread 'main' panicked at src/main.rs:42:10:\ncalled `Result::unwrap()` on an `Err` value: {m}\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"
        )
    },
    |m| {
        let logged = |line| format!("(Worker pid=220) ERROR 04-24 16:06:40 worker.py:157] {line}");
        format!("Traceback (most recent call last):\n{m}")
            .lines()
            .map(logged)
            .collect::<Vec<_>>()
            .join("\n")
    },
];

#[test]
fn what_is_put_around_a_message_does_not_change_its_kind() {
    let samples = rows(include_str!("data/errors.jsonl"));
    for (number, wrap) in WRAPPINGS.iter().enumerate() {
        let wrapped: Vec<Row> = samples
            .iter()
            .map(|row| Row { message: wrap(&row.message), label: row.label })
            .collect();
        let (share, wrong) = accuracy(&wrapped);
        assert!(share >= 0.99, "wrapping {number}: {:.1} %\n{}", share * 100.0, wrong.join("\n"));
    }
}

#[test]
fn lines_that_differ_in_a_number_alone_are_no_prefix() {
    let text = "OVERFLOW! Skipping step. Attempted loss scale: 65536\nOVERFLOW! Skipping step. Attempted loss scale: 32768";
    assert_eq!(explain(text).kind, FaultKind::Numeric);
    let text = "step 3: loss 0.2\nstep 4: loss 0.1\nstep 5: loss 0.1";
    assert!(!explain(text).recognised());
}

/// Errors of the everyday that share words with builds, sizes, engines and delegates.
const ORDINARY: &[&str] = &[
    "Failed to build program: make returned 2",
    "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
    "TypeError: cannot pickle 'TransformerModel' object",
    "sqlalchemy could not create engine from url",
    "create_pipeline failed for CI job",
    "TypeError: Expected int32, got None of type 'NoneType' instead.",
    "Config file not found: settings.yaml",
    "DLL load failed while importing _ssl: The specified module could not be found.",
    "error: linking failed: undefined reference to main",
    "model could not be parsed from the form",
    "assertion failed: list.shape == other",
    "report.csv is not a valid file",
    "main.cpp(42): error: identifier expected",
    "delegate to the other team failed",
    "collect2: error: ld returned 1 exit status",
];

#[test]
fn ordinary_errors_with_a_rule_s_words_are_no_device_fault() {
    for text in ORDINARY {
        let found = explain_by_rules(text);
        assert_eq!(found.kind, FaultKind::NotDeviceRelated, "{:?} in {text}", found.evidence);
    }
}

proptest! {
    #[test]
    fn any_text_is_explained_from_its_own_words(text in "\\PC{0,300}") {
        let found = explain(&text);
        prop_assert!((0.0..=1.0).contains(&found.confidence));
        prop_assert_eq!(&explain(&text), &found);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        prop_assert!(words(&text).contains(&words(&found.evidence)), "{:?}", found.evidence);
    }

    #[test]
    fn any_lines_around_a_message_leave_evidence_that_is_in_the_text(
        before in "[ -~\n]{0,400}",
        after in "[ -~é❱\n\t]{0,200}",
        pick in 0_usize..121,
    ) {
        let message = &rows(include_str!("data/errors.jsonl"))[pick].message;
        let text = format!("{before}\n{message}\n{after}");
        let found = explain(&text);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        prop_assert!(words(&text).contains(&words(&found.evidence)), "{:?}", found.evidence);
    }

    #[test]
    fn ordinary_words_are_no_device_fault(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "bloom", "room", "zoom", "broom", "memory_format", "device", "devices", "the",
                "cuda", "gpu", "model", "batch", "shape", "of", "loaded", "kernel", "metal", "is",
                "tensor", "nanometre", "information", "infer", "buffer", "half", "lost", "found",
            ]),
            0..4,
        ),
        // Shorter words happen to be "nan" or "oom" now and then, which do say something.
        noise in "[a-z]{5,9}( [a-z]{5,9}){0,6}",
    ) {
        let text = format!("{} {noise}", words.join(", "));
        let found = explain_by_rules(&text);
        prop_assert_eq!(found.kind, FaultKind::NotDeviceRelated, "{:?} in {}", found.evidence, text);
    }
}
