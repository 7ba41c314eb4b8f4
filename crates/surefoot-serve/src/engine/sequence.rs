//! One sequence that is decoded: its tokens so far are all that has to survive a fault.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use surefoot_models::generate::sample::{Sampler, Sampling};
use surefoot_models::generate::speculate::SpeculationCounts;
use surefoot_models::generate::tokens::FinishReason;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::error::EngineError;
use super::logit_rules::LogitRules;
use super::sequence_times::{SequenceObserver, SequenceTimes};
use crate::metrics::Metrics;
use crate::structured::{Constraint, FormatError, Matcher};

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

/// How likely a token was.
#[derive(Clone, Debug)]
pub struct Logprobs {
    /// The natural logarithm of its probability.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<TokenLogprob>,
}

/// A token, and how likely it was.
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// Receives the events of a sequence. Dropping it ends the sequence.
#[derive(Debug)]
pub struct GenerationStream {
    events: UnboundedReceiver<GenerationEvent>,
    enough: Arc<AtomicBool>,
    proposals: Arc<Proposals>,
    times: SequenceTimes,
    observer: Option<Arc<dyn SequenceObserver>>,
}

impl GenerationStream {
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

/// A sequence as it is decoded.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// By which its pages are found: no two sequences of a process have the same.
    pub(crate) key: u64,
    /// Prompt and answer.
    tokens: Vec<u32>,
    pub(crate) prompt: usize,
    adapter: Option<usize>,
    max_tokens: usize,
    sampler: Sampler,
    temperature: f32,
    rules: LogitRules,
    matcher: Option<Matcher>,
    logprobs: Option<usize>,
    rates_prompt: bool,
    sender: UnboundedSender<GenerationEvent>,
    enough: Arc<AtomicBool>,
    pub(crate) accepted: Instant,
    started: Arc<OnceLock<Instant>>,
    pub(crate) deadline: Option<Instant>,
    metrics: Arc<Metrics>,
    /// Whether its end or failure was sent.
    answered: bool,
    /// What became of tokens that were proposed, as who listens sees it.
    proposals: Arc<Proposals>,
}

/// Counts of the tokens that were proposed for a sequence.
#[derive(Debug, Default)]
struct Proposals {
    accepted: AtomicU64,
    rejected: AtomicU64,
}

impl Proposals {
    fn add(&self, proposed: usize, accepted: usize) {
        self.accepted.fetch_add(accepted as u64, Ordering::Relaxed);
        self.rejected.fetch_add((proposed - accepted) as u64, Ordering::Relaxed);
    }
}

/// Whether a sequence goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenOutcome {
    Continues,
    /// To be sent by [`Sequence::end`], once it was counted.
    Ended(FinishReason),
    /// To be sent by [`Sequence::fail`].
    NotFinite,
    /// No token satisfies the constraint. To be sent by [`Sequence::fail`].
    Unsatisfied(FormatError),
}

