//! What others ask for at the same time changes no bit of an answer on the CPU: not its tokens, and not their probabilities. This holds
//! for processors with vector instructions; with `SUREFOOT_CPU=portable`, Burn's products add up as they like.

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

/// Answers in the company of others are those that each request gets alone.
fn is_the_same_in_company(model: &str, weights: WeightChoice) {
    let setup = || Setup { model: folder(model), weights, sequences: 24, ..Setup::default() };
    let alone = setup().start();
    let expected: Vec<Vec<Rated>> =
        generations(24).into_iter().map(|one| rated(&alone.events(vec![one])[0])).collect();
    // An answer without a token has met its end at once.
    let answered = expected.iter().filter(|one| !one.is_empty()).count();
    assert!(answered >= 12, "{model}: there is little to compare");
    for count in [12, 24] {
        let company = setup().start();
        let answers = company.events(generations(count));
        for (number, events) in answers.iter().enumerate() {
            let (answer, expected) = (rated(events), &expected[number]);
            assert_eq!(&answer, expected, "{model} {weights:?}: {number} of {count}");
        }
    }
}

#[test]
fn weights_as_they_are_stored() {
    for model in [
        "fixtures/llama-tiny",
        "fixtures/gpt2-tiny",
        "fixtures/neox-tiny",
        "fixtures/phi3-tiny",
        "fixtures/qwen2-tiny",
        "fixtures/qwen2-moe-tiny",
        "fixtures/mistral-window",
        "fixtures/gemma3-tiny",
        "fixtures/cohere-tiny",
        "fixtures/olmo2-tiny",
        "gguf/llama-tiny.F32.gguf",
    ] {
        is_the_same_in_company(model, WeightChoice::default());
    }
}

#[test]
fn quantised_weights() {
    for model in [
        "gguf/llama-tiny.Q8_0.gguf",
        "gguf/llama-tiny.Q4_0.gguf",
        "gguf/gpt2-tiny.Q8_0.gguf",
        "gguf/llama-wide.Q2_K.gguf",
        "gguf/llama-wide.Q3_K.gguf",
        "gguf/llama-wide.Q4_K.gguf",
        "gguf/llama-wide.Q5_K.gguf",
        "gguf/llama-wide.Q6_K.gguf",
    ] {
        is_the_same_in_company(model, WeightChoice::default());
    }
    for weights in [WeightChoice::Q8, WeightChoice::Q4] {
        is_the_same_in_company("fixtures/llama-tiny", weights);
        is_the_same_in_company("fixtures/gpt2-tiny", weights);
    }
}
