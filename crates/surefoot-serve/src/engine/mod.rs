//! The engine: one model, and the threads that run requests through it in batches.
//!
//! Requests come in over two bounded queues. Embeddings are stacked by length and run by one
//! thread, or by two where the device works asynchronously. Sequences are decoded by a thread of
//! their own, which lets new ones join between two tokens. Every pass goes through the footing's
//! guard: a fault is answered by the ladder, and what was accepted is run again.

mod activity_log;
mod bucket;
mod capacity;
mod decode_pass;
mod decoder;
mod encoder;
mod error;
mod generation;
mod live;
mod logit_rules;
mod logprobs;
mod pass_budget;
mod pass_commit;
mod pass_size;
mod pass_times;
#[cfg(test)]
mod preemption_tests;
mod prompt_ratings;
mod schedule;
mod sequence;
mod sequence_times;
mod submit;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use surefoot::journal::Journal;
use surefoot::{Fault, FaultKind, Footing};
use surefoot_models::ModelError;
use surefoot_models::classify::ClassificationHead;
use surefoot_models::embed::Pooling;
use surefoot_models::generate::speculate::{self, SpeculationMode, Speculator, UnusedDraft};
use surefoot_models::generate::text::TokenPair;
use surefoot_models::runner::Runner;
use surefoot_models::stream::plan::Plan;
use surefoot_models::weights::choice::WeightChoice;

pub use activity_log::without_single_passes;
pub use capacity::{EngineCapacity, EngineLimits, HTTP_BYTES};
pub use decoder::Decoder;
pub use encoder::{Encoder, PendingVector};
pub use error::EngineError;
pub use generation::{Generation, GenerationEvent, GenerationStream};
pub use logit_rules::LogitRules;
pub use logprobs::{Logprobs, TokenLogprob};
pub use sequence_times::{SequenceObserver, SequenceTimes};

use crate::metrics::Metrics;
use activity_log::ActivityLog;
use pass_budget::PassBudget;

/// What an engine needs to know.
#[derive(Debug)]
pub struct EngineSettings {
    /// What to run at once, at most.
    pub limits: EngineLimits,
    /// How tokens become one vector.
    pub pooling: Pooling,
    /// Where batches are told.
    pub journal: Journal,
    /// In which form weights are loaded.
    pub weights: WeightChoice,
    /// The adapter that the model runs with: it is part of the model.
    pub adapter: Option<PathBuf>,
    /// Adapters that requests can ask for by their place in this list.
    pub adapters: Vec<PathBuf>,
    /// Whether tokens are proposed that the model checks several at a time. On the CPU only, and for requests without
    /// an adapter only.
    pub speculation: SpeculationMode,
    /// The model that proposes them.
    pub draft: Option<PathBuf>,
}

/// A running engine. Dropping it finishes what was accepted.
pub struct Engine {
    capacity: EngineCapacity,
    plan: Plan,
    vocab: usize,
    encoder: Arc<Encoder>,
    head: Option<Arc<ClassificationHead>>,
    decoder: Option<Arc<Decoder>>,
    unused_draft: Option<UnusedDraft>,
    runner: Arc<Runner>,
    footing: Arc<Footing>,
    metrics: Arc<Metrics>,
    activity: Arc<ActivityLog>,
    threads: Vec<JoinHandle<()>>,
    is_closed: AtomicBool,
}

impl Engine {
    /// Plans, loads the model of `folder` and starts the threads.
    pub fn start(
        folder: &Path,
        footing: Arc<Footing>,
        settings: EngineSettings,
        metrics: Arc<Metrics>,
    ) -> Result<Self, EngineError> {
        Self::start_with(folder, footing, settings, metrics, |_| {})
    }

