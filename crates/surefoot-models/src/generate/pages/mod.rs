//! Decoding with keys and values in pages: sequences take memory as they grow, share the pages of what they
//! begin with, and several of them, with any number of tokens each, go through the model in one pass.
//!
//! A sequence is known by a key that its owner chooses. It is [begun](PagedCache::begin) with what is known of its
//! tokens, [run](PagedCache::run) in parts of any size, and [ended](PagedCache::end); whole pages of what was run stay
//! known until their memory is needed. A token's logits do not depend on what else is in the pass, but for the
//! rounding of products, which depends on how many tokens go through the model at once.
//!
//! A [`PagedCache`] belongs to a model in one place. After an error it is of no use any more: make a new
//! one and begin the sequences again.

pub(crate) mod pool;
mod prefix_index;

use std::collections::HashMap;
use std::sync::Arc;

use surefoot_ops::PAGE_TOKENS;
pub use surefoot_ops::PageLayout;

use super::session::Passes;
use super::tokens::WANT;
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::run::batch::check_vocabulary;
use crate::run::output::{Logits, Rows, Want};
use crate::run::paged::{PagedPass, PagedRun};
use crate::run::pass::PassRows;
use pool::{Page, PagePool};
use prefix_index::{Parent, PrefixIndex};

/// How many pages there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Pages in all.
    pub pages: usize,
    /// Pages of earlier sequences that are kept while nobody uses them.
    pub idle: usize,
}

/// The pages of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Those that sequences use.
    pub live: usize,
    /// Those of earlier sequences that nobody uses.
    pub idle: usize,
    /// All that there may be.
    pub most: usize,
}

/// Some more tokens of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct TokenRun<'a> {
    /// The sequence.
    pub key: u64,
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// Behind which of them logits are wanted.
    pub logits: Logits,
    /// The adapter that the sequence is run with, by its number in
    /// [`Runner::with_adapters`](crate::runner::Runner::with_adapters).
    pub adapter: Option<usize>,
}

/// Keys and values of sequences.
#[derive(Debug)]
pub struct PagedCache {
    pool: PagePool,
    idle: usize,
    sequences: HashMap<u64, CachedSequence>,
    prefixes: PrefixIndex,
}

#[derive(Debug)]
struct CachedSequence {
    /// The tokens that were run.
    tokens: Vec<u32>,
    pages: Vec<Arc<Page>>,
    /// How many of the pages the index has, and where the next one stands there.
    kept: usize,
    parent: Parent,
}

/// How many pages so many tokens take.
pub fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// What the pages of a model hold.
pub fn layout(blueprint: &Blueprint) -> PageLayout {
    PageLayout {
        layers: blueprint.blocks.len(),
        kv_heads: blueprint.kv_heads,
        head_dim: blueprint.head_dim,
    }
}

impl PagedCache {
    /// No sequences, and no memory taken.
    pub fn new(layout: PageLayout, limits: PageLimits) -> Self {
        Self {
            pool: PagePool::new(layout, limits.pages),
            idle: limits.idle,
            sequences: HashMap::new(),
            prefixes: PrefixIndex::default(),
        }
    }

