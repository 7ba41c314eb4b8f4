//! Every kind of fault at every moment of decoding, on the CPU or on the device that
//! `SUREFOOT_TEST_DEVICE` names. No token is lost, repeated or changed: a pass that fails for good
//! is followed by one for each sequence alone, which the fault does not strike again.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surefoot::device::Selector;
use surefoot::journal::{EventKind, Journal};
use surefoot::recover::Drill;
use surefoot::{Fault, Footing};
use surefoot_models::embed::Pooling;
use surefoot_models::generate::sample::Sampling;
use surefoot_serve::engine::{
    self, Engine, EngineLimits, EngineSettings, Generation, GenerationEvent, LogitRules,
};
use surefoot_serve::metrics::Metrics;
use testkit::chain_under_test;
use testkit::workload_matrix::{Ended, strike_between_parts, strike_in_a_block, strike_once};

/// Runs of `decode`: the first one is over a prompt. By the later one two sequences or more have
/// joined, however slow the machine is, and none has ended.
const FIRST: u64 = 0;
const LATER: u64 = 5;
/// A run that repeats a recording where devices can: a step of a single sequence behind many like it.
const REPEATED: u64 = 15;

/// What is decoded.
#[derive(Clone, Copy)]
struct Work {
    sequences: u64,
    tokens: usize,
    temperature: f32,
}

const SAMPLED: Work = Work { sequences: 4, tokens: 10, temperature: 0.8 };
const GREEDY: Work = Work { sequences: 1, tokens: 17, temperature: 0.0 };

/// The tokens of the sequences, and the journal of their decoding.
fn decode(drill: &Drill, work: Work) -> (Vec<Vec<u32>>, Journal) {
    let record = Journal::builder().ring(512).build();
    let metrics: Arc<Metrics> = Arc::default();
    let footing = Footing::builder()
        .devices(Selector::Chain(chain_under_test()))
        .drill(drill.clone())
        .journal(engine::without_single_passes(record.clone(), Arc::clone(&metrics)))
        .build()
        .unwrap();
    let limits = EngineLimits {
        sequences: 4,
        context: Some(32),
        texts: 4,
        text_tokens: None,
        // One sequence: when the cache is made anew for two, that takes two passes.
        pass_tokens: 16,
        queue: 16,
        patience: Duration::ZERO,
        batches_in_flight: 1,
    };
    let settings = EngineSettings {
        limits,
        pooling: Pooling::Mean,
        journal: Journal::off(),
        weights: Default::default(),
        adapter: None,
        adapters: Vec::new(),
        speculation: Default::default(),
        draft: None,
    };
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/llama-tiny");
    let engine = Engine::start(&model, Arc::new(footing), settings, metrics).unwrap();
    let generations = (0..work.sequences).map(|number| Generation {
        adapter: None,
        prompt: (0..12).map(|at| (at * 7 + number as u32) % 90).collect(),
        max_tokens: work.tokens,
        sampling: Sampling {
            temperature: work.temperature,
            top_k: None,
            top_p: None,
            seed: number,
        },
        rules: LogitRules::default(),
        constraint: None,
        rates_prompt: false,
        logprobs: None,
    });
    let streams = engine.generate(generations.collect(), None).unwrap();
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tokens = streams.into_iter().map(|mut stream| {
        let mut tokens = Vec::new();
        loop {
            match wait.block_on(stream.recv()) {
                Some(GenerationEvent::Token { id, .. }) => tokens.push(id),
                Some(GenerationEvent::Ended(_)) => return tokens,
                other => panic!("{:?}: {other:?}", drill.strikes()),
            }
        }
    });
    (tokens.collect(), record)
}

fn ended(drill: &Drill, text: &str, work: Work, expected: &[Vec<u32>]) -> Ended {
    let (tokens, journal) = decode(drill, work);
    assert_eq!(tokens, expected, "{text}");
    let events = journal.recent();
    let of_decoding = || events.iter().filter(|event| event.op == "decode");
    let mut ends = of_decoding().filter(|event| event.kind == EventKind::Step);
    if let Some(fault) = ends.find_map(|event| event.fault.as_ref()) {
        return Err(Fault::new(fault.kind, "decode", fault.message.to_string()));
    }
    let rungs = of_decoding().filter(|event| event.kind == EventKind::Rung);
    Ok(rungs.map(|event| event.recovery.as_ref().unwrap().parse().unwrap()).collect())
}

#[test]
fn every_fault_at_every_moment_of_decoding() {
    let (expected, _) = decode(&Drill::default(), SAMPLED);
    assert!(expected.iter().all(|tokens| tokens.len() == SAMPLED.tokens), "{expected:?}");
    let ended = |drill: &Drill, text: &str| ended(drill, text, SAMPLED, &expected);
    for step in [FIRST, LATER] {
        let moments = [format!("step={step},at=before"), format!("step={step},at=after")];
        strike_once("decode", &moments.each_ref().map(String::as_str), ended);
        let operation = format!("step={step},point=operation,nth=1");
        strike_in_a_block("decode", &operation, ended);
    }
    strike_between_parts("decode", LATER, ended);
}

#[test]
fn every_fault_in_a_step_that_repeats_a_recording() {
    let (expected, _) = decode(&Drill::default(), GREEDY);
    assert!(expected.iter().all(|tokens| tokens.len() == GREEDY.tokens), "{expected:?}");
    let ended = |drill: &Drill, text: &str| ended(drill, text, GREEDY, &expected);
    // The run over the prompt gives the first token, and each run after it one more.
    let launches = |runs: u64| -> u64 {
        let work = Work { tokens: runs as usize, ..GREEDY };
        let decode = || decode(&Drill::default(), work);
        surefoot_ops::count_launches(decode).1.values().sum()
    };
    let (before, with) = (launches(REPEATED), launches(REPEATED + 1));
    assert_eq!(with, before, "run {REPEATED} launches nothing, for it repeats a recording");
    if before == 0 {
        // The processor launches nothing, and repeats no recordings.
        let operation = format!("step={REPEATED},point=operation,nth=1");
        return strike_in_a_block("decode", &operation, ended);
    }
    // Before it is repeated, and when it is read while the device may still be at it.
    let points = ["operation", "read"];
    let moments = points.map(|point| format!("step={REPEATED},at=during,point={point},nth=1"));
    strike_once("decode", &moments.each_ref().map(String::as_str), ended);
}
