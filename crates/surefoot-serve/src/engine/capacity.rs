//! How much runs at once: what the operator asked for, reduced to what the memory holds.
//!
//! Memory goes to the weights, to the passes that run at the same time (activations), and to the
//! cache of keys and values. The cache is not planned for the worst case, all sequences at their
//! full length: it gets what is left, at least enough for one sequence of full length, and
//! sequences take their part of it as they grow, on the CPU page by page. When it is full the latest of
//! them wait ([`schedule`](super::schedule), [`decoder`](super::decoder)).

use std::time::Duration;

use surefoot::device::DeviceName;
use surefoot_models::arch::blueprint::Blueprint;
use surefoot_models::generate::pages::{self, PageLimits};
use surefoot_models::generate::session::Limits;
use surefoot_models::runner::{Attempt, RunRequest, Runner};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::{Placement, Plan};
use surefoot_models::{Logits, Rectangle, Want};

use super::bucket;
use super::error::EngineError;

/// Kept for connections, requests and answers: what the runner of a server is opened
/// [beside](Runner::beside).
pub const HTTP_BYTES: u64 = 24 << 20;

/// The tokens of a sequence unless more are asked for: models are made for a hundred thousand,
/// and a cache for that leaves no room for others.
const USUAL_CONTEXT: usize = 4096;

/// Unless a context was asked for, it is not reduced to fewer tokens to keep weights in memory.
const LEAST_CONTEXT: usize = 1024;
/// Sequences are not reduced to fewer to keep weights in memory: streamed bytes are read once for all of them.
const LEAST_SEQUENCES: usize = 8;
/// Where weights stream all the same, there are as many sequences as take no more than this part of the weights.
const LITTLE_OF_WEIGHTS: u64 = 64;
/// Shorter sequences refuse requests, fewer ones only make them wait: sequences are halved first as long as that frees at
/// least this part of what a halved context does.
const WORTH_OF_CONTEXT: u64 = 4;

/// A pass of so many tokens uses a device well: smaller ones only make room if nothing else does.
const GOOD_PASS: usize = 256;
/// Passes are not made smaller than this before there are fewer sequences.
const SHORT_PASS: usize = 64;
/// The smallest pass.
const LEAST_PASS: usize = 16;

/// What to run at once, at most.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Sequences that are decoded at once.
    pub sequences: usize,
    /// Tokens of one sequence, prompt and answer; 4096 if none. Never more than the model was
    /// made for.
    pub context: Option<usize>,
    /// Texts that are embedded at once.
    pub texts: usize,
    /// Tokens of one text.
    pub text_tokens: Option<usize>,
    /// Tokens of prompts or texts that go through the model in one pass.
    pub pass_tokens: usize,
    /// Requests that may wait, for each of embedding and decoding.
    pub queue: usize,
    /// How long a text may wait for others while a batch is running.
    pub patience: Duration,
    /// Batches of texts that run at once.
    pub batches_in_flight: usize,
}

/// What runs at once.
#[derive(Clone, Copy, Debug)]
pub struct EngineCapacity {
    /// Sequences that are decoded at once.
    pub sequences: usize,
    /// Tokens of one sequence.
    pub context: usize,
    /// Tokens of all sequences that the cache holds, padding included.
    pub cache_tokens: usize,
    /// Texts that are embedded at once.
    pub texts: usize,
    /// Tokens of one text.
    pub text_tokens: usize,
    /// Tokens of prompts or texts that go through the model in one pass. Only a single text may
    /// have more.
    pub pass_tokens: usize,
    /// Tokens of all passes over prompts and texts that run at the same time.
    pub activation_tokens: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// How long a text may wait for others.
    pub patience: Duration,
    /// Batches of texts that run at once.
    pub batches_in_flight: usize,
    /// The tokens that a sequence would have with more memory.
    wished_context: usize,
    decodes: bool,
    /// Whether keys and values are in pages.
    paged: bool,
    /// The blocks of the model.
    layers: usize,
}

/// Shapes to choose from, the largest first.
struct Candidates {
    usable: Vec<EngineCapacity>,
    /// Those that make little use of weights that stream: only where none of the others fits.
    last_resort: Vec<EngineCapacity>,
}

