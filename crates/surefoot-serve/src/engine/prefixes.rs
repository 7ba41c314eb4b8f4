//! Beginnings of prompts that were run, so that prompts that begin alike (the same system prompt, a chat
//! that goes on) don't run them again.
//!
//! Whole prompts are kept up to a number of tokens; the least recently used are dropped first. They belong to one location of
//! the model: the owner clears them when that changes or memory runs out.

use surefoot_models::generate::prefill::KnownPrefix;

/// Fewer common tokens are not worth a pass of their own.
pub(crate) const LEAST_COMMON: usize = 32;

/// Prompts that were run, the latest used last.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    known: Vec<KnownPrefix>,
}

impl Prefixes {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// The most tokens that `tokens` has in common with a prompt that is known, if that is worth it, and
    /// where that is. The last token has to be run in any case.
    pub(crate) fn longest(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let most = tokens.len().saturating_sub(1);
        let common = self.known.iter().map(|known| common(known.tokens(), tokens).min(most));
        let (at, length) = common.enumerate().max_by_key(|(_, length)| *length)?;
        (length >= LEAST_COMMON).then_some((at, length))
    }

    /// The prompt of a place, which is used now.
    pub(crate) fn take_up(&mut self, at: usize) -> Option<&KnownPrefix> {
        if at < self.known.len() {
            let used = self.known.remove(at);
            self.known.push(used);
        }
        self.known.last()
    }

    /// Whether a prompt is worth to be kept: most of it is not known yet.
    pub(crate) fn wants(&self, tokens: &[u32], most: usize) -> bool {
        let known = self.longest(tokens).map_or(0, |(_, length)| length);
        tokens.len() >= LEAST_COMMON && tokens.len() <= most && known * 4 < tokens.len() * 3
    }

    /// Keeps a prompt, and lets go of those that it goes on from and of the oldest ones, so that all have
    /// at most `most` tokens.
    pub(crate) fn keep(&mut self, new: KnownPrefix, most: usize) {
        self.known.retain(|known| !new.tokens().starts_with(known.tokens()));
        self.known.push(new);
        let mut all: usize = self.known.iter().map(|known| known.tokens().len()).sum();
        let mut gone = 0;
        while all > most && gone < self.known.len() {
            all -= self.known[gone].tokens().len();
            gone += 1;
        }
        self.known.drain(..gone);
    }
}

/// How many tokens both begin with.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
