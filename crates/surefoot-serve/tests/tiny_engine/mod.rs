//! Engines over tiny models, for tests of what they answer, also while drills strike.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use surefoot::Footing;
use surefoot::device::{DeviceName, Selector};
use surefoot::journal::Journal;
use surefoot::recover::Drill;
use surefoot_models::embed::Pooling;
use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::SpeculationMode;
use surefoot_models::weights::choice::WeightChoice;
use surefoot_serve::engine::{
    Engine, EngineLimits, EngineSettings, Generation, GenerationEvent, LogitRules,
};
use surefoot_serve::metrics::Metrics;

/// What an engine is started with.
pub(crate) struct Setup<'a> {
    /// A model of the fixtures of `surefoot-models`.
    pub(crate) model: PathBuf,
    pub(crate) devices: Vec<DeviceName>,
    /// Drills, or nothing.
    pub(crate) drill: &'a str,
    /// The tokens of one pass, at most.
    pub(crate) pass_tokens: usize,
    pub(crate) speculation: SpeculationMode,
    pub(crate) draft: Option<&'a str>,
    /// Sequences that are decoded at once.
    pub(crate) sequences: usize,
    pub(crate) weights: WeightChoice,
}

/// A folder among the tests of `surefoot-models`.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests").join(name)
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            model: folder("fixtures/llama-tiny"),
            devices: vec![DeviceName::CPU],
            drill: "",
            pass_tokens: 64,
            speculation: SpeculationMode::Off,
            draft: None,
            sequences: 8,
            weights: WeightChoice::default(),
        }
    }
}

/// An engine, what it counts, and its footing.
pub(crate) struct TinyEngine {
    pub(crate) engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) footing: Arc<Footing>,
}

impl Setup<'_> {
    pub(crate) fn start(&self) -> TinyEngine {
        let builder = Footing::builder().devices(Selector::Chain(self.devices.clone()));
        let footing = Arc::new(match self.drill {
            "" => builder.build().unwrap(),
            drill => builder.drill(drill.parse::<Drill>().unwrap()).build().unwrap(),
        });
        let settings = EngineSettings {
            limits: EngineLimits {
                sequences: self.sequences,
                context: Some(128),
                texts: 4,
                text_tokens: None,
                pass_tokens: self.pass_tokens,
                queue: 64,
                patience: Duration::ZERO,
                batches_in_flight: 1,
            },
            pooling: Pooling::Mean,
            journal: Journal::off(),
            weights: self.weights,
            adapter: None,
            adapters: Vec::new(),
            speculation: self.speculation,
            draft: self.draft.map(|draft| folder("fixtures").join(draft)),
        };
        let metrics: Arc<Metrics> = Arc::default();
        let engine =
            Engine::start(&self.model, Arc::clone(&footing), settings, Arc::clone(&metrics));
        TinyEngine { engine: engine.unwrap(), metrics, footing }
    }
}

impl TinyEngine {
    /// How often drills have struck.
    pub(crate) fn strikes(&self) -> u64 {
        self.footing.drill().strikes().iter().map(|rule| rule.struck).sum()
    }

    /// The events of what is generated at the same time, but for the last ones.
    pub(crate) fn events(&self, generations: Vec<Generation>) -> Vec<Vec<GenerationEvent>> {
        let streams = self.engine.generate(generations, None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answers = streams.into_iter().map(|mut stream| {
            let mut events = Vec::new();
            loop {
                match runtime.block_on(stream.recv()).unwrap() {
                    GenerationEvent::Ended(_) => break events,
                    GenerationEvent::Failed(error) => panic!("{error}"),
                    event => events.push(event),
                }
            }
        });
        answers.collect()
    }

    /// The tokens of what is generated at the same time.
    pub(crate) fn tokens(&self, generations: Vec<Generation>) -> Vec<Vec<u32>> {
        let id = |event: &GenerationEvent| match event {
            GenerationEvent::Token { id, .. } => Some(*id),
            _ => None,
        };
        let answers = self.events(generations);
        answers.iter().map(|events| events.iter().filter_map(id).collect()).collect()
    }
}

/// A greedy continuation of a prompt of so many tokens.
pub(crate) fn generation(number: usize, prompt: usize, max_tokens: usize) -> Generation {
    Generation {
        prompt: (0..prompt).map(|at| ((at * 31 + number * 17 + 5) % 96) as u32).collect(),
        adapter: None,
        max_tokens,
        sampling: Sampling::GREEDY,
        rules: LogitRules::default(),
        constraint: None,
        logprobs: None,
        rates_prompt: false,
    }
}
