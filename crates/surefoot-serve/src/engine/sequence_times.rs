//! When a sequence was accepted, started and got its tokens.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How far a sequence has come, and when. Times are those at which whoever listens received tokens.
#[derive(Clone, Debug)]
pub struct SequenceTimes {
    /// When it was accepted into the queue.
    pub accepted: Instant,
    /// When it left the queue; set by the engine.
    pub(super) started: Arc<OnceLock<Instant>>,
    /// When its first token came.
    pub first_token: Option<Instant>,
    /// When its last token came.
    pub last_token: Option<Instant>,
    /// The longest time between two tokens.
    pub longest_gap: Duration,
    /// The tokens of its prompt.
    pub prompt_tokens: usize,
    /// The tokens that came.
    pub tokens: usize,
}

impl SequenceTimes {
    pub(super) fn new(prompt_tokens: usize) -> Self {
        Self {
            accepted: Instant::now(),
            started: Arc::default(),
            first_token: None,
            last_token: None,
            longest_gap: Duration::ZERO,
            prompt_tokens,
            tokens: 0,
        }
    }

    /// When it left the queue, if it did.
    pub fn started(&self) -> Option<Instant> {
        self.started.get().copied()
    }

    pub(super) fn token(&mut self, now: Instant) {
        if let Some(last) = self.last_token {
            self.longest_gap = self.longest_gap.max(now.saturating_duration_since(last));
        }
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens += 1;
    }

    /// From when it was accepted until it left the queue.
    pub fn queue(&self) -> Option<Duration> {
        Some(self.started()?.saturating_duration_since(self.accepted))
    }

    /// From when it left the queue until its first token: the passes over its prompt.
    pub fn prompt(&self) -> Option<Duration> {
        Some(self.first_token?.saturating_duration_since(self.started()?))
    }

    /// From when it was accepted until its first token.
    pub fn to_first_token(&self) -> Option<Duration> {
        Some(self.first_token?.saturating_duration_since(self.accepted))
    }

    /// The mean time between two tokens; none if there were fewer than two.
    pub fn between_tokens(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.tokens.checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        Some(self.last_token?.saturating_duration_since(self.first_token?) / gaps)
    }
}

/// Is told of a sequence at its end, however it ended.
pub trait SequenceObserver: std::fmt::Debug + Send + Sync {
    /// The sequence has ended, or nobody listens to it any more.
    fn ended(&self, times: &SequenceTimes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_from_the_moments() {
        let mut times = SequenceTimes::new(3);
        assert_eq!((times.queue(), times.prompt(), times.between_tokens()), (None, None, None));
        let at = |millis: u64| times.accepted + Duration::from_millis(millis);
        let moments = [at(30), at(40), at(70)];
        times.started.set(at(10)).unwrap();
        for moment in moments {
            times.token(moment);
        }
        let millis = Duration::from_millis;
        assert_eq!((times.queue(), times.prompt()), (Some(millis(10)), Some(millis(20))));
        assert_eq!(
            (times.to_first_token(), times.between_tokens()),
            (Some(millis(30)), Some(millis(20)))
        );
        assert_eq!((times.longest_gap, times.tokens), (millis(30), 3));
    }
}
