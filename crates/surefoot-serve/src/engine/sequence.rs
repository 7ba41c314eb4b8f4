//! One sequence that is decoded: its tokens so far are all that has to survive a fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surefoot_models::generate::sample::{Sampler, Sampling};
use surefoot_models::generate::tokens::Ending;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::error::EngineError;
use super::logit_rules::LogitRules;

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The most tokens behind it.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How the logits are changed before.
    pub rules: LogitRules,
    /// With each token, its probability and that of so many of the most likely ones.
    pub logprobs: Option<usize>,
}

/// What an engine says of a sequence. After an end or a failure comes nothing more.
#[derive(Clone, Debug)]
pub enum Said {
    /// One more token.
    Token {
        /// The token.
        id: u32,
        /// How likely it was, if that was asked for.
        logprobs: Option<Logprobs>,
    },
    /// There are no more tokens.
    Ended(Ending),
    /// There will be none.
    Failed(EngineError),
}

/// How likely a token was.
#[derive(Clone, Debug)]
pub struct Logprobs {
    /// The natural logarithm of its probability.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<Likely>,
}

/// A token, and how likely it was.
#[derive(Clone, Copy, Debug)]
pub struct Likely {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// Hears what is said of a sequence. Dropping it ends the sequence.
#[derive(Debug)]
pub struct Hearing {
    said: UnboundedReceiver<Said>,
    enough: Arc<AtomicBool>,
}

impl Hearing {
    /// The next thing that is said; none if the engine has ended.
    pub async fn recv(&mut self) -> Option<Said> {
        self.said.recv().await
    }

    /// Ends the sequence because what was said is all that was wanted.
    pub fn enough(&mut self) {
        self.enough.store(true, Ordering::Release);
        self.said.close();
    }
}

/// A sequence as it is decoded.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Prompt and answer.
    tokens: Vec<u32>,
    pub(crate) prompt: usize,
    max_tokens: usize,
    sampler: Sampler,
    temperature: f32,
    rules: LogitRules,
    logprobs: Option<usize>,
    told: UnboundedSender<Said>,
    enough: Arc<AtomicBool>,
    pub(crate) accepted: Instant,
    pub(crate) deadline: Option<Instant>,
}

/// Whether a sequence goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    GoesOn,
    /// To be told by [`Sequence::end`], once it was counted.
    Ended(Ending),
    /// To be told by [`Sequence::fail`].
    NotFinite,
}

impl Sequence {
    pub(crate) fn new(generation: Generation, deadline: Option<Instant>) -> (Self, Hearing) {
        let (told, said) = unbounded_channel();
        let hearing = Hearing { said, enough: Arc::default() };
        let sequence = Self {
            prompt: generation.prompt.len(),
            tokens: generation.prompt,
            max_tokens: generation.max_tokens,
            sampler: Sampler::new(generation.sampling),
            temperature: generation.sampling.temperature,
            rules: generation.rules,
            logprobs: generation.logprobs,
            told,
            enough: Arc::clone(&hearing.enough),
            accepted: Instant::now(),
            deadline,
        };
        (sequence, hearing)
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.told.is_closed()
    }

    /// Whether who listened has heard all that was wanted.
    pub(crate) fn has_enough(&self) -> bool {
        self.enough.load(Ordering::Acquire)
    }

    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// All tokens, prompt and answer.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens whose keys and values are in the cache between two steps.
    pub(crate) fn tokens_before_last(&self) -> &[u32] {
        self.tokens.split_last().map_or(&[], |(_, before)| before)
    }

    /// The token that the next step is fed with.
    pub(crate) fn last(&self) -> u32 {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// Chooses the next token by the logits behind the last one.
    pub(crate) fn accept(&mut self, logits: &[f32], ends: &[u32]) -> Fate {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Fate::NotFinite;
        }
        let id = match self.rules.is_empty() {
            true => self.sampler.choose(logits),
            false => {
                let (prompt, answer) = self.tokens.split_at(self.prompt);
                let changed = self.rules.apply(logits, prompt, answer, self.temperature);
                self.sampler.choose(&changed)
            }
        };
        if ends.contains(&id) {
            return Fate::Ended(Ending::EndOfText);
        }
        self.tokens.push(id);
        self.say(Said::Token { id, logprobs: self.logprobs.map(|top| logprobs(logits, id, top)) });
        if self.generated() >= self.max_tokens {
            return Fate::Ended(Ending::MaxTokens);
        }
        Fate::GoesOn
    }

    pub(crate) fn end(&self, ending: Ending) {
        self.say(Said::Ended(ending));
    }

    pub(crate) fn fail(&self, error: EngineError) {
        self.say(Said::Failed(error));
    }

    pub(crate) fn expire(&self, now: Instant) {
        self.fail(EngineError::Expired(
            now.saturating_duration_since(self.accepted).max(Duration::from_millis(1)),
        ));
    }

    /// Whoever stopped listening is found out by [`Sequence::is_abandoned`].
    fn say(&self, said: Said) {
        let _ = self.told.send(said);
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
    let top = order.into_iter().map(|id| Likely { id, logprob: of(id) }).collect();
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
            prompt: vec![5],
            max_tokens: 2,
            sampling: Sampling::GREEDY,
            rules: LogitRules::default(),
            logprobs: None,
        };
        let (mut sequence, Hearing { said: mut heard, .. }) =
            Sequence::new(generation.clone(), None);
        assert_eq!(sequence.accept(&[0.0, 1.0], &[]), Fate::GoesOn);
        assert_eq!(sequence.accept(&[1.0, 0.0], &[]), Fate::Ended(Ending::MaxTokens));
        sequence.end(Ending::MaxTokens);
        assert_eq!(sequence.tokens, [5, 1, 0]);
        assert!(matches!(heard.try_recv(), Ok(Said::Token { id: 1, .. })));
        assert!(matches!(heard.try_recv(), Ok(Said::Token { id: 0, .. })));
        assert!(matches!(heard.try_recv(), Ok(Said::Ended(Ending::MaxTokens))));
        let (mut sequence, Hearing { said: mut heard, .. }) = Sequence::new(generation, None);
        assert_eq!(sequence.accept(&[0.0, f32::NAN], &[]), Fate::NotFinite);
        assert_eq!(sequence.accept(&[0.0, 1.0], &[1]), Fate::Ended(Ending::EndOfText));
        assert_eq!(sequence.generated(), 0);
        sequence.fail(EngineError::NotFinite);
        assert!(matches!(heard.try_recv(), Ok(Said::Failed(EngineError::NotFinite))));
        drop(heard);
        assert!(sequence.is_abandoned());
    }
}