    /// One without sequences, with the same limits.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let limits = PageLimits { pages: self.pool.most(), idle: self.idle };
        Self::new(self.pool.layout(), limits)
    }

    /// How many pages there are.
    pub fn counts(&self) -> PageCounts {
        let idle = self.prefixes.idle();
        PageCounts { live: self.pool.in_use() - idle, idle, most: self.pool.most() }
    }

    /// How many sequences were begun and not ended.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// How many tokens of a sequence were run or are shared; none if it was not begun.
    pub fn filled(&self, key: u64) -> Option<usize> {
        self.sequences.get(&key).map(|sequence| sequence.tokens.len())
    }

    /// How many of these tokens would be known if they were begun now, and how many pages that are free or idle
    /// the sequence would take for all its tokens.
    pub fn needs(&self, namespace: u64, tokens: &[u32]) -> (usize, usize) {
        let (known, in_use) = self.prefixes.known(namespace, tokens);
        (known * PAGE_TOKENS, pages_of(tokens.len()) - in_use)
    }

    /// How many pages a sequence that was begun still has to take for its first `tokens`.
    pub fn missing(&self, key: u64, tokens: usize) -> usize {
        let held = self.sequences.get(&key).map_or(0, |sequence| sequence.pages.len());
        pages_of(tokens).saturating_sub(held)
    }

    /// How many pages could be taken now: those that are free, and those of earlier sequences that nobody uses.
    pub fn free_pages(&self) -> usize {
        self.pool.most() - self.pool.in_use() + self.prefixes.idle()
    }

    /// Begins a sequence with what is known of its tokens, and gives how many of them are. The last token is
    /// never known. Sequences of different namespaces share nothing.
    pub fn begin(&mut self, key: u64, namespace: u64, tokens: &[u32]) -> usize {
        let (pages, parent) = self.prefixes.find(namespace, tokens);
        let known = pages.len() * PAGE_TOKENS;
        let sequence =
            CachedSequence { tokens: tokens[..known].to_vec(), kept: pages.len(), pages, parent };
        self.sequences.insert(key, sequence);
        known
    }

    /// Begins a sequence, or goes on with one that may have been run with other tokens at its end: what is the same
    /// stays, all but the last token at most. Gives how many are known.
    pub fn resume(&mut self, key: u64, namespace: u64, tokens: &[u32]) -> usize {
        let Some(sequence) = self.sequences.get(&key) else {
            return self.begin(key, namespace, tokens);
        };
        let same = sequence.tokens.iter().zip(tokens).take_while(|(one, other)| one == other);
        let same = same.count().min(tokens.len().saturating_sub(1));
        if same < sequence.kept * PAGE_TOKENS {
            self.end(key);
            return self.begin(key, namespace, tokens);
        }
        self.truncate(key, same);
        same
    }

    /// Makes room for the first `tokens` of a sequence that was begun, if there is any: pages that nobody uses
    /// go first. If there is none, nothing is changed.
    pub fn reserve(&mut self, key: u64, tokens: usize) -> bool {
        let Some(sequence) = self.sequences.get_mut(&key) else { return false };
        let missing = pages_of(tokens).saturating_sub(sequence.pages.len());
        let free = self.pool.most() - self.pool.in_use();
        if missing > free {
            if missing - free > self.prefixes.idle() {
                return false;
            }
            self.prefixes.evict(missing - free);
        }
        for _ in 0..missing {
            let Some(page) = self.pool.take() else { return false };
            sequence.pages.push(page);
        }
        true
    }

    /// Runs tokens of several sequences in one pass, behind those that were run, and gives the logits that are wanted, run by
    /// run. Sequences that were not begun are refused, and so are tokens for which there is no room.
    pub fn run(
        &mut self,
        passes: &mut Passes<'_>,
        runs: &[TokenRun<'_>],
    ) -> Result<Rows, ModelError> {
        let model = passes.model;
        let (mut ids, mut positions, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let mut adapters = Vec::new();
        for run in runs {
            check_vocabulary(run.tokens, model.blueprint.vocab)?;
            let start = self.filled(run.key).unwrap_or(0);
            if run.tokens.is_empty() || !self.reserve(run.key, start + run.tokens.len()) {
                return Err(ModelError::request(format!(
                    "there is no room for {} more tokens of a sequence of {start}: {} of {} pages are in use",
                    run.tokens.len(),
                    self.pool.in_use(),
                    self.pool.most()
                )));
            }
            let first = ids.len();
            ids.extend_from_slice(run.tokens);
            positions.extend(start..start + run.tokens.len());
            adapters.resize(ids.len(), run.adapter);
            match run.logits {
                Logits::None => {}
                Logits::Last => wanted.push(ids.len() - 1),
                Logits::All => wanted.extend(first..ids.len()),
            }
        }
        let mut pass = PagedPass {
            layout: self.pool.layout(),
            heads: model.blueprint.heads,
            runs: Vec::new(),
        };
        let mut rows = 0;
        for run in runs {
            let Some(sequence) = self.sequences.get_mut(&run.key) else { continue };
            sequence.keep_whole_pages(&mut self.prefixes);
            pass.runs.push(PagedRun {
                rows: rows..rows + run.tokens.len(),
                start: sequence.tokens.len(),
                pages: std::mem::take(&mut sequence.pages),
            });
            rows += run.tokens.len();
        }
        let logits = if wanted.is_empty() { Logits::None } else { Logits::Last };
        let input = PassRows {
            width: ids.len(),
            ids: &ids,
            token_types: &[],
            positions: &positions,
            rotated_alike: true,
            pads: &[0],
            past: 0,
            is_mixed: true,
            wanted: Some(wanted),
        };
        passes.session.set_adapters(adapters);
        let want = Want { logits, ..WANT };
        let output =
            model.pass_rows(&input, want, &mut passes.session, Some(&mut pass), &mut None)?;
        for (run, paged) in runs.iter().zip(pass.runs) {
            if let Some(sequence) = self.sequences.get_mut(&run.key) {
                sequence.pages = paged.pages;
                sequence.tokens.extend_from_slice(run.tokens);
            }
        }
        Ok(output.logits.unwrap_or(Rows { cols: 0, numbers: Vec::new() }))
    }

    /// Forgets what was run of a sequence behind its first `tokens`: a draft that was not accepted. What an
    /// earlier pass ran stays.
    pub fn truncate(&mut self, key: u64, tokens: usize) {
        if let Some(sequence) = self.sequences.get_mut(&key) {
            let tokens = tokens.max(sequence.kept * PAGE_TOKENS);
            sequence.tokens.truncate(tokens);
            sequence.pages.truncate(pages_of(tokens));
        }
    }

    /// Ends a sequence. Its whole pages stay known as long as there is room for them.
    pub fn end(&mut self, key: u64) {
        let Some(mut sequence) = self.sequences.remove(&key) else { return };
        sequence.keep_whole_pages(&mut self.prefixes);
        drop(sequence);
        let idle = self.prefixes.idle();
        if idle > self.idle {
            self.prefixes.evict(idle - self.idle);
        }
    }

    /// Gives memory that no page uses back to the system.
    pub fn release_spare(&self) {
        self.pool.release_spare();
    }
}

impl CachedSequence {
    /// Makes pages that are full known to others.
    fn keep_whole_pages(&mut self, prefixes: &mut PrefixIndex) {
        let (whole, _) = self.tokens.as_chunks::<PAGE_TOKENS>();
        for (depth, tokens) in whole.iter().enumerate().skip(self.kept) {
            self.parent = prefixes.keep(self.parent, *tokens, depth, &self.pages[depth]);
            self.kept = depth + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::session::tests::{alone, choose, opened, prompt};
    use crate::run::model::Model;

    const LIMITS: PageLimits = PageLimits { pages: 64, idle: 64 };

    /// Runs sequences that come and go, some tokens of a prompt at a time, and compares each with what it
    /// gives alone: at which step each begins, its prompt's length, and how many tokens it gives.
    fn together(model: &Model, part: usize, script: &[(usize, usize, usize)]) -> PagedCache {
        let mut cache = PagedCache::new(layout(&model.blueprint), LIMITS);
        let mut passes = model.passes();
        let mut live: Vec<(u64, Vec<u32>)> = Vec::new();
        let mut left = script.len();
        for step in 0.. {
            for number in (0..script.len()).filter(|&number| script[number].0 == step) {
                let tokens = prompt(number, script[number].1);
                cache.begin(number as u64, 0, &tokens);
                live.push((number as u64, tokens));
            }
            let runs: Vec<TokenRun<'_>> = live
                .iter()
                .map(|(key, tokens)| {
                    let rest = &tokens[cache.filled(*key).unwrap()..];
                    let count = rest.len().min(part);
                    let logits = if count == rest.len() { Logits::Last } else { Logits::None };
                    TokenRun { key: *key, tokens: &rest[..count], logits, adapter: None }
                })
                .collect();
            if runs.is_empty() {
                continue;
            }
            let wanted: Vec<bool> = runs.iter().map(|run| run.logits == Logits::Last).collect();
            let logits = cache.run(&mut passes, &runs).unwrap();
            let mut rows = 0..;
            for ((_, tokens), _) in live.iter_mut().zip(wanted).filter(|(_, wanted)| *wanted) {
                tokens.push(choose(logits.row(rows.next().unwrap())));
            }
            live.retain(|(key, tokens)| {
                let (_, length, count) = script[*key as usize];
                if tokens.len() < length + count {
                    return true;
                }
                let expected = alone(model, &tokens[..length], count);
                assert_eq!(tokens[length..], expected, "sequence {key}, parts of {part}");
                cache.end(*key);
                left -= 1;
                false
            });
            if left == 0 {
                break;
            }
        }
        cache
    }

    const SCRIPT: [(usize, usize, usize); 8] = [
        (0, 3, 30),
        (0, 7, 4),
        (2, 1, 20),
        (5, 40, 12),
        (6, 2, 3),
        (6, 20, 1),
        (40, 5, 50),
        (41, 90, 5),
    ];

    #[test]
    fn sequences_that_come_and_go_get_the_tokens_they_get_alone() {
        for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "mistral-window", "qwen3-bias-tied"] {
            let model = opened(name, 1.0);
            for part in [1, 7, 16, 100] {
                together(&model, part, &SCRIPT);
            }
        }
    }

    #[test]
    fn streamed_weights_give_the_same() {
        together(&opened("qwen2-tiny", 0.0), 16, &SCRIPT);
    }

    #[test]
    fn prompts_that_begin_alike_share_pages_and_give_the_tokens_they_give_alone() {
        for name in ["gpt2-tiny", "llama-tiny", "mistral-window"] {
            let model = opened(name, 1.0);
            let mut cache = PagedCache::new(layout(&model.blueprint), LIMITS);
            let mut passes = model.passes();
            let first = prompt(2, 60);
            let mut second = first[..50].to_vec();
            second.extend([5, 6, 7]);
            let mut generate = |cache: &mut PagedCache, key: u64, prompt: &[u32]| {
                let mut tokens = prompt.to_vec();
                while tokens.len() < prompt.len() + 9 {
                    let rest = &tokens[cache.filled(key).unwrap()..];
                    let run = TokenRun { key, tokens: rest, logits: Logits::Last, adapter: None };
                    let logits = cache.run(&mut passes, &[run]).unwrap();
                    tokens.push(choose(logits.row(0)));
                }
                assert_eq!(tokens[prompt.len()..], alone(&model, prompt, 9), "{name}");
            };
            assert_eq!(cache.begin(1, 0, &first), 0);
            generate(&mut cache, 1, &first);
            let used = cache.counts().live;
            // The first one is still there: both use the same three pages.
            assert_eq!(cache.begin(2, 0, &second), 48);
            generate(&mut cache, 2, &second);
            assert_eq!(cache.counts().live, used + pages_of(second.len() + 8) - 3);
            assert_eq!(cache.begin(3, 1, &second), 0, "another namespace shares nothing");
            for key in 1..=3 {
                cache.end(key);
            }
            assert_eq!(cache.counts().live, 0);
            assert!(cache.counts().idle > 3);
            assert_eq!(cache.begin(4, 0, &second), 48, "what has ended stays known");
        }
    }

    #[test]
    fn a_full_pool_gives_up_what_nobody_uses_and_then_refuses() {
        let model = opened("llama-tiny", 1.0);
        let mut cache = PagedCache::new(layout(&model.blueprint), PageLimits { pages: 4, idle: 2 });
        let mut passes = model.passes();
        let long = prompt(1, 50);
        cache.begin(1, 0, &long);
        let whole = TokenRun { key: 1, tokens: &long, logits: Logits::Last, adapter: None };
        cache.run(&mut passes, &[whole]).unwrap();
        assert_eq!(cache.counts(), PageCounts { live: 4, idle: 0, most: 4 });
        let other = prompt(2, 20);
        cache.begin(2, 0, &other);
        assert!(!cache.reserve(2, 20), "all pages are in use");
        assert!(
            cache
                .run(
                    &mut passes,
                    &[TokenRun { key: 2, tokens: &other, logits: Logits::Last, adapter: None }]
                )
                .is_err()
        );
        cache.end(1);
        assert_eq!(
            cache.counts(),
            PageCounts { live: 0, idle: 2, most: 4 },
            "two are kept at most"
        );
        assert_eq!(cache.free_pages(), 4);
        assert!(!cache.reserve(2, 65), "there are only four");
        assert_eq!(cache.counts().idle, 2, "what can't be had costs nothing");
        assert!(cache.reserve(2, 64), "nobody uses the others");
        assert_eq!(cache.counts(), PageCounts { live: 4, idle: 0, most: 4 });
    }

    #[test]
    fn a_draft_that_is_taken_back_leaves_no_trace() {
        let model = opened("llama-tiny", 1.0);
        let mut cache = PagedCache::new(layout(&model.blueprint), LIMITS);
        let mut passes = model.passes();
        let mut tokens = prompt(1, 30);
        cache.begin(1, 0, &tokens);
        let run = TokenRun { key: 1, tokens: &tokens, logits: Logits::Last, adapter: None };
        let logits = cache.run(&mut passes, &[run]).unwrap();
        tokens.push(choose(logits.row(0)));
        while tokens.len() < 50 {
            let kept = cache.filled(1).unwrap();
            // The right token and four wrong ones.
            let draft = [tokens[kept], 1, 2, 3, 4];
            let run = TokenRun { key: 1, tokens: &draft, logits: Logits::All, adapter: None };
            let logits = cache.run(&mut passes, &[run]).unwrap();
            assert_eq!(logits.numbers.len(), 5 * logits.cols);
            tokens.push(choose(logits.row(0)));
            cache.truncate(1, kept + 1);
        }
        assert_eq!(tokens[30..], alone(&model, &tokens[..30], 20));
    }
}
