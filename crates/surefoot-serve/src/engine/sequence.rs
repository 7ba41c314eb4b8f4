//! One sequence that is decoded: its tokens so far are all that has to survive a fault.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use surefoot_models::generate::sample::Sampler;
use surefoot_models::generate::tokens::FinishReason;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::error::EngineError;
use super::generation::{Generation, GenerationEvent, GenerationStream, Proposals};
use super::logit_rules::LogitRules;
use super::logprobs::{Logprobs, logprobs};
use super::sequence_times::SequenceTimes;
use crate::metrics::Metrics;
use crate::structured::{FormatError, Matcher};

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
    /// How many tokens were known when it was first run.
    cached: Arc<OnceLock<usize>>,
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
        let stream = GenerationStream::new(events, times);
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
            cached: Arc::clone(&stream.cached),
        };
        (sequence, stream)
    }

    /// Says that it has left the queue; only the first time counts.
    pub(crate) fn start(&self) {
        let _ = self.started.set(Instant::now());
    }

    /// Says that so many of its tokens are known and need not be run; only the first time counts.
    pub(crate) fn begins_with(&self, known: usize) {
        let _ = self.cached.set(known);
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether who listened has all that was wanted.
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
        // All of it was run.
        self.begins_with(0);
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

    /// Whether its next token is the most likely one, whatever the other logits are.
    pub(crate) fn takes_most_likely(&self) -> bool {
        self.temperature <= 0.0
            && self.rules.is_empty()
            && self.matcher.is_none()
            && self.logprobs.is_none()
    }

    /// Takes the most likely token, which the device has found: see [`Self::takes_most_likely`].
    pub(crate) fn accept_most_likely(&mut self, id: u32, ends: &[u32]) -> TokenOutcome {
        debug_assert!(self.takes_most_likely());
        if ends.contains(&id) {
            return TokenOutcome::Ended(FinishReason::EndOfText);
        }
        self.keep(id, None)
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
        let outcome = self.keep(id, self.logprobs.map(|top| logprobs(logits, id, top)));
        if has_ended { TokenOutcome::Ended(FinishReason::EndOfText) } else { outcome }
    }

    /// Keeps a token and sends it.
    fn keep(&mut self, id: u32, logprobs: Option<Logprobs>) -> TokenOutcome {
        self.tokens.push(id);
        self.send_event(GenerationEvent::Token { id, logprobs });
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

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_models::generate::sample::Sampling;

    /// Two tokens behind one.
    fn generation() -> Generation {
        Generation {
            adapter: None,
            prompt: vec![5],
            max_tokens: 2,
            sampling: Sampling::GREEDY,
            rules: LogitRules::default(),
            constraint: None,
            logprobs: None,
            rates_prompt: false,
        }
    }

    #[test]
    fn a_sequence_ends_at_its_limit_at_an_end_token_and_at_a_nan() {
        let (mut sequence, mut stream) = Sequence::new(generation(), None, Arc::default());
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
        let (mut sequence, mut stream) = Sequence::new(generation(), None, Arc::default());
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
    fn the_most_likely_token_is_taken_where_nothing_else_is_asked_for() {
        let (mut sequence, mut stream) = Sequence::new(generation(), None, Arc::default());
        assert!(sequence.takes_most_likely());
        assert_eq!(sequence.accept_most_likely(7, &[9]), TokenOutcome::Continues);
        assert!(matches!(stream.events.try_recv(), Ok(GenerationEvent::Token { id: 7, .. })));
        let ended = TokenOutcome::Ended(FinishReason::EndOfText);
        assert_eq!(sequence.accept_most_likely(9, &[9]), ended);
        assert_eq!(sequence.tokens, [5, 7]);
        let full = TokenOutcome::Ended(FinishReason::MaxTokens);
        assert_eq!(sequence.accept_most_likely(8, &[9]), full);
        sequence.end(FinishReason::MaxTokens);
        let rules = LogitRules { bias: vec![(1, 2.0)], ..LogitRules::default() };
        let sampled = Sampling { temperature: 0.5, ..Sampling::GREEDY };
        for asked in [
            Generation { rules, ..generation() },
            Generation { logprobs: Some(0), ..generation() },
            Generation { sampling: sampled, ..generation() },
        ] {
            assert!(!Sequence::new(asked, None, Arc::default()).0.takes_most_likely());
        }
    }

    #[test]
    fn a_sequence_that_is_lost_is_answered_and_counted_and_one_that_was_abandoned_is_not() {
        let metrics: Arc<Metrics> = Arc::default();
        let new = || Sequence::new(generation(), None, Arc::clone(&metrics));
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
