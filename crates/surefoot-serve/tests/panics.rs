//! A panic of the engine's own threads, outside guarded work: whoever waits is told, and the engine
//! goes on.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use surefoot::device::{DeviceName, Selector};
use surefoot::journal::Journal;
use surefoot::{FaultKind, Footing};
use surefoot_models::embed::Pooling;
use surefoot_models::generate::sample::Sampling;
use surefoot_serve::engine::{
    self, Engine, EngineError, EngineLimits, EngineSettings, Generation, GenerationEvent,
    LogitRules,
};
use surefoot_serve::metrics::Metrics;

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Answered,
    Panicked,
}

/// Whether a journal's listener panics, and how often it did.
#[derive(Default)]
struct Panics {
    on: AtomicBool,
    count: AtomicU64,
}

/// An engine whose journal has a listener that panics whenever it is told how much was done: the
/// engine does that a few times a second, on the thread that works.
fn engine() -> (Engine, Arc<Panics>, Journal, Arc<Metrics>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures");
    let panics: Arc<Panics> = Arc::default();
    let shared = Arc::clone(&panics);
    let listened = Journal::builder()
        .listener(move |_| {
            if shared.on.load(Ordering::SeqCst) {
                shared.count.fetch_add(1, Ordering::SeqCst);
                panic!("the listener fails");
            }
        })
        .build();
    let record = Journal::builder().ring(64).build();
    let metrics: Arc<Metrics> = Arc::default();
    let footing = Footing::builder()
        .devices(Selector::only(DeviceName::CPU))
        .journal(engine::without_single_passes(record.clone(), Arc::clone(&metrics)))
        .build()
        .unwrap();
    let limits = EngineLimits {
        sequences: 4,
        context: None,
        texts: 4,
        text_tokens: None,
        pass_tokens: 64,
        queue: 16,
        patience: Duration::ZERO,
        batches_in_flight: 1,
    };
    let settings = EngineSettings {
        limits,
        pooling: Pooling::Mean,
        journal: listened,
        weights: Default::default(),
        adapter: None,
        adapters: Vec::new(),
        speculation: Default::default(),
        draft: None,
    };
    let folder = folder.join("llama-tiny");
    let engine = Engine::start(&folder, Arc::new(footing), settings, Arc::clone(&metrics));
    (engine.unwrap(), panics, record, metrics)
}

/// Asks until `enough` says that the panics did what they should, and once more without them.
fn ends(
    panics: &Panics,
    mut ask: impl FnMut() -> End,
    enough: fn(&[End], u64) -> bool,
) -> Vec<End> {
    let begun = Instant::now();
    let mut ends = Vec::new();
    panics.on.store(true, Ordering::SeqCst);
    while !enough(&ends, panics.count.load(Ordering::SeqCst)) {
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "no panic after {} requests",
            ends.len()
        );
        ends.push(ask());
    }
    panics.on.store(false, Ordering::SeqCst);
    ends.push(ask());
    ends
}

fn check(engine: Engine, ends: &[End], record: &Journal, metrics: &Metrics, operation: &str) {
    assert_eq!(ends.last(), Some(&End::Answered), "the thread goes on");
    engine.check_health().unwrap();
    let lost = ends.iter().filter(|end| **end == End::Panicked).count();
    let counts = metrics.counts();
    assert_eq!(counts.accepted, ends.len() as u64);
    assert_eq!((counts.finished, counts.failed), ((ends.len() - lost) as u64, lost as u64));
    drop(engine);
    let events = record.recent();
    let faults: Vec<_> =
        events.iter().filter_map(|event| Some((&event.op, event.fault.as_ref()?))).collect();
    assert!(!faults.is_empty(), "{events:?}");
    for (op, fault) in faults {
        assert_eq!((op.as_ref(), fault.kind), (operation, FaultKind::NotDeviceRelated));
        assert!(fault.message.contains("the listener fails"), "{fault:?}");
    }
}

#[test]
fn a_panic_in_decoding_is_answered_and_decoding_goes_on() {
    let (engine, panics, record, metrics) = engine();
    let generation = || Generation {
        adapter: None,
        prompt: vec![5, 9, 17],
        max_tokens: 30,
        sampling: Sampling::GREEDY,
        rules: LogitRules::default(),
        constraint: None,
        logprobs: None,
        rates_prompt: false,
    };
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ask = || {
        let mut heard = engine.generate(vec![generation()], None).unwrap();
        loop {
            match wait.block_on(heard[0].recv()) {
                Some(GenerationEvent::Token { .. }) => {}
                Some(GenerationEvent::Ended(_)) => return End::Answered,
                Some(GenerationEvent::Failed(EngineError::Panicked)) => return End::Panicked,
                other => panic!("{other:?}"),
            }
        }
    };
    // A request is hit while it is decoded, and told so.
    let ends = ends(&panics, ask, |ends, _| ends.contains(&End::Panicked));
    check(engine, &ends, &record, &metrics, "decode");
}

#[test]
fn a_panic_in_embedding_is_answered_and_embedding_goes_on() {
    let (engine, panics, record, metrics) = engine();
    let ask = || {
        let heard = engine.embed(vec![vec![5, 9, 17]], None, None).unwrap().remove(0);
        match heard.blocking_recv() {
            Ok(Ok(_)) => End::Answered,
            Ok(Err(EngineError::Panicked)) => End::Panicked,
            other => panic!("{other:?}"),
        }
    };
    let ends = ends(&panics, ask, |_, count| count > 0);
    check(engine, &ends, &record, &metrics, "embed");
}
