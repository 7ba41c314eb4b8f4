//! Many threads, each with its own input and its own golden: the same for every device.
//!
//! A golden is what one thread alone gets, bit for bit: the shapes are the same, so the path is.
//! That it is right at all is checked apart, against the CPU or against transformers.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Barrier};

use burn::tensor::Device;
use surefoot::device::OpenDevice;
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, Model, Opened, TokenBatch, Want};
use surefoot_serve::lanes::Lanes;
use testkit::networks::Network;

pub(crate) mod process;

/// How many inputs there are.
pub(crate) const INPUTS: usize = 64;

/// What compiles once.
pub(crate) type Key = (&'static str, usize);

/// A model that all threads share.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    model: Arc<Shared>,
}

enum Shared {
    Network(Box<Network>),
    Bert(Box<Model>),
}

const WANT: Want = Want { logits: Logits::None, hidden: false, last_hidden: true };

impl Subject {
    fn network(network: Network) -> Self {
        Self { name: network.name(), model: Arc::new(Shared::Network(Box::new(network))) }
    }

    pub(crate) fn mlp(device: &Device) -> Self {
        Self::network(Network::mlp(device))
    }

    pub(crate) fn conv(device: &Device) -> Self {
        Self::network(Network::conv(device))
    }

    pub(crate) fn block(device: &Device) -> Self {
        Self::network(Network::block(device))
    }

    pub(crate) fn bert(device: &Device) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../surefoot-models/tests/fixtures/bert-tiny");
        let opened = Opened::new(&folder).unwrap();
        let work = Work { batch: 1, prompt: 24, new_tokens: 0, want: WANT };
        let plan = opened.plan_with_share(&work, 1.0);
        let model = opened.load(&plan, device, Arc::default()).unwrap();
        Self { name: "bert", model: Arc::new(Shared::Bert(Box::new(model))) }
    }

    pub(crate) fn all(device: &Device) -> Vec<Self> {
        vec![Self::mlp(device), Self::conv(device), Self::block(device), Self::bert(device)]
    }

    /// Runs the `nth` input.
    pub(crate) fn forward(&self, nth: usize, device: &Device) -> Vec<f32> {
        match &*self.model {
            Shared::Network(network) => network.forward(&network.input(nth), device),
            Shared::Bert(model) => {
                let vocab = model.blueprint().vocab;
                let ids = (0..24).map(|i| ((nth * 37 + i * 11 + 1) % vocab) as u32).collect();
                let batch = TokenBatch::new(&[ids], vocab).unwrap();
                model.forward(&batch, WANT).unwrap().last_hidden.unwrap().numbers
            }
        }
    }

    /// What one thread alone gets for each input, of which no two are the same.
    pub(crate) fn goldens(&self, device: &Device) -> Vec<Vec<f32>> {
        let goldens: Vec<_> = (0..INPUTS).map(|nth| self.forward(nth, device)).collect();
        for (nth, golden) in goldens.iter().enumerate() {
            assert!(golden.iter().all(|number| number.is_finite()), "{} {nth}", self.name);
            // Were they alike, one caller's numbers would pass for another's.
            assert!(!goldens[..nth].contains(golden), "{} {nth}", self.name);
        }
        goldens
    }

    pub(crate) fn key(&self) -> Key {
        (self.name, 1)
    }

    /// Runs the `nth` input on a lane and compares with its golden, bit for bit.
    pub(crate) fn check(&self, nth: usize, lanes: &Lanes<Key>, goldens: &[Vec<f32>]) {
        let subject = self.clone();
        let forward = move |device: &Device| Ok::<_, Infallible>(subject.forward(nth, device));
        match lanes.run(&self.key(), forward) {
            Ok(numbers) => assert!(numbers == goldens[nth], "{} {nth}: other numbers", self.name),
            Err(never) => match never {},
        }
    }
}

/// `threads` threads at once, each `rounds` forwards on inputs of its own.
pub(crate) fn race(
    subject: &Subject,
    goldens: &[Vec<f32>],
    lanes: &Lanes<Key>,
    threads: usize,
    rounds: usize,
) {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for round in 0..rounds {
                    subject.check((thread + round * 7) % INPUTS, lanes, goldens);
                }
            });
        }
    });
}

/// What the same sum may differ by on a device that has just been opened.
const ROUNDING: f32 = 1e-5;

/// Every thread's first forward at once, on a device that has run nothing yet; the goldens come
/// after. Each key is compiled once.
pub(crate) fn cold_race(device: &Arc<OpenDevice>, subjects: &[Subject], threads: usize) {
    let lanes = Lanes::new(Arc::clone(device), 8);
    let barrier = Barrier::new(threads);
    let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..threads)
            .map(|thread| {
                let (lanes, barrier) = (&lanes, &barrier);
                scope.spawn(move || {
                    let subject = subjects[thread % subjects.len()].clone();
                    let key = subject.key();
                    barrier.wait();
                    let forward = move |device: &Device| Ok(subject.forward(thread, device));
                    lanes.run(&key, forward).unwrap_or_else(|never: Infallible| match never {})
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    for (thread, result) in results.iter().enumerate() {
        let subject = &subjects[thread % subjects.len()];
        let golden = subject.forward(thread, device.burn());
        let off = result.iter().zip(&golden).map(|(a, b)| (a - b).abs());
        let off = off
            .fold(0.0, |most: f32, off| if off.is_nan() { f32::INFINITY } else { most.max(off) });
        // On lavapipe one cold forward of BERT in some 2,400 is off by rounding, up to 1e-6; another
        // caller's numbers would be off by far more.
        let allowed = if device.is_asynchronous() { ROUNDING } else { 0.0 };
        assert!(
            off <= allowed && result.len() == golden.len(),
            "{} thread {thread}: other numbers when cold, by up to {off}",
            subject.name
        );
    }
    assert_eq!(lanes.compiled(), subjects.len() as u64, "each key once");
}

/// Both halves of the threads run another model, on the same lanes.
pub(crate) fn two_models_at_once(lanes: &Lanes<Key>, subjects: [&Subject; 2], rounds: usize) {
    let device = lanes.device().burn();
    let goldens = subjects.map(|subject| subject.goldens(device));
    std::thread::scope(|scope| {
        for (subject, goldens) in subjects.into_iter().zip(&goldens) {
            scope.spawn(move || race(subject, goldens, lanes, 8, rounds));
        }
    });
}