impl EngineCapacity {
    /// The best capacity within the limits whose weights stay in memory; if there is none, the smallest usable one, which
    /// streams the fewest bytes of them but for those that more sequences are worth.
    pub fn fit(runner: &Runner, limits: &EngineLimits) -> Result<(Self, Plan), EngineError> {
        let requested = Self::requested(runner, limits)?;
        // Texts that are asked for are not refused to keep weights in memory: rather these stream.
        let least_text = requested.text_tokens.min(GOOD_PASS);
        let candidates = requested.candidates(runner.blueprint(), limits.context.is_none());
        let is_usable = |capacity: &&Self| capacity.text_tokens >= least_text;
        let mut best: Option<(Self, Plan)> = None;
        for capacity in candidates.usable.iter().filter(is_usable) {
            let Some((capacity, plan)) = capacity.with_largest_cache(runner)? else { continue };
            let enough = capacity.cache_tokens >= capacity.limits().most_cache_tokens() / 2;
            let better = best.as_ref().is_none_or(|(best, _)| {
                (capacity.sequences, capacity.context) == (best.sequences, best.context)
                    && capacity.pass_tokens >= GOOD_PASS.min(requested.pass_tokens)
                    && capacity.cache_tokens > best.cache_tokens
            });
            if better {
                best = Some((capacity, plan));
            }
            if enough {
                break;
            }
        }
        if let Some(found) = best {
            return Ok(found);
        }
        if let Some(smallest) = candidates.usable.iter().rfind(is_usable) {
            let weights: u64 =
                runner.plan(&smallest.work())?.parts.iter().map(|part| part.bytes).sum();
            let logits = |sequences: usize| (sequences * 12 * runner.blueprint().vocab) as u64;
            let is_little = |sequences: &usize| {
                logits(*sequences) <= logits(smallest.sequences) + weights / LITTLE_OF_WEIGHTS
            };
            let sequences =
                candidates.usable.iter().map(|one| one.sequences).filter(is_little).max();
            let capacity = Self { sequences: sequences.unwrap_or(smallest.sequences), ..*smallest };
            let plan = runner.plan(&capacity.work())?;
            if plan.fits {
                return Ok((capacity, plan));
            }
        }
        let mut least = Err(EngineError::Request("the model does not fit the memory".to_owned()));
        // Those that are larger than the smallest usable one need more than it.
        let larger = candidates.usable.len().saturating_sub(1);
        for capacity in candidates.usable.into_iter().skip(larger).chain(candidates.last_resort) {
            let plan = runner.plan(&capacity.work())?;
            match plan.checked() {
                Ok(plan) => return Ok((capacity, plan)),
                Err(error) => least = Err(error.into()),
            }
        }
        least
    }

    /// The tokens that a sequence would have with more memory, if it has fewer.
    pub fn context_with_more_memory(&self) -> Option<usize> {
        (self.context < self.wished_context).then_some(self.wished_context)
    }

    /// The tokens that one sequence can have.
    pub(crate) fn context_of(runner: &Runner, limits: &EngineLimits) -> usize {
        let positions = runner.blueprint().max_positions;
        limits.context.unwrap_or(USUAL_CONTEXT).clamp(1, positions.max(1))
    }

    /// All that was asked for.
    fn requested(runner: &Runner, limits: &EngineLimits) -> Result<Self, EngineError> {
        let opened = runner.opened();
        let context = Self::context_of(runner, limits);
        let mut capacity = Self {
            sequences: limits.sequences.max(1),
            context,
            cache_tokens: 0,
            texts: limits.texts.max(1),
            text_tokens: limits.text_tokens.map_or(context, |most| most.min(context)),
            pass_tokens: limits.pass_tokens.max(1),
            activation_tokens: 0,
            wished_context: context,
            queue: limits.queue.max(1),
            patience: limits.patience,
            batches_in_flight: limits.batches_in_flight.max(1),
            decodes: opened.has_head() && opened.blueprint.causal,
            paged: runner.footing().device()?.name() == DeviceName::CPU,
            layers: opened.blueprint.blocks.len(),
        };
        capacity.cache_tokens = capacity.limits().least_cache_tokens();
        let texts = capacity.batches_in_flight * capacity.one_pass();
        capacity.activation_tokens =
            texts + if capacity.decodes { capacity.pass_tokens } else { 0 };
        Ok(capacity)
    }

    /// The tokens of the largest single pass.
    fn one_pass(&self) -> usize {
        self.pass_tokens.max(self.text_tokens)
    }

