//! Tokens that are proposed change no answer: with several clients at once, with prefixes that are shared, when devices
//! fail, and however tokens are chosen.

#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod tiny_engine;

use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::SpeculationMode;
use surefoot_serve::engine::{Generation, GenerationEvent, LogitRules};
use tiny_engine::{Setup, TinyEngine};

/// An engine that proposes tokens.
fn speculating(drill: &str, speculation: SpeculationMode, draft: Option<&str>) -> TinyEngine {
    Setup { drill, speculation, draft, ..Setup::default() }.start()
}

/// A greedy continuation of a prompt.
fn generation(number: usize) -> Generation {
    tiny_engine::generation(number, 20 + 7 * number, 40)
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

fn alone(engine: &TinyEngine) -> Vec<Vec<u32>> {
    generations().into_iter().flat_map(|one| engine.tokens(vec![one])).collect()
}

#[test]
fn proposals_change_no_answer_alone_together_and_with_prefixes_that_are_known() {
    let plain = alone(&speculating("", SpeculationMode::Off, None));
    for (mode, draft) in [
        (SpeculationMode::Lookup, None),
        (SpeculationMode::Auto, None),
        (SpeculationMode::Draft, Some("qwen2-tiny")),
        (SpeculationMode::Draft, Some("llama-tiny")),
        (SpeculationMode::Auto, Some("llama-tiny")),
    ] {
        let engine = speculating("", mode, draft);
        let metrics = &engine.metrics;
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
        assert_eq!(engine.tokens(generations()), plain, "{mode:?} {draft:?}, together");
        let since = metrics.counts().since(&before);
        assert!(since.prefix_hits > 0, "{since:?}");
        assert_eq!(since.finished, 6);
    }
}

#[test]
fn a_client_is_told_what_became_of_proposals() {
    let TinyEngine { engine, metrics, .. } =
        speculating("", SpeculationMode::Draft, Some("llama-tiny"));
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
    let plain = alone(&speculating("", SpeculationMode::Off, None));
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
        let struck = speculating(drill, mode, draft);
        assert_eq!(struck.tokens(generations()), plain, "{drill}");
        let counts = struck.metrics.counts();
        assert_eq!((counts.failed, counts.finished), (0, 6), "{drill}");
        assert!(struck.strikes() > 0, "{drill} never struck");
    }
}
