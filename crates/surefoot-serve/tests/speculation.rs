//! Tokens that are proposed change no answer: with several clients at once, with prefixes that are shared, when devices
//! fail, and however tokens are chosen.

#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot::journal::Journal;
use surefoot::recover::Drill;
use surefoot_models::embed::Pooling;
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::SpeculationMode;
use surefoot_serve::engine::{
    Engine, EngineLimits, EngineSettings, Generation, GenerationEvent, LogitRules,
};
use surefoot_serve::metrics::Metrics;

/// An engine that proposes tokens, what it counts, and its footing.
fn speculating(
    drill: &str,
    speculation: SpeculationMode,
    draft: Option<&str>,
) -> (Engine, Arc<Metrics>, Arc<Footing>) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures");
    let builder = Footing::builder().devices(Selector::only(DeviceName::CPU));
    let footing = Arc::new(match drill {
        "" => builder.build().unwrap(),
        drill => builder.drill(drill.parse::<Drill>().unwrap()).build().unwrap(),
    });
    let settings = EngineSettings {
        limits: EngineLimits {
            sequences: 8,
            context: Some(128),
            texts: 1,
            text_tokens: None,
            pass_tokens: 64,
            queue: 64,
            patience: Duration::ZERO,
            batches_in_flight: 1,
        },
        pooling: Pooling::Mean,
        journal: Journal::off(),
        weights: Default::default(),
        adapter: None,
        adapters: Vec::new(),
        speculation,
        draft: draft.map(|draft| fixtures.join(draft)),
    };
    let metrics: Arc<Metrics> = Arc::default();
    let folder = fixtures.join("llama-tiny");
    let engine =
        Engine::start(&folder, Arc::clone(&footing), settings, Arc::clone(&metrics)).unwrap();
    (engine, metrics, footing)
}

/// A greedy continuation of a prompt.
fn generation(number: usize) -> Generation {
    Generation {
        prompt: (0..20 + 7 * number).map(|at| ((at * 31 + number * 17 + 5) % 96) as u32).collect(),
        adapter: None,
        max_tokens: 40,
        sampling: Sampling::GREEDY,
        rules: LogitRules::default(),
        constraint: None,
        logprobs: None,
        rates_prompt: false,
    }
}

/// The tokens of what is to be generated at the same time.
fn tokens_of(engine: &Engine, generations: Vec<Generation>) -> Vec<Vec<u32>> {
    let streams = engine.generate(generations, None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answers = streams.into_iter().map(|mut stream| {
        runtime.block_on(async {
            let mut tokens = Vec::new();
            loop {
                match stream.recv().await.unwrap() {
                    GenerationEvent::Token { id, .. } => tokens.push(id),
                    GenerationEvent::Ended(_) => break tokens,
                    GenerationEvent::Failed(error) => panic!("{error}"),
                    GenerationEvent::Prompt(_) => {}
                }
            }
        })
    });
    answers.collect()
}

/// Requests of all sorts: greedy, sampled, with penalties, with probabilities.
fn generations() -> Vec<Generation> {
    let bold = Sampling { temperature: 0.8, top_k: None, top_p: Some(0.9), seed: 5 };
    let rules = LogitRules { frequency_penalty: 0.4, ..LogitRules::default() };
    vec![
        generation(0),
        Generation { sampling: bold, ..generation(1) },
        Generation { rules, ..generation(2) },
        Generation { logprobs: Some(2), ..generation(3) },
        Generation { max_tokens: 7, ..generation(4) },
        generation(5),
    ]
}

fn alone(engine: &Engine) -> Vec<Vec<u32>> {
    generations().into_iter().flat_map(|one| tokens_of(engine, vec![one])).collect()
}

#[test]
fn proposals_change_no_answer_alone_together_and_with_prefixes_that_are_known() {
    let (calm, ..) = speculating("", SpeculationMode::Off, None);
    let plain = alone(&calm);
    for (mode, draft) in [
        (SpeculationMode::Lookup, None),
        (SpeculationMode::Auto, None),
        (SpeculationMode::Draft, Some("qwen2-tiny")),
        (SpeculationMode::Draft, Some("llama-tiny")),
        (SpeculationMode::Auto, Some("llama-tiny")),
    ] {
        let (engine, metrics, _) = speculating("", mode, draft);
        assert_eq!(alone(&engine), plain, "{mode:?} {draft:?}");
        let counts = metrics.counts();
        if mode != SpeculationMode::Auto {
            assert!(counts.accepted_proposals + counts.rejected_proposals > 0, "{counts:?}");
            // A model that drafts for itself is right, but where tokens are sampled or penalised.
            if draft == Some("llama-tiny") {
                assert!(counts.accepted_proposals > 0, "{counts:?}");
                assert!(counts.rejected_proposals > 0, "{counts:?}");
            }
            let text = metrics.text().unwrap();
            let line = format!(
                "surefoot_proposed_tokens_total{{result=\"accepted\"}} {}",
                counts.accepted_proposals
            );
            assert!(text.contains(&line), "{text}");
        }
        // Their prompts are known now.
        let before = metrics.counts();
        assert_eq!(tokens_of(&engine, generations()), plain, "{mode:?} {draft:?}, together");
        let since = metrics.counts().since(&before);
        assert!(since.prefix_hits > 0, "{since:?}");
        assert_eq!(since.finished, 6);
    }
}

#[test]
fn a_client_is_told_what_became_of_proposals() {
    let (engine, metrics, _) = speculating("", SpeculationMode::Draft, Some("llama-tiny"));
    let mut streams = engine.generate(vec![generation(0)], None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut stream = streams.remove(0);
    let ended = |event| matches!(event, Some(GenerationEvent::Ended(_)) | None);
    while !ended(runtime.block_on(stream.recv())) {}
    let (told, counts) = (stream.speculation(), metrics.counts());
    assert!(told.accepted > 0);
    assert_eq!(
        (told.accepted, told.rejected),
        (counts.accepted_proposals, counts.rejected_proposals)
    );
}

#[test]
fn a_fault_at_any_moment_changes_no_answer() {
    let (calm, ..) = speculating("", SpeculationMode::Off, None);
    let plain = alone(&calm);
    for (drill, mode, draft) in [
        ("out_of_memory:op=decode,at=before,step=4,count=1", SpeculationMode::Lookup, None),
        ("command_buffer:op=decode,at=during,nth=3,step=6,count=1", SpeculationMode::Lookup, None),
        ("numeric:op=decode,at=after,step=9,count=1", SpeculationMode::Lookup, None),
        ("out_of_memory:op=decode,at=during,nth=5,step=8,count=2", SpeculationMode::Lookup, None),
        (
            "command_buffer:op=draft,at=during,nth=9,step=3,count=1",
            SpeculationMode::Draft,
            Some("llama-tiny"),
        ),
        ("numeric:op=decode,at=after,step=5,count=1", SpeculationMode::Draft, Some("llama-tiny")),
        // Drafting fails for good; decoding does not.
        ("unsupported_op:op=draft,at=before,count=500", SpeculationMode::Draft, Some("qwen2-tiny")),
    ] {
        let (struck, metrics, footing) = speculating(drill, mode, draft);
        assert_eq!(tokens_of(&struck, generations()), plain, "{drill}");
        assert_eq!((metrics.counts().failed, metrics.counts().finished), (0, 6), "{drill}");
        let strikes: u64 = footing.drill().strikes().iter().map(|rule| rule.struck).sum();
        assert!(strikes > 0, "{drill} never struck");
    }
}
