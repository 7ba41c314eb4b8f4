//! Faults before, during and after passes change no answer, whatever is being answered: parts of prompts beside
//! sequences that are decoded, texts with a format, ratings of prompts, embeddings and scores of pairs. Those of plain
//! decoding are in `fault_matrix.rs`, with proposed tokens in `speculation.rs`, and where sequences give up
//! their pages beside the engine.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod tiny_engine;

use std::sync::Arc;

use surefoot::device::DeviceName;
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::text::{Texts, TokenPair};
use surefoot_serve::engine::{Generation, GenerationEvent, PendingVector};
use surefoot_serve::structured::{Format, Vocabulary};
use testkit::SECOND_CPU;
use tiny_engine::{Setup, TinyEngine, folder, generation};

/// Kinds that are answered in different ways: memory is reclaimed, then work is split; the pass is run again; another
/// device is used; the run ends, and each sequence or text is tried alone.
const KINDS: [&str; 4] = ["out_of_memory", "command_buffer", "device_lost", "numeric"];

/// Every moment of run number `step` of an operation.
fn drills(operation: &str, steps: &[usize]) -> Vec<String> {
    let mut drills = Vec::new();
    for kind in KINDS {
        for step in steps {
            for moment in ["at=before", "at=during,nth=1", "at=during,nth=4", "at=after"] {
                drills.push(format!("{kind}:op={operation},{moment},step={step},count=1"));
            }
        }
    }
    // Twice in a row: work is split.
    drills.push(format!("out_of_memory:op={operation},step={},count=2", steps[0]));
    drills
}

/// An engine on the CPU, which has another device to go to.
fn struck<'a>(setup: Setup<'a>, drill: &'a str) -> TinyEngine {
    Setup { drill, devices: vec![DeviceName::CPU, SECOND_CPU], ..setup }.start()
}

#[test]
fn a_fault_in_any_part_of_a_prompt_changes_no_token() {
    // No pass has more than 16 tokens, so the first 12 run parts of prompts.
    let setup = || Setup { pass_tokens: 16, ..Setup::default() };
    let sampled = Sampling { temperature: 0.8, top_k: None, top_p: None, seed: 3 };
    let generations = || {
        vec![
            generation(0, 10, 40),
            generation(1, 100, 8),
            Generation { sampling: sampled, ..generation(2, 90, 12) },
        ]
    };
    let calm = setup().start();
    let expected: Vec<Vec<u32>> =
        generations().into_iter().flat_map(|one| calm.tokens(vec![one])).collect();
    assert!(expected.iter().all(|tokens| !tokens.is_empty()), "{expected:?}");
    let batches = calm.metrics.counts().batches;
    assert_eq!(setup().start().tokens(generations()), expected, "together");
    assert!(batches > 12, "{batches} passes");
    for drill in drills("decode", &[1, 5, 11]) {
        let engine = struck(setup(), &drill);
        assert_eq!(engine.tokens(generations()), expected, "{drill}");
        let counts = engine.metrics.counts();
        assert_eq!((counts.failed, counts.finished), (0, 3), "{drill}");
        assert_eq!(engine.strikes(), if drill.ends_with('2') { 2 } else { 1 }, "{drill}");
    }
}

#[test]
fn a_fault_at_any_moment_changes_no_text_that_has_a_format() {
    let calm = Setup::default().start();
    let letter = |id: u32| (id < 94).then(|| vec![b'!' + id as u8]);
    let vocabulary = Vocabulary::new(calm.engine.vocab(), letter).unwrap();
    let format = Format::Regex("([a-e][0-9]){12}".to_owned());
    let constraint = Arc::new(format.constraint(&vocabulary).unwrap());
    let sampled = Sampling { temperature: 1.0, top_k: None, top_p: None, seed: 8 };
    let constrained = |one: Generation| Generation { constraint: Some(constraint.clone()), ..one };
    let generations = || {
        vec![
            constrained(generation(0, 12, 40)),
            constrained(Generation { sampling: sampled, ..generation(1, 30, 40) }),
            generation(2, 25, 40),
        ]
    };
    let expected = calm.tokens(generations());
    for tokens in &expected[..2] {
        let text: Vec<u8> = tokens.iter().map(|id| b'!' + *id as u8).collect();
        assert_eq!(text.len(), 24, "{text:?}");
        let has_format = |pair: &[u8]| (b'a'..=b'e').contains(&pair[0]) && pair[1].is_ascii_digit();
        assert!(text.chunks(2).all(has_format), "{text:?}");
    }
    for drill in drills("decode", &[0, 9]) {
        let engine = struck(Setup::default(), &drill);
        assert_eq!(engine.tokens(generations()), expected, "{drill}");
        assert!(engine.strikes() > 0, "{drill} never struck");
    }
}