impl Sequence {
    pub(crate) fn new(
        generation: Generation,
        deadline: Option<Instant>,
        metrics: Arc<Metrics>,
    ) -> (Self, GenerationStream) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (sender, events) = unbounded_channel();
        let times = SequenceTimes::new(generation.prompt.len());
        let stream = GenerationStream {
            events,
            enough: Arc::default(),
            proposals: Arc::default(),
            times,
            observer: None,
        };
        let sequence = Self {
            key: NEXT.fetch_add(1, Ordering::Relaxed),
            prompt: generation.prompt.len(),
            tokens: generation.prompt,
            adapter: generation.adapter,
            max_tokens: generation.max_tokens,
            sampler: Sampler::new(generation.sampling),
            temperature: generation.sampling.temperature,
            rules: generation.rules,
            matcher: generation.constraint.as_deref().map(Matcher::new),
            logprobs: generation.logprobs,
            rates_prompt: generation.rates_prompt,
            sender,
            enough: Arc::clone(&stream.enough),
            accepted: stream.times.accepted,
            started: Arc::clone(&stream.times.started),
            deadline,
            metrics,
            answered: false,
            proposals: Arc::clone(&stream.proposals),
        };
        (sequence, stream)
    }

    /// Says that it has left the queue; only the first time counts.
    pub(crate) fn start(&self) {
        let _ = self.started.set(Instant::now());
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether who listened has streams all that was wanted.
    pub(crate) fn has_enough(&self) -> bool {
        self.enough.load(Ordering::Acquire)
    }

    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Sequences of different namespaces share no keys and values: each adapter has its own.
    pub(crate) fn namespace(&self) -> u64 {
        self.adapter.map_or(0, |adapter| adapter as u64 + 1)
    }

    /// All tokens, prompt and answer.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The adapter that all its tokens are run with.
    pub(crate) fn adapter(&self) -> Option<usize> {
        self.adapter
    }

    /// The tokens whose keys and values are in the cache between two steps.
    pub(crate) fn tokens_before_last(&self) -> &[u32] {
        self.tokens.split_last().map_or(&[], |(_, before)| before)
    }

    /// The token that the next step is fed with.
    pub(crate) fn last(&self) -> u32 {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// Whether the tokens of the prompt have to be rated first.
    pub(crate) fn rates_prompt(&self) -> bool {
        self.rates_prompt
    }

    /// Whether there is nothing to generate.
    pub(crate) fn is_only_rated(&self) -> bool {
        self.max_tokens == 0
    }

    /// How likely the token behind a place of the prompt was; none if there is none behind it.
    pub(crate) fn rating(&self, place: usize, logits: &[f32]) -> Option<Logprobs> {
        let next = *self.tokens[..self.prompt].get(place + 1)?;
        Some(logprobs(logits, next, self.logprobs.unwrap_or(0)))
    }

    /// Sends how likely the tokens of the prompt were, from the second on.
    pub(crate) fn rate_prompt(&mut self, ratings: Vec<Logprobs>) {
        self.rates_prompt = false;
        let all = std::iter::once(None).chain(ratings.into_iter().map(Some));
        let prompt = self.tokens[..self.prompt].iter().copied().zip(all).collect();
        self.send_event(GenerationEvent::Prompt(prompt));
    }

    /// How many tokens may still come.
    pub(crate) fn room(&self) -> usize {
        self.max_tokens.saturating_sub(self.generated())
    }

    /// Chooses tokens by the logits behind the last one and behind each that was proposed, as long as what is chosen
    /// is what was proposed. Gives how many were.
    pub(crate) fn accept_proposed<'l>(
        &mut self,
        rows: impl Iterator<Item = &'l [f32]>,
        proposed: &[u32],
        ends: &[u32],
    ) -> (TokenOutcome, usize) {
        let mut accepted = 0;
        let mut outcome = TokenOutcome::Continues;
        for (at, logits) in rows.take(1 + proposed.len()).enumerate() {
            let before = self.tokens.len();
            outcome = self.accept(logits, ends);
            let is_right = self.tokens.len() > before && proposed.get(at) == Some(&self.last());
            accepted += usize::from(is_right);
            if outcome != TokenOutcome::Continues || !is_right {
                break;
            }
        }
        self.proposals.add(proposed.len(), accepted);
        (outcome, accepted)
    }

    /// Chooses the next token by the logits behind the last one.
    pub(crate) fn accept(&mut self, logits: &[f32], ends: &[u32]) -> TokenOutcome {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return TokenOutcome::NotFinite;
        }
        let id = match self.choose(logits, ends) {
            Ok(Some(id)) => id,
            Ok(None) => return TokenOutcome::Ended(FinishReason::EndOfText),
            Err(error) => return TokenOutcome::Unsatisfied(error),
        };
        if ends.contains(&id) {
            return TokenOutcome::Ended(FinishReason::EndOfText);
        }
        let has_ended = match &mut self.matcher {
            None => false,
            Some(matcher) => match matcher.accept(id) {
                Ok(true) => matcher.has_ended(),
                Ok(false) => return TokenOutcome::Unsatisfied(FormatError::NoToken),
                Err(error) => return TokenOutcome::Unsatisfied(error),
            },
        };
        self.tokens.push(id);
        self.send_event(GenerationEvent::Token {
            id,
            logprobs: self.logprobs.map(|top| logprobs(logits, id, top)),
        });
        if has_ended {
            return TokenOutcome::Ended(FinishReason::EndOfText);
        }
        if self.generated() >= self.max_tokens {
            return TokenOutcome::Ended(FinishReason::MaxTokens);
        }
        TokenOutcome::Continues
    }

    /// The next token; none if the constraint leaves none because the answer is complete.
    fn choose(&mut self, logits: &[f32], ends: &[u32]) -> Result<Option<u32>, FormatError> {
        let mut restricted;
        let mut logits = logits;
        let room = self.max_tokens - self.generated();
        if let Some(matcher) = &mut self.matcher {
            restricted = logits.to_vec();
            if !matcher.restrict(&mut restricted, ends, room)? {
                return Ok(None);
            }
            logits = &restricted;
        }
        if self.rules.is_empty() {
            return Ok(Some(self.sampler.choose(logits)));
        }
        let (prompt, answer) = self.tokens.split_at(self.prompt);
        let changed = self.rules.apply(logits, prompt, answer, self.temperature);
        Ok(Some(self.sampler.choose(&changed)))
    }

    /// Sends the end, after it was counted.
    pub(crate) fn end(mut self, ending: FinishReason) {
        self.answered = true;
        self.send_event(GenerationEvent::Ended(ending));
    }

    /// Counts and sends a failure.
    pub(crate) fn fail(mut self, error: EngineError) {
        self.answered = true;
        self.metrics.failed();
        self.send_event(GenerationEvent::Failed(error));
    }

    /// Counts and sends that its time is over.
    pub(crate) fn expire(self, now: Instant) {
        let waited = now.saturating_duration_since(self.accepted).max(Duration::from_millis(1));
        self.fail(EngineError::Expired(waited));
    }

    /// Whoever stopped listening is found out by [`Sequence::is_abandoned`].
    fn send_event(&self, event: GenerationEvent) {
        let _ = self.sender.send(event);
    }
}

