//! Right results under concurrency on the first GPU, in a small form: CI's is a software device.
//! `SUREFOOT_TEST_DEVICE=gpu` runs the races of whole processes, in `process.rs`, there too.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod race;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use race::{Subject, race, two_models_at_once};
use surefoot::Footing;
use surefoot::device::{OpenDevice, Selector};
use surefoot::journal::Journal;
use surefoot_models::embed::Pooling;
use surefoot_models::generate::sample::Sampling;
use surefoot_serve::engine::{
    Engine, EngineLimits, EngineSettings, Generation, GenerationEvent, LogitRules,
};
use surefoot_serve::lanes::Lanes;
use surefoot_serve::metrics::Metrics;
use testkit::gpu;
use testkit::networks::Network;

/// The device to oneself: what is tested is many callers of one pool, not many pools.
fn alone() -> Option<(Arc<OpenDevice>, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Some((gpu()?, turn))
}

#[test]
fn each_caller_gets_its_own_numbers_from_every_model() {
    let Some((device, _turn)) = alone() else { return };
    let lanes = Lanes::new(Arc::clone(&device), 8);
    for subject in Subject::all(device.burn()) {
        let goldens = subject.goldens(device.burn());
        race(&subject, &goldens, &lanes, 8, 4);
        race(&subject, &goldens, &lanes, 32, 1);
    }
    assert_eq!(lanes.compiled(), 4);
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
}

#[test]
fn two_models_share_the_lanes() {
    let Some((device, _turn)) = alone() else { return };
    let lanes = Lanes::fixed(Arc::clone(&device), 4);
    two_models_at_once(&lanes, [&Subject::mlp(device.burn()), &Subject::bert(device.burn())], 3);
    assert_eq!(lanes.compiled(), 2);
}

#[test]
fn on_every_lane_the_numbers_are_those_of_the_cpu() {
    let Some((device, _turn)) = alone() else { return };
    let host = Device::flex();
    let lanes = Lanes::<&str>::fixed(Arc::clone(&device), 3);
    for network in [Network::mlp(&host), Network::conv(&host), Network::block(&host)] {
        let input = network.input(0);
        let expected = network.forward(&input, &host);
        let (there, input) = (Arc::new(network.to(device.burn())), Arc::new(input));
        for _ in 0..3 {
            let (network, input) = (Arc::clone(&there), Arc::clone(&input));
            let forward =
                move |device: &Device| Ok::<_, Infallible>(network.forward(&input, device));
            let found = lanes.run(&there.name(), forward).unwrap();
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0.0, f32::max);
            assert!(worst <= 1e-4, "{} differs by {worst}", there.name());
        }
    }
}

#[test]
fn work_that_is_dropped_in_flight_and_panics_cost_the_others_nothing() {
    let Some((device, _turn)) = alone() else { return };
    let lanes = Lanes::fixed(Arc::clone(&device), 2);
    let subject = Subject::mlp(device.burn());
    let goldens = subject.goldens(device.burn());
    std::thread::scope(|scope| {
        for caller in 0..12 {
            let (lanes, subject, goldens) = (&lanes, &subject, &goldens);
            scope.spawn(move || match caller % 4 {
                // Nobody reads the product: it is dropped while the device computes it.
                0 => drop(lanes.run(&("dropped", 0), |device| {
                    let x = Tensor::<2>::ones([64, 64], device);
                    drop(x.clone().matmul(x));
                    Ok::<_, Infallible>(())
                })),
                1 => {
                    let run = || {
                        lanes.run(&("panics", 0), |device| {
                            let x = Tensor::<2>::ones([2, 3], device);
                            Ok::<_, Infallible>(x.clone().matmul(x))
                        })
                    };
                    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
                }
                _ => (0..2).for_each(|_| subject.check(caller, lanes, goldens)),
            });
        }
    });
    assert_eq!((lanes.statistics().leased, lanes.statistics().waiting), (0, 0));
}

#[test]
fn requests_find_what_was_compiled_before_and_the_cache_and_recording_of_those_they_follow_soon() {
    let Some((device, _turn)) = alone() else { return };
    let footing = Footing::builder().devices(Selector::Chain(vec![device.name()])).build().unwrap();
    let limits = EngineLimits {
        sequences: 2,
        context: Some(192),
        texts: 1,
        text_tokens: None,
        pass_tokens: 256,
        queue: 4,
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
    let metrics = Arc::<Metrics>::default();
    let engine = Engine::start(&model, Arc::new(footing), settings, metrics).unwrap();
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ask = |length: u32| {
        let generation = Generation {
            adapter: None,
            prompt: (0..length).map(|at| at % 90).collect(),
            max_tokens: 12,
            sampling: Sampling::GREEDY,
            rules: LogitRules::default(),
            constraint: None,
            rates_prompt: false,
            logprobs: None,
        };
        let mut stream = engine.generate(vec![generation], None).unwrap().remove(0);
        let mut tokens = Vec::new();
        loop {
            match wait.block_on(stream.recv()) {
                Some(GenerationEvent::Token { id, .. }) => tokens.push(id),
                Some(GenerationEvent::Ended(_)) => return tokens,
                other => panic!("{other:?}"),
            }
        }
    };
    let known = surefoot_ops::count_launches(|| engine.warm_up(|_, _| ()).unwrap()).1;
    let (first, launched) = surefoot_ops::count_launches(|| ask(12));
    let (again, later) = surefoot_ops::count_launches(|| ask(12));
    let (_, long) = surefoot_ops::count_launches(|| ask(140));
    for kernel in launched.keys().chain(long.keys()) {
        assert!(known.contains_key(kernel), "{kernel} is not among {known:?}");
    }
    assert_eq!(first, again);
    // The pass over the prompt alone: steps are repeated from the first on.
    let [launched, later] = [launched, later].map(|launches| launches.values().sum::<u64>());
    assert!(2 * later < launched, "{later} launches, and {launched} before");
}