    /// Shapes that take less and less memory: passes that take turns, smaller passes, fewer sequences and, if it may be
    /// reduced, less context.
    fn candidates(self, blueprint: &Blueprint, reduces_context: bool) -> Candidates {
        let mut usable = vec![self];
        let mut capacity = Self { activation_tokens: self.one_pass(), ..self };
        usable.push(capacity);
        while capacity.halve_passes(GOOD_PASS) {
            usable.push(capacity);
        }
        while capacity.halve_sequences_or_context(blueprint, reduces_context) {
            usable.push(capacity);
        }
        let mut last_resort = Vec::new();
        while capacity.halve_passes(SHORT_PASS) {
            last_resort.push(capacity);
        }
        // In turn: streamed bytes are read once for all sequences, and for all tokens of a pass.
        loop {
            let before = last_resort.len();
            if capacity.halve_sequences(1) {
                last_resort.push(capacity);
            }
            if capacity.halve_passes(LEAST_PASS) {
                last_resort.push(capacity);
            }
            if last_resort.len() == before {
                break;
            }
        }
        Candidates { usable, last_resort }
    }

    /// Halves the tokens of the largest pass; false if it has `least` already.
    fn halve_passes(&mut self, least: usize) -> bool {
        // A text is one pass. A model that generates is mostly there for that; for another one texts are all there is.
        let largest = if self.decodes { self.one_pass() } else { self.pass_tokens };
        if largest <= least {
            return false;
        }
        let most = (largest / 2).max(least);
        self.pass_tokens = self.pass_tokens.min(most);
        if self.decodes {
            self.text_tokens = self.text_tokens.min(most);
        }
        self.activation_tokens = self.one_pass();
        true
    }

    /// Halves the number of sequences; false if there are `least` already.
    fn halve_sequences(&mut self, least: usize) -> bool {
        let may = self.decodes && self.sequences > least;
        if may {
            self.sequences = self.sequences.div_ceil(2).max(least);
        }
        may
    }

    /// Halves what costs least for the memory that it frees; false if neither may be halved.
    fn halve_sequences_or_context(&mut self, blueprint: &Blueprint, reduces_context: bool) -> bool {
        let layout = pages::layout(blueprint);
        let of_token = 8 * layout.layers * layout.kv_heads * layout.head_dim;
        let by_context = (self.context / 2 * of_token) as u64;
        // The logits of each sequence, as they are planned for.
        let by_sequences = (self.sequences / 2 * 12 * blueprint.vocab) as u64;
        let halves_context = reduces_context && self.decodes && self.context / 2 >= LEAST_CONTEXT;
        let prefers_context = by_sequences < by_context / WORTH_OF_CONTEXT;
        if !(halves_context && prefers_context) && self.halve_sequences(LEAST_SEQUENCES) {
            return true;
        }
        if halves_context {
            self.context /= 2;
            self.text_tokens = self.text_tokens.min(self.context);
            self.cache_tokens = self.limits().least_cache_tokens();
        }
        halves_context
    }

    /// With the largest cache with which all weights stay in memory, if there is one.
    fn with_largest_cache(self, runner: &Runner) -> Result<Option<(Self, Plan)>, EngineError> {
        let planned = |cache_tokens| -> Result<Option<(Self, Plan)>, EngineError> {
            let capacity = Self { cache_tokens, ..self };
            let plan = runner.plan(&capacity.work())?;
            Ok((plan.fits && plan.mode == Placement::Resident).then_some((capacity, plan)))
        };
        let limits = self.limits();
        let (mut fits, mut too_much) = (limits.least_cache_tokens(), limits.most_cache_tokens());
        if !self.decodes {
            return planned(fits);
        }
        if let Some(all) = planned(too_much)? {
            return Ok(Some(all));
        }
        let Some(mut best) = planned(fits)? else { return Ok(None) };
        // Within a hundredth: plans are steps of some MiB anyway.
        while too_much - fits > (fits / 100).max(1) {
            let between = fits.midpoint(too_much);
            match planned(between)? {
                Some(found) => (best, fits) = (found, between),
                None => too_much = between,
            }
        }
        Ok(Some(best))
    }

