//! How much runs at once: what the operator asked for, reduced to what the memory holds.
//!
//! Memory goes to the weights, to the passes that run at the same time (activations), and to the
//! cache of keys and values. The cache is not planned for the worst case, all sequences at their
//! full length: it gets what is left, at least enough for one sequence of full length, and
//! sequences take their part of it as they grow. When it is full the latest of them wait
//! ([`decoder`](super::decoder)).

use std::time::Duration;

use surefoot_models::generate::session::Limits;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::{Placement, Plan};
use surefoot_models::{Logits, ModelError, Opened, Want};

use super::error::EngineError;

/// Kept for connections, requests and answers.
const HTTP_BYTES: u64 = 24 << 20;

/// The tokens of a sequence unless more are asked for: models are made for a hundred thousand,
/// and a cache for that leaves no room for others.
const USUAL_CONTEXT: usize = 4096;

/// A pass of so many tokens uses a device well: smaller ones only make room if nothing else does.
const GOOD_PASS: usize = 256;
/// The smallest pass.
const LEAST_PASS: usize = 16;

/// What to run at once, at most.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
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
pub struct Shape {
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
    decodes: bool,
}

impl Shape {
    /// The best shape within the wish whose weights stay in memory; if there is none, one that
    /// fits with weights that stream.
    pub fn fit(
        opened: &Opened,
        wish: &Wish,
        budget: Option<u64>,
    ) -> Result<(Self, Plan), EngineError> {
        let candidates = Self::wished(opened, wish).candidates();
        let mut best: Option<(Self, Plan)> = None;
        for shape in &candidates {
            let Some((shape, plan)) = shape.with_largest_cache(opened, budget) else { continue };
            let enough = shape.cache_tokens >= shape.limits().most_cache_tokens() / 2;
            let better = best.as_ref().is_none_or(|(best, _)| {
                shape.sequences == best.sequences
                    && shape.pass_tokens >= GOOD_PASS
                    && shape.cache_tokens > best.cache_tokens
            });
            if better {
                best = Some((shape, plan));
            }
            if enough {
                break;
            }
        }
        if let Some(found) = best {
            return Ok(found);
        }
        let streamed = candidates.iter().find_map(|shape| {
            let shape = Self { cache_tokens: shape.limits().least_cache_tokens(), ..*shape };
            let plan = shape.plan(opened, budget);
            plan.fits.then_some((shape, plan))
        });
        streamed.ok_or_else(|| {
            let least = candidates.last().map(|least| least.plan(opened, budget).checked());
            match least {
                Some(Err(ModelError::Memory { needed, allowed })) => {
                    // What the operator gives is for requests as well.
                    EngineError::from(ModelError::Memory {
                        needed: needed + HTTP_BYTES,
                        allowed: allowed + HTTP_BYTES,
                    })
                }
                Some(Err(error)) => error.into(),
                _ => EngineError::Request("the model does not fit the memory".to_owned()),
            }
        })
    }

    /// All that was wished for.
    fn wished(opened: &Opened, wish: &Wish) -> Self {
        let positions = opened.blueprint.max_positions;
        let context = wish.context.unwrap_or(USUAL_CONTEXT).clamp(1, positions.max(1));
        let mut shape = Self {
            sequences: wish.sequences.max(1),
            context,
            cache_tokens: 0,
            texts: wish.texts.max(1),
            text_tokens: wish.text_tokens.map_or(context, |most| most.min(context)),
            pass_tokens: wish.pass_tokens.max(1),
            activation_tokens: 0,
            queue: wish.queue.max(1),
            patience: wish.patience,
            batches_in_flight: wish.batches_in_flight.max(1),
            decodes: opened.has_head() && opened.blueprint.causal,
        };
        shape.cache_tokens = shape.limits().least_cache_tokens();
        let texts = shape.batches_in_flight * shape.one_pass();
        shape.activation_tokens = texts + if shape.decodes { shape.pass_tokens } else { 0 };
        shape
    }

    /// The tokens of the largest single pass.
    fn one_pass(&self) -> usize {
        self.pass_tokens.max(self.text_tokens)
    }

    /// Shapes that take less and less memory: passes that take turns, smaller passes, fewer
    /// sequences, and very small passes.
    fn candidates(self) -> Vec<Self> {
        let mut all = vec![self];
        let mut shape = Self { activation_tokens: self.one_pass(), ..self };
        all.push(shape);
        while shape.pass_tokens > GOOD_PASS {
            shape.halve_passes(GOOD_PASS);
            all.push(shape);
        }
        while shape.decodes && shape.sequences > 1 {
            shape.sequences = shape.sequences.div_ceil(2);
            all.push(shape);
        }
        while shape.pass_tokens > LEAST_PASS {
            shape.halve_passes(LEAST_PASS);
            all.push(shape);
        }
        all
    }

