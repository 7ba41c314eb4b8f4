//! Quantised weights: what others ask for at the same time changes no tokens, and no bit of probabilities where all matrices are
//! quantised. Those that stay in F32, because their rows are no whole blocks, are added up in another order with more than eight tokens.

#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod tiny_engine;

use surefoot_models::weights::choice::WeightChoice;
use surefoot_serve::engine::{Generation, GenerationEvent};
use tiny_engine::{Setup, folder};

/// A token with the bits of its log-probability and of those of the likeliest ones.
type Rated = (u32, u32, Vec<(u32, u32)>);

fn rated(events: &[GenerationEvent]) -> Vec<Rated> {
    let rated = |event: &GenerationEvent| match event {
        GenerationEvent::Token { id, logprobs } => {
            let logprobs = logprobs.as_ref()?;
            let top = logprobs.top.iter().map(|one| (one.id, one.logprob.to_bits()));
            Some((*id, logprobs.chosen.to_bits(), top.collect()))
        }
        _ => None,
    };
    events.iter().filter_map(rated).collect()
}

/// Greedy requests of many lengths.
fn generations(count: usize) -> Vec<Generation> {
    let one = |number: usize| {
        let mut generation =
            tiny_engine::generation(number, 5 + (number * 7) % 40, 12 + number % 9);
        generation.logprobs = Some(3);
        generation
    };
    (0..count).map(one).collect()
}

#[test]
fn quantised_answers_are_the_same_in_company() {
    let as_stored = WeightChoice::default();
    for (model, weights, is_exact) in [
        ("gguf/llama-tiny.Q8_0.gguf", as_stored, false),
        ("gguf/llama-tiny.Q4_0.gguf", as_stored, false),
        ("gguf/llama-wide.Q4_K.gguf", as_stored, true),
        ("fixtures/llama-tiny", WeightChoice::Q8, false),
        ("fixtures/llama-tiny", WeightChoice::Q4, false),
    ] {
        let setup = || Setup { model: folder(model), weights, sequences: 24, ..Setup::default() };
        let alone = setup().start();
        let expected: Vec<Vec<Rated>> =
            generations(24).into_iter().map(|one| rated(&alone.events(vec![one])[0])).collect();
        for count in [12, 24] {
            let company = setup().start();
            let answers = company.events(generations(count));
            for (number, events) in answers.iter().enumerate() {
                let (answer, expected) = (rated(events), &expected[number]);
                let tokens = |rated: &[Rated]| rated.iter().map(|one| one.0).collect::<Vec<_>>();
                assert_eq!(
                    tokens(&answer),
                    tokens(expected),
                    "{model} {weights:?}: {number} of {count}"
                );
                if is_exact {
                    assert_eq!(&answer, expected, "{model} {weights:?}: {number} of {count}");
                }
            }
        }
    }
}