    /// [`Engine::start`], with a change of what runs at once.
    fn start_with(
        folder: &Path,
        footing: Arc<Footing>,
        settings: EngineSettings,
        metrics: Arc<Metrics>,
        change: impl FnOnce(&mut EngineCapacity),
    ) -> Result<Self, EngineError> {
        let mut runner = Runner::open(Arc::clone(&footing), folder)?.weights(settings.weights);
        let head = ClassificationHead::read(runner.opened())?.map(Arc::new);
        let head_bytes = head.as_ref().map_or(0, |head| head.bytes());
        runner = runner.beside(capacity::HTTP_BYTES + head_bytes);
        if let Some(adapter) = &settings.adapter {
            runner = runner.adapted(adapter)?;
        }
        runner = runner.with_adapters(&settings.adapters)?;
        let (speculator, bytes) = open_speculator(&runner, &settings)?;
        let unused_draft = speculator.unused_draft().cloned();
        runner = runner.beside(capacity::HTTP_BYTES + bytes);
        let (mut capacity, plan) = EngineCapacity::fit(&runner, &settings.limits)?;
        change(&mut capacity);
        let opened = runner.opened();
        let vocab = opened.blueprint.vocab;
        let decodes = opened.has_head() && opened.blueprint.causal;
        let ends = opened.end_tokens()?;
        runner.run(&capacity.request("load"), |_| Ok(()))?;
        let runner = Arc::new(runner);
        let activity =
            Arc::new(ActivityLog::new(settings.journal, Arc::clone(&metrics), Arc::clone(&runner)));
        let budget = Arc::new(PassBudget::new(capacity.activation_tokens));
        let encoder = Arc::new(Encoder::new(
            Arc::clone(&runner),
            (settings.pooling, head.clone()),
            capacity,
            Arc::clone(&budget),
            Arc::clone(&metrics),
            Arc::clone(&activity),
        ));
        let mut threads = Vec::new();
        for number in 0..capacity.batches_in_flight {
            let encoder = Arc::clone(&encoder);
            threads.push(spawn(format!("embed {number}"), move || encoder.work())?);
        }
        let decoder = if decodes {
            let decoder = Decoder::new(
                Arc::clone(&runner),
                ends,
                capacity,
                budget,
                Arc::clone(&metrics),
                Arc::clone(&activity),
            );
            let decoder = Arc::new(decoder.speculating(speculator));
            let working = Arc::clone(&decoder);
            threads.push(spawn("decode".to_owned(), move || working.work())?);
            Some(decoder)
        } else {
            None
        };
        Ok(Self {
            capacity,
            plan,
            vocab,
            encoder,
            head,
            decoder,
            unused_draft,
            runner,
            footing,
            metrics,
            activity,
            threads,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Runs passes of the sizes that requests come in, so that the first of them don't wait for
    /// kernels: where a device makes them for a shape, which the CPU doesn't. `progress` is told
    /// how many of how many sizes are done.
    pub fn warm_up(&self, mut progress: impl FnMut(usize, usize)) -> Result<(), EngineError> {
        if !self.footing.device()?.is_asynchronous() {
            return Ok(());
        }
        let texts = bucket::sizes(self.capacity.texts);
        let sequences = self.decoder.as_ref().map(|_| bucket::sizes(self.capacity.sequences));
        let sequences = sequences.unwrap_or_default();
        let all = texts.len() + sequences.len();
        for (done, &count) in texts.iter().enumerate() {
            progress(done, all);
            self.encoder.warm_up(count)?;
        }
        for (done, &count) in sequences.iter().enumerate() {
            progress(texts.len() + done, all);
            if let Some(decoder) = &self.decoder {
                decoder.warm_up(count)?;
            }
        }
        progress(all, all);
        Ok(())
    }

    /// What runs at once.
    pub fn capacity(&self) -> &EngineCapacity {
        &self.capacity
    }

    /// The plan: which weights are in memory, and on which device.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The draft model that is left out since it can make nothing faster, if there is one.
    pub fn unused_draft(&self) -> Option<&UnusedDraft> {
        self.unused_draft.as_ref()
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether the model generates text.
    pub fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// Queues texts to be embedded with an adapter, all of them or none; each is answered on its own.
    pub fn embed(
        &self,
        texts: Vec<Vec<u32>>,
        adapter: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Vec<PendingVector>, EngineError> {
        self.counted(self.encoder.submit(texts, adapter, deadline))
    }

    /// The head of a model that classifies texts, such as a cross-encoder's.
    pub fn classification_head(&self) -> Option<&ClassificationHead> {
        self.head.as_deref()
    }

    /// Queues pairs of texts to be classified with an adapter, all of them or none; each is answered on its own, with
    /// the numbers of the labels.
    pub fn classify(
        &self,
        pairs: Vec<TokenPair>,
        adapter: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<Vec<PendingVector>, EngineError> {
        if self.head.is_none() {
            let message = "the model has no head for classes, so it can't score pairs of texts";
            return Err(EngineError::Request(message.to_owned()));
        }
        self.counted(self.encoder.submit_pairs(pairs, adapter, deadline))
    }

    /// Queues sequences to be decoded, all of them or none. Dropping a stream ends its
    /// sequence.
    pub fn generate(
        &self,
        generations: Vec<Generation>,
        deadline: Option<Instant>,
    ) -> Result<Vec<GenerationStream>, EngineError> {
        let decoder = self.decoder.as_ref().ok_or_else(|| {
            EngineError::Request("the model is an encoder: it can't generate text".to_owned())
        })?;
        self.counted(decoder.submit(generations, deadline))
    }

    fn counted<T>(&self, accepted: Result<Vec<T>, EngineError>) -> Result<Vec<T>, EngineError> {
        match &accepted {
            Ok(some) => self.metrics.accepted(some.len()),
            Err(_) => self.metrics.refused(),
        }
        accepted
    }

    /// Writes how full everything is into the metrics.
    pub fn measure(&self) {
        self.metrics.queue("embed", self.encoder.waiting());
        if let Some(decoder) = &self.decoder {
            self.metrics.queue("decode", decoder.waiting());
        }
        for (device, now, peak) in self.footing.memory() {
            self.metrics.memory(&device.to_string(), now, peak);
        }
    }

    /// The fault that leaves nothing to work with: all devices are lost, or a thread has ended.
    pub fn check_health(&self) -> Result<(), Fault> {
        self.footing.device()?;
        match self.threads.iter().find(|thread| thread.is_finished()) {
            Some(thread) if !self.is_closed.load(Ordering::Acquire) => {
                let name = thread.thread().name().unwrap_or_default().to_owned();
                let message = format!("the thread '{name}' of the server has ended unexpectedly");
                Err(Fault::new(FaultKind::NotDeviceRelated, "serve", message)
                    .advise("restart the server; --isolate does so by itself"))
            }
            _ => Ok(()),
        }
    }

    /// Sequences and texts that wait to be run, whichever queue is the longer.
    pub fn waiting(&self) -> usize {
        let sequences = self.decoder.as_ref().map_or(0, |decoder| decoder.waiting());
        self.encoder.waiting().max(sequences)
    }

    /// Whether all that was accepted is done.
    pub fn is_idle(&self) -> bool {
        let counts = self.metrics.counts();
        counts.accepted <= counts.finished + counts.failed + counts.cancelled
    }

    /// The device that the model is on.
    pub fn device(&self) -> Option<String> {
        self.runner.device().map(|device| device.to_string())
    }

    /// What runs the model.
    pub(crate) fn runner(&self) -> &Arc<Runner> {
        &self.runner
    }

    /// Refuses new requests from now on; what was accepted is finished.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.encoder.close();
        if let Some(decoder) = &self.decoder {
            decoder.close();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
        for thread in self.threads.drain(..) {
            // A panic in it was told when it happened.
            let _ = thread.join();
        }
        self.activity.report_rest();
    }
}

/// What proposes tokens, and the bytes that it takes.
fn open_speculator(
    runner: &Runner,
    settings: &EngineSettings,
) -> Result<(Speculator, u64), EngineError> {
    // With an adapter a row's bits depend on the other rows of its pass.
    if settings.speculation == SpeculationMode::Off || settings.adapter.is_some() {
        return Ok((Speculator::default(), 0));
    }
    let context = EngineCapacity::context_of(runner, &settings.limits);
    let (mode, draft) = (settings.speculation, settings.draft.as_deref());
    Ok(speculate::open(runner, mode, draft, settings.limits.sequences, context)?)
}

fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, EngineError> {
    std::thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(|error| EngineError::Request(format!("a thread could not be started: {error}")))
}

impl From<ModelError> for EngineError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Fault(fault) => (*fault).into(),
            other => Self::Model(Arc::new(other)),
        }
    }
}