    /// How many pages of keys and values there may be, where they are in pages. Those of earlier sequences are
    /// kept for as many tokens as four sequences of full length have.
    pub(crate) fn page_limits(&self, blueprint: &Blueprint) -> PageLimits {
        let layout = pages::layout(blueprint);
        let of_token = 8 * layout.layers * layout.kv_heads * layout.head_dim;
        let fitting = self.cache_tokens * of_token / layout.bytes().max(1);
        let pages = fitting.max(pages::pages_of(self.context) + 1);
        PageLimits { pages, idle: pages.min(4 * pages::pages_of(self.context)) }
    }

    /// What a decoding session may hold.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            rows: self.sequences,
            positions: self.context,
            cache_tokens: self.cache_tokens,
            pass_tokens: self.pass_tokens,
        }
    }

    /// The least size of a pass over `count` sequences of `width` tokens. Where kernels are made
    /// for a shape, the same few are used again and again.
    pub(crate) fn least_pass(
        &self,
        attempt: &Attempt<'_>,
        count: usize,
        width: usize,
    ) -> Rectangle {
        match attempt.is_asynchronous() {
            true => bucket::rectangle(count, width, self.pass_tokens.max(self.sequences)),
            false => Rectangle::default(),
        }
    }

    /// A run of the server with this name. All of them are planned for the same work, so that the
    /// model stays loaded.
    pub(crate) fn request(&self, name: &'static str) -> RunRequest {
        RunRequest::new(name, self.work()).without_cost_record()
    }

    /// All that can be in memory at the same time.
    fn work(&self) -> Work {
        let states = Want { logits: Logits::None, hidden: false, last_hidden: true };
        if !self.decodes {
            return Work { batch: 1, prompt: self.activation_tokens, new_tokens: 0, want: states };
        }
        let prompt = self.activation_tokens.div_ceil(self.sequences);
        // The keys and values of prompts that have not joined yet.
        let joining = if self.paged { 0 } else { self.pass_tokens.max(self.context) };
        // When the cache is moved, or taken over from those that join, one layer is there twice.
        let moved = match self.paged {
            true => 0,
            false => (self.cache_tokens + joining).div_ceil(self.layers.max(1)),
        };
        let columns = (self.cache_tokens + joining + moved).div_ceil(self.sequences);
        Work {
            batch: self.sequences,
            prompt,
            new_tokens: columns.saturating_sub(prompt).max(1),
            want: Want { logits: Logits::Last, ..states },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use surefoot::Footing;
    use surefoot::device::{DeviceName, Selector};
    use surefoot_models::ModelError;
    use testkit::model_folders::{self, FolderDtype};

    /// A model of 16 MiB in a budget, if there is one.
    fn runner(folder: &std::path::Path, budget: Option<u64>) -> Runner {
        let builder = Footing::builder().devices(Selector::only(DeviceName::CPU));
        let builder = match budget {
            Some(bytes) => builder.memory(bytes),
            None => builder,
        };
        let footing = Arc::new(builder.build().unwrap());
        Runner::open(footing, folder).unwrap().beside(HTTP_BYTES)
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        model_folders::llama(folder.path(), 16 << 20, FolderDtype::Bf16);
        folder
    }

    fn limits() -> EngineLimits {
        EngineLimits {
            sequences: 64,
            context: Some(4096),
            texts: 64,
            text_tokens: None,
            pass_tokens: 8192,
            queue: 1024,
            patience: Duration::ZERO,
            batches_in_flight: 1,
        }
    }

    /// The least budget with which the model stays in memory.
    fn least_resident(runner: &Runner) -> u64 {
        let requested = EngineCapacity::requested(runner, &limits()).unwrap();
        let least = *requested.candidates(runner.blueprint(), false).usable.last().unwrap();
        runner.plan(&least.work()).unwrap().all_resident_bytes
    }

    #[test]
    fn without_a_budget_all_that_is_wished_for_runs_at_once() {
        let folder = folder();
        let (capacity, plan) =
            EngineCapacity::fit(&runner(folder.path(), None), &limits()).unwrap();
        assert_eq!((capacity.sequences, capacity.pass_tokens), (64, 8192));
        assert_eq!(capacity.cache_tokens, capacity.limits().most_cache_tokens());
        assert_eq!(plan.mode, Placement::Resident);
    }

    #[test]
    fn a_budget_reduces_the_cache_and_the_passes_before_the_number_of_sequences() {
        let folder = folder();
        let free = runner(folder.path(), None);
        let (all, whole) = EngineCapacity::fit(&free, &limits()).unwrap();
        let least = least_resident(&free);
        for percent in [90, 50, 30, 15] {
            let budget = least + (whole.peak_bytes - least) * percent / 100;
            let (capacity, plan) =
                EngineCapacity::fit(&runner(folder.path(), Some(budget)), &limits()).unwrap();
            assert!(plan.fits && plan.mode == Placement::Resident, "{percent} %");
            assert!(plan.peak_bytes <= budget, "{percent} %");
            assert_eq!(capacity.sequences, 64, "{percent} %");
            assert!(capacity.limits().fit(1, capacity.context), "one sequence has its full length");
            let reduced = capacity.cache_tokens < all.cache_tokens
                || capacity.activation_tokens < all.activation_tokens;
            assert!(reduced, "{percent} %: {capacity:?}");
        }
    }

    /// What is tried for a model of the tests, with a vocabulary of so many tokens.
    fn tried(vocab: usize, limits: &EngineLimits) -> Candidates {
        let folder = folder();
        let runner = runner(folder.path(), None);
        let mut blueprint = runner.blueprint().clone();
        blueprint.vocab = vocab;
        let requested = EngineCapacity::requested(&runner, limits).unwrap();
        requested.candidates(&blueprint, limits.context.is_none())
    }

    #[test]
    fn passes_become_smaller_before_sequences_and_context_do_and_these_only_so_far() {
        let limits = EngineLimits { context: None, ..limits() };
        for vocab in [256, 8192, 1 << 20] {
            let Candidates { usable, last_resort } = tried(vocab, &limits);
            for (larger, smaller) in usable.iter().zip(&usable[1..]) {
                assert!(smaller.sequences <= larger.sequences && smaller.context <= larger.context);
                let is_whole = smaller.sequences == 64 && smaller.context == larger.context;
                assert!(is_whole || smaller.pass_tokens == GOOD_PASS, "{vocab}: {smaller:?}");
            }
            let last = usable.last().unwrap();
            assert_eq!((last.sequences, last.context), (LEAST_SEQUENCES, LEAST_CONTEXT), "{vocab}");
            assert_eq!(last.cache_tokens, last.limits().least_cache_tokens());
            assert_eq!(last.context_with_more_memory(), Some(usable[0].context));
            let last = last_resort.last().unwrap();
            assert_eq!((last.sequences, last.pass_tokens, last.text_tokens), (1, 16, 16));
        }
        let first_halved = |vocab| {
            let tried = tried(vocab, &limits).usable;
            let changed =
                tried.iter().find(|one| one.sequences < 64 || one.context < tried[0].context);
            changed.unwrap().sequences < 64
        };
        assert!(!first_halved(256), "the logits of few tokens take no memory");
        assert!(first_halved(1 << 20), "those of many take more than keys and values");
    }

    #[test]
    fn a_context_that_was_asked_for_stays_and_texts_become_shorter_with_small_passes_too() {
        let asked = EngineLimits { context: Some(2048), pass_tokens: 256, ..limits() };
        let usable = tried(8192, &asked).usable;
        assert!(usable.iter().all(|one| one.context == 2048));
        let before_sequences = usable.iter().rfind(|one| one.sequences == 64).unwrap();
        assert_eq!((before_sequences.text_tokens, before_sequences.activation_tokens), (256, 256));
        assert_eq!(before_sequences.context_with_more_memory(), None);
    }

    #[test]
    fn issue_17_the_memory_that_a_refusal_asks_for_is_enough() {
        let folder = folder();
        let mut budget = 30 << 20;
        // Other tests of this process take memory meanwhile, which counts: then more is asked for. Advice
        // that is not enough would be given again and again.
        let mut plan = None;
        for _ in 0..10 {
            match EngineCapacity::fit(&runner(folder.path(), Some(budget)), &limits()) {
                Ok((_, fitting)) => {
                    plan = Some(fitting);
                    break;
                }
                Err(EngineError::Model(error)) => {
                    let ModelError::Memory { needed, allowed } = *error else { panic!("{error}") };
                    assert_eq!(allowed, budget, "as the operator gave it");
                    // As the advice has it: whole MiB.
                    let advised = needed.div_ceil(1 << 20) << 20;
                    assert!(advised > budget, "what was advised is refused");
                    budget = advised;
                }
                Err(other) => panic!("{other}"),
            }
        }
        let plan = plan.unwrap();
        assert!(plan.fits);
    }
}
