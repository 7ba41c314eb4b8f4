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

/// The tokens of four sequences, and the journal of their decoding.
fn decode(drill: &Drill) -> (Vec<Vec<u32>>, Journal) {
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
    let generations = (0..4).map(|number| Generation {
        adapter: None,
        prompt: (0..12).map(|at| (at * 7 + number) % 90).collect(),
        max_tokens: 10,
        sampling: Sampling { temperature: 0.8, top_k: None, top_p: None, seed: number.into() },
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

fn ended(drill: &Drill, text: &str, expected: &[Vec<u32>]) -> Ended {
    let (tokens, journal) = decode(drill);
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
    let (expected, _) = decode(&Drill::default());
    assert!(expected.iter().all(|tokens| tokens.len() == 10), "{expected:?}");
    let ended = |drill: &Drill, text: &str| ended(drill, text, &expected);
    for step in [FIRST, LATER] {
        let moments = [format!("step={step},at=before"), format!("step={step},at=after")];
        strike_once("decode", &moments.each_ref().map(String::as_str), ended);
        let operation = format!("step={step},point=operation,nth=1");
        strike_in_a_block("decode", &operation, ended);
    }
    strike_between_parts("decode", LATER, ended);
}
