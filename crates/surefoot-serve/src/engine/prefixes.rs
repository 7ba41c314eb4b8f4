//! Beginnings of prompts that were run, so that prompts that begin alike (the same system prompt, a chat
//! that goes on) don't run them again.
//!
//! A prompt's keys and values belong to the adapter that it was run with.
//!
//! Whole prompts are kept up to a number of tokens; the least recently used are dropped first. They belong to one location of
//! the model: the owner clears them when that changes or memory runs out.

use surefoot_models::generate::prefill::KnownPrefix;

/// Fewer common tokens are not worth a pass of their own.
pub(crate) const LEAST_COMMON: usize = 32;

/// Prompts that were run, the latest used last.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    known: Vec<(Option<usize>, KnownPrefix)>,
}

impl Prefixes {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// The most tokens that `tokens` has in common with a prompt that is known with the same `adapter`, if that is worth
    /// it, and where that is. The last token has to be run in any case.
    pub(crate) fn longest(&self, adapter: Option<usize>, tokens: &[u32]) -> Option<(usize, usize)> {
        let most = tokens.len().saturating_sub(1);
        let common = self.known.iter().map(|(with, known)| match *with == adapter {
            true => common(known.tokens(), tokens).min(most),
            false => 0,
        });
        let (at, length) = common.enumerate().max_by_key(|(_, length)| *length)?;
        (length >= LEAST_COMMON).then_some((at, length))
    }

    /// The prompt of a place, which is used now.
    pub(crate) fn take_up(&mut self, at: usize) -> Option<&KnownPrefix> {
        if at < self.known.len() {
            let used = self.known.remove(at);
            self.known.push(used);
        }
        self.known.last().map(|(_, known)| known)
    }

    /// Whether a prompt is worth to be kept: most of it is not known yet.
    pub(crate) fn wants(&self, adapter: Option<usize>, tokens: &[u32], most: usize) -> bool {
        let known = self.longest(adapter, tokens).map_or(0, |(_, length)| length);
        tokens.len() >= LEAST_COMMON && tokens.len() <= most && known * 4 < tokens.len() * 3
    }

    /// Keeps a prompt, and lets go of those that it goes on from and of the oldest ones, so that all have
    /// at most `most` tokens.
    pub(crate) fn keep(&mut self, adapter: Option<usize>, new: KnownPrefix, most: usize) {
        self.known
            .retain(|(with, known)| *with != adapter || !new.tokens().starts_with(known.tokens()));
        self.known.push((adapter, new));
        let mut all: usize = self.known.iter().map(|(_, known)| known.tokens().len()).sum();
        let mut gone = 0;
        while all > most && gone < self.known.len() {
            all -= self.known[gone].1.tokens().len();
            gone += 1;
        }
        self.known.drain(..gone);
    }
}

/// How many tokens both begin with.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
