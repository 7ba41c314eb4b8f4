//! What an engine is asked to generate, and what whoever asked hears of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use surefoot_models::generate::sample::Sampling;
use surefoot_models::generate::speculate::SpeculationCounts;
use surefoot_models::generate::tokens::FinishReason;
use tokio::sync::mpsc::UnboundedReceiver;

use super::error::EngineError;
use super::logit_rules::LogitRules;
use super::logprobs::Logprobs;
use super::sequence_times::{SequenceObserver, SequenceTimes};
use crate::structured::Constraint;

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The adapter that it is run with, by its place in the settings of the engine.
    pub adapter: Option<usize>,
    /// The most tokens behind it.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How the logits are changed before.
    pub rules: LogitRules,
    /// What the answer has to satisfy.
    pub constraint: Option<Arc<Constraint>>,
    /// With each token, its probability and that of so many of the most likely ones.
    pub logprobs: Option<usize>,
    /// Whether the tokens of the prompt are rated too, before any is generated. Without it
    /// `max_tokens` is at least 1.
    pub rates_prompt: bool,
}

/// An event of a sequence. Nothing comes after an end or a failure.
#[derive(Clone, Debug)]
pub enum GenerationEvent {
    /// The tokens of the prompt, each with how likely it was behind those before it; the first one
    /// has nothing before it. Comes first, if it was asked for.
    Prompt(Vec<(u32, Option<Logprobs>)>),
    /// One more token.
    Token {
        /// The token.
        id: u32,
        /// How likely it was, if that was asked for.
        logprobs: Option<Logprobs>,
    },
    /// There are no more tokens.
    Ended(FinishReason),
    /// It failed: there will be no more tokens.
    Failed(EngineError),
}

/// Receives the events of a sequence. Dropping it ends the sequence.
#[derive(Debug)]
pub struct GenerationStream {
    pub(super) events: UnboundedReceiver<GenerationEvent>,
    pub(super) enough: Arc<AtomicBool>,
    pub(super) proposals: Arc<Proposals>,
    pub(super) cached: Arc<OnceLock<usize>>,
    pub(super) times: SequenceTimes,
    observer: Option<Arc<dyn SequenceObserver>>,
}

impl GenerationStream {
    pub(super) fn new(events: UnboundedReceiver<GenerationEvent>, times: SequenceTimes) -> Self {
        let (enough, proposals, cached) = Default::default();
        Self { events, enough, proposals, cached, times, observer: None }
    }

    /// The next event; none if the engine has ended.
    pub async fn recv(&mut self) -> Option<GenerationEvent> {
        let event = self.events.recv().await;
        if matches!(event, Some(GenerationEvent::Token { .. })) {
            self.times.token(Instant::now());
        }
        event
    }

    /// Tells `observer` of the sequence's times when this stream is dropped.
    pub fn observe(&mut self, observer: Arc<dyn SequenceObserver>) {
        self.observer = Some(observer);
    }

    /// What became of the tokens that were proposed for the sequence so far.
    pub fn speculation(&self) -> SpeculationCounts {
        SpeculationCounts {
            accepted: self.proposals.accepted.load(Ordering::Relaxed),
            rejected: self.proposals.rejected.load(Ordering::Relaxed),
        }
    }

    /// How many tokens of the prompt were known from earlier prompts and not run again.
    pub fn cached_tokens(&self) -> usize {
        self.cached.get().copied().unwrap_or(0)
    }

    /// Ends the sequence because what came is all that was wanted.
    pub fn enough(&mut self) {
        self.enough.store(true, Ordering::Release);
        self.events.close();
    }
}

impl Drop for GenerationStream {
    fn drop(&mut self) {
        if let Some(observer) = self.observer.take() {
            observer.ended(&self.times);
        }
    }
}

/// Counts of the tokens that were proposed for a sequence.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    accepted: AtomicU64,
    rejected: AtomicU64,
}

impl Proposals {
    pub(super) fn add(&self, proposed: usize, accepted: usize) {
        self.accepted.fetch_add(accepted as u64, Ordering::Relaxed);
        self.rejected.fetch_add((proposed - accepted) as u64, Ordering::Relaxed);
    }
}