/// A sequence that is dropped without an answer was lost to a panic: whoever waits is told.
impl Drop for Sequence {
    fn drop(&mut self) {
        if !self.answered && !self.is_abandoned() {
            self.metrics.failed();
            self.send_event(GenerationEvent::Failed(EngineError::Panicked));
        }
    }
}

fn logprobs(logits: &[f32], chosen: u32, top: usize) -> Logprobs {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let norm = f64::from(most) + sum.ln();
    let of = |id: u32| (f64::from(logits[id as usize]) - norm) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, by);
    }
    order.truncate(top);
    order.sort_by(by);
    let top = order.into_iter().map(|id| TokenLogprob { id, logprob: of(id) }).collect();
    Logprobs { chosen: of(chosen), top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_the_logarithms_of_probabilities_that_sum_to_one() {
        let logits = [0.5, -1.0, 3.0, 2.0];
        let all = logprobs(&logits, 1, 4);
        let sum: f32 = all.top.iter().map(|likely| likely.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5);
        let order: Vec<u32> = all.top.iter().map(|likely| likely.id).collect();
        assert_eq!(order, [2, 3, 0, 1]);
        assert_eq!(all.chosen, all.top[3].logprob);
        assert_eq!(logprobs(&logits, 0, 2).top.len(), 2);
        assert!(logprobs(&logits, 0, 0).top.is_empty());
    }

    #[test]
    fn a_sequence_ends_at_its_limit_at_an_end_token_and_at_a_nan() {
        let generation = Generation {
            adapter: None,
            prompt: vec![5],
            max_tokens: 2,
            sampling: Sampling::GREEDY,
            rules: LogitRules::default(),
            constraint: None,
            logprobs: None,
            rates_prompt: false,
        };
        let (mut sequence, mut stream) = Sequence::new(generation.clone(), None, Arc::default());
        assert_eq!(sequence.accept(&[0.0, 1.0], &[]), TokenOutcome::Continues);
        assert_eq!(sequence.accept(&[1.0, 0.0], &[]), TokenOutcome::Ended(FinishReason::MaxTokens));
        assert_eq!(sequence.tokens, [5, 1, 0]);
        sequence.end(FinishReason::MaxTokens);
        assert!(matches!(stream.events.try_recv(), Ok(GenerationEvent::Token { id: 1, .. })));
        assert!(matches!(stream.events.try_recv(), Ok(GenerationEvent::Token { id: 0, .. })));
        assert!(matches!(
            stream.events.try_recv(),
            Ok(GenerationEvent::Ended(FinishReason::MaxTokens))
        ));
        let (mut sequence, mut stream) = Sequence::new(generation, None, Arc::default());
        assert_eq!(sequence.accept(&[0.0, f32::NAN], &[]), TokenOutcome::NotFinite);
        assert_eq!(
            sequence.accept(&[0.0, 1.0], &[1]),
            TokenOutcome::Ended(FinishReason::EndOfText)
        );
        assert_eq!(sequence.generated(), 0);
        sequence.fail(EngineError::NotFinite);
        assert!(matches!(
            stream.events.try_recv(),
            Ok(GenerationEvent::Failed(EngineError::NotFinite))
        ));
    }

    #[test]
    fn a_sequence_that_is_lost_is_answered_and_counted_and_one_that_was_abandoned_is_not() {
        let generation = Generation {
            adapter: None,
            prompt: vec![5],
            max_tokens: 2,
            sampling: Sampling::GREEDY,
            rules: LogitRules::default(),
            constraint: None,
            logprobs: None,
            rates_prompt: false,
        };
        let metrics: Arc<Metrics> = Arc::default();
        let new = || Sequence::new(generation.clone(), None, Arc::clone(&metrics));
        let (lost, mut stream) = new();
        drop(lost);
        assert!(matches!(
            stream.events.try_recv(),
            Ok(GenerationEvent::Failed(EngineError::Panicked))
        ));
        assert_eq!(metrics.counts().failed, 1);
        let (abandoned, stream) = new();
        drop(stream);
        assert!(abandoned.is_abandoned());
        drop(abandoned);
        assert_eq!(metrics.counts().failed, 1);
    }
}