/// The logarithms of the probabilities of a prompt's tokens, and the tokens behind it.
fn rated(engine: &TinyEngine) -> (Vec<f32>, Vec<u32>) {
    let one = Generation { rates_prompt: true, logprobs: Some(1), ..generation(1, 60, 6) };
    let (mut ratings, mut tokens) = (Vec::new(), Vec::new());
    for event in engine.events(vec![one]).remove(0) {
        match event {
            GenerationEvent::Prompt(prompt) => {
                ratings =
                    prompt.into_iter().skip(1).map(|(_, rating)| rating.unwrap().chosen).collect();
            }
            GenerationEvent::Token { id, .. } => tokens.push(id),
            other => panic!("{other:?}"),
        }
    }
    (ratings, tokens)
}

fn are_close(one: &[f32], other: &[f32]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4)
}

#[test]
fn a_fault_at_any_moment_changes_no_rating_of_a_prompt() {
    let (expected, tokens) = rated(&Setup::default().start());
    assert_eq!(expected.len(), 59);
    assert!(expected.iter().any(|rating| *rating < -1.0), "{expected:?}");
    // The prompt is rated by the first run, and run in the second.
    for drill in drills("decode", &[0, 1]) {
        let engine = struck(Setup::default(), &drill);
        let (ratings, after) = rated(&engine);
        assert!(are_close(&ratings, &expected), "{drill}: {ratings:?}, not {expected:?}");
        assert_eq!(after, tokens, "{drill}");
        assert!(engine.strikes() > 0, "{drill} never struck");
    }
}

fn vectors(pending: Vec<PendingVector>) -> Vec<Vec<f32>> {
    pending.into_iter().map(|vector| vector.blocking_recv().unwrap().unwrap()).collect()
}

/// Compares what `ask` gets with and without drills of an operation.
fn vectors_under_drills(
    setup: impl Fn() -> Setup<'static>,
    operation: &str,
    ask: impl Fn(&TinyEngine) -> Vec<Vec<f32>>,
) {
    let expected = ask(&setup().start());
    assert!(expected.iter().flatten().any(|number| number.abs() > 1e-3), "{expected:?}");
    for drill in drills(operation, &[0, 1]) {
        let Setup { model, .. } = setup();
        let engine = struck(Setup { model, ..Setup::default() }, &drill);
        for time in ["first", "second"] {
            let got = ask(&engine);
            let same = got.iter().zip(&expected).all(|(got, expected)| are_close(got, expected));
            assert!(same && got.len() == expected.len(), "{drill}, {time}: {got:?}");
        }
        assert!(engine.strikes() > 0, "{drill} never struck");
        assert_eq!(engine.metrics.counts().failed, 0, "{drill}");
    }
}

#[test]
fn a_fault_at_any_moment_changes_no_embedding() {
    let texts = || (0..5).map(|number| generation(number, 4 + 3 * number, 1).prompt).collect();
    vectors_under_drills(Setup::default, "embed", |engine| {
        vectors(engine.engine.embed(texts(), None, None).unwrap())
    });
}

#[test]
fn a_fault_at_any_moment_changes_no_score_of_a_pair() {
    let model = || folder("cross_encoders/bert-cross");
    let setup = || Setup { model: model(), ..Setup::default() };
    let tokenizer = Texts::open(&model(), setup().start().engine.vocab()).unwrap();
    let pair = |document: &str| -> TokenPair {
        tokenizer.encode_pair("a device", document, 128).unwrap().0
    };
    vectors_under_drills(setup, "classify", |engine| {
        let pairs = ["memory", "a tensor of numbers", "a fault"].map(pair).to_vec();
        vectors(engine.engine.classify(pairs, None, None).unwrap())
    });
}
