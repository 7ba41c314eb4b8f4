//! The learned stage as `explain` uses it.

// The training command's own modules: the tests use a part of them.
#[allow(dead_code)]
#[path = "../examples/learned_stage/data.rs"]
mod data;
#[allow(dead_code)]
#[path = "../examples/learned_stage/fit.rs"]
mod fit;

use std::error::Error;

use surefoot_core::fault::FaultKind;
use surefoot_explain::learned::Model;
use surefoot_explain::{DecidedBy, explain, explain_by_rules, kind_of_text};

/// Weights that nobody can train again would be worth little: the file must be what
/// `--example learned_stage -- train` writes from the messages in the repository.
#[test]
fn the_embedded_weights_are_what_the_training_command_writes() -> Result<(), Box<dyn Error>> {
    let embedded = Model::embedded().expect("an embedded model");
    let mut trained = fit::model_of(&data::all()?, &data::ordinary()?);
    trained.calibration = embedded.calibration;
    assert!(
        &trained == embedded,
        "run `--example learned_stage -- train` and commit model/weights.bin"
    );
    Ok(())
}

/// Messages of round `provoked-1` that no rule knows, so that the model has to decide.
const UNKNOWN_TO_THE_RULES: &[(&str, FaultKind)] = &[
    (
        "ValueError: File not found: filepath=/no/such/model.keras. Please ensure the file is an accessible `.keras` zip file.",
        FaultKind::ModelLoading,
    ),
    (
        "ValueError: Data cardinality is ambiguous. Make sure all arrays contain the same number of samples.'x' sizes: 4\n'y' sizes: 5",
        FaultKind::ShapeMismatch,
    ),
    (
        "RuntimeError: Only Tensors of floating point and complex dtype can require gradients",
        FaultKind::DtypeMismatch,
    ),
];

#[test]
fn what_no_rule_knows_is_decided_by_the_model_with_its_words() {
    for &(text, kind) in UNKNOWN_TO_THE_RULES {
        assert!(explain_by_rules(text).confidence <= 0.5, "a rule knows '{text}' now: use another");
        let found = explain(text);
        assert_eq!(found.kind, kind, "{found:?}");
        assert_eq!(found.decided_by, DecidedBy::Learned);
        assert!(!found.words.is_empty() && text.contains(&found.evidence), "{found:?}");
        assert!(found.words.iter().all(|word| text.contains(word.as_str())), "{found:?}");
        assert!((0.0..=1.0).contains(&found.confidence));
        if let Some(second) = found.second {
            assert!(second.kind != found.kind && second.probability <= found.confidence);
        }
    }
}

#[test]
fn recovery_does_not_act_on_what_was_learned() {
    for &(text, _) in UNKNOWN_TO_THE_RULES {
        assert_eq!(kind_of_text(text), FaultKind::NotDeviceRelated, "{text}");
    }
}

#[test]
fn one_or_two_words_are_not_guessed_at() {
    for text in ["gnu", "kernel", "cuda half", "shape: lost"] {
        assert_eq!(explain(text), explain_by_rules(text), "{text}");
    }
}

#[test]
fn rules_that_are_sure_are_not_overruled() -> Result<(), Box<dyn Error>> {
    for message in data::messages("errors.jsonl")? {
        let rules = explain_by_rules(&message.message);
        if rules.confidence > 0.5 {
            assert_eq!(explain(&message.message), rules);
        }
    }
    Ok(())
}

/// The same probabilities on every platform: these were written down on x86-64 Linux.
#[test]
fn probabilities_do_not_depend_on_the_platform() {
    let found = explain(UNKNOWN_TO_THE_RULES[0].0);
    assert_eq!(found.confidence.to_bits(), 0x3f75_92ad, "{}", found.confidence);
}