    fn halve_passes(&mut self, least: usize) {
        self.pass_tokens = (self.pass_tokens / 2).max(least);
        if self.decodes {
            // A text is one pass, and this model is mostly there to generate.
            self.text_tokens = self.text_tokens.min(self.pass_tokens);
        }
        self.activation_tokens = self.one_pass();
    }

    /// With the largest cache with which all weights stay in memory, if there is one.
    fn with_largest_cache(self, opened: &Opened, budget: Option<u64>) -> Option<(Self, Plan)> {
        let planned = |cache_tokens| {
            let shape = Self { cache_tokens, ..self };
            let plan = shape.plan(opened, budget);
            (plan.fits && plan.mode == Placement::Resident).then_some((shape, plan))
        };
        let limits = self.limits();
        let (mut fits, mut too_much) = (limits.least_cache_tokens(), limits.most_cache_tokens());
        if !self.decodes {
            return planned(fits);
        }
        if let Some(all) = planned(too_much) {
            return Some(all);
        }
        let mut best = planned(fits)?;
        // Within a hundredth: plans are steps of some MiB anyway.
        while too_much - fits > (fits / 100).max(1) {
            let between = fits.midpoint(too_much);
            match planned(between) {
                Some(found) => (best, fits) = (found, between),
                None => too_much = between,
            }
        }
        Some(best)
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

    /// Plans for all that can be in memory at the same time.
    pub(crate) fn plan(&self, opened: &Opened, budget: Option<u64>) -> Plan {
        let budget = budget.map(|budget| budget.saturating_sub(HTTP_BYTES));
        opened.plan_here(&self.work(opened.blueprint.blocks.len()), budget)
    }

    /// The work of `layers` layers.
    pub(crate) fn work(&self, layers: usize) -> Work {
        let states = Want { logits: Logits::None, hidden: false, last_hidden: true };
        if !self.decodes {
            return Work { batch: 1, prompt: self.activation_tokens, new_tokens: 0, want: states };
        }
        let prompt = self.activation_tokens.div_ceil(self.sequences);
        // The keys and values of prompts that have not joined yet.
        let joining = self.pass_tokens.max(self.context);
        // When the cache is moved, or taken over from those that join, one layer is there twice.
        let moved = (self.cache_tokens + joining).div_ceil(layers.max(1));
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
    use super::*;
    use testkit::model_folders::{self, Dtype};

    /// A model of 16 MiB.
    fn opened() -> (tempfile::TempDir, Opened) {
        let folder = tempfile::tempdir().unwrap();
        model_folders::llama(folder.path(), 16 << 20, Dtype::Bf16);
        let opened = Opened::new(folder.path()).unwrap();
        (folder, opened)
    }

    fn wish() -> Wish {
        Wish {
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
    fn least_resident(opened: &Opened) -> u64 {
        let least = Shape::wished(opened, &wish()).candidates().pop().unwrap();
        least.plan(opened, None).all_resident_bytes + HTTP_BYTES
    }

    #[test]
    fn without_a_budget_all_that_is_wished_for_runs_at_once() {
        let (_folder, opened) = opened();
        let (shape, plan) = Shape::fit(&opened, &wish(), None).unwrap();
        assert_eq!((shape.sequences, shape.pass_tokens), (64, 8192));
        assert_eq!(shape.cache_tokens, shape.limits().most_cache_tokens());
        assert_eq!(plan.mode, Placement::Resident);
    }

    #[test]
    fn a_budget_reduces_the_cache_and_the_passes_before_the_number_of_sequences() {
        let (_folder, opened) = opened();
        let (all, whole) = Shape::fit(&opened, &wish(), None).unwrap();
        let least = least_resident(&opened);
        for percent in [90, 50, 30, 15] {
            let budget = least + (whole.peak_bytes + HTTP_BYTES - least) * percent / 100;
            let (shape, plan) = Shape::fit(&opened, &wish(), Some(budget)).unwrap();
            assert!(plan.fits && plan.mode == Placement::Resident, "{percent} %");
            assert!(plan.peak_bytes + HTTP_BYTES <= budget, "{percent} %");
            assert_eq!(shape.sequences, 64, "{percent} %");
            assert!(shape.limits().fit(1, shape.context), "one sequence has its full length");
            let reduced = shape.cache_tokens < all.cache_tokens
                || shape.activation_tokens < all.activation_tokens;
            assert!(reduced, "{percent} %: {shape:?}");
        }
    }

    #[test]
    fn issue_17_the_memory_that_a_refusal_asks_for_is_enough() {
        let (_folder, opened) = opened();
        let refused = Shape::fit(&opened, &wish(), Some(30 << 20)).unwrap_err();
        let EngineError::Model(error) = &refused else { panic!("{refused}") };
        let ModelError::Memory { needed, allowed } = **error else { panic!("{refused}") };
        assert_eq!(allowed, 30 << 20, "as the operator gave it");
        // As the advice has it: whole MiB.
        let advised = needed.div_ceil(1 << 20) << 20;
        let (_, plan) = Shape::fit(&opened, &wish(), Some(advised)).unwrap();
        assert!(plan.fits);
    }
}
