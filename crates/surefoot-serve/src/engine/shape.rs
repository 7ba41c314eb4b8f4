//! How much runs at once: what was wished for, cut down to what the memory holds.

use std::time::Duration;

use surefoot_models::generate::session::Limits;
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::{Placement, Plan};
use surefoot_models::{Logits, Opened, Want};

use super::error::EngineError;

/// Kept for connections, requests and answers.
const HTTP_BYTES: u64 = 24 << 20;

/// The tokens of a sequence unless more are wished for: models are made for a hundred thousand,
/// and a cache for that leaves no room for others.
const USUAL_CONTEXT: usize = 4096;

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
    /// Texts that are embedded at once.
    pub texts: usize,
    /// Tokens of one text.
    pub text_tokens: usize,
    /// Tokens that go through the model in one pass, if more than one sequence does.
    pub pass_tokens: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// How long a text may wait for others.
    pub patience: Duration,
    /// Batches of texts that run at once.
    pub batches_in_flight: usize,
    decodes: bool,
}

impl Shape {
    /// The largest shape within the wish whose weights stay in memory; if there is none, the
    /// largest that fits with weights that stream.
    pub fn fit(
        opened: &Opened,
        wish: &Wish,
        budget: Option<u64>,
    ) -> Result<(Self, Plan), EngineError> {
        let positions = opened.blueprint.max_positions;
        let context = wish.context.unwrap_or(USUAL_CONTEXT).clamp(1, positions.max(1));
        let text_tokens = wish.text_tokens.map_or(context, |most| most.min(context));
        let mut shape = Self {
            sequences: wish.sequences.max(1),
            context,
            texts: wish.texts.max(1),
            text_tokens,
            pass_tokens: wish.pass_tokens.max(1),
            queue: wish.queue.max(1),
            patience: wish.patience,
            batches_in_flight: wish.batches_in_flight.max(1),
            decodes: opened.has_head() && opened.blueprint.causal,
        };
        let mut streamed = None;
        loop {
            let plan = shape.plan(opened, budget);
            if plan.fits && plan.mode == Placement::Resident {
                return Ok((shape, plan));
            }
            if plan.fits {
                streamed.get_or_insert((shape, plan));
            } else if shape.is_least() {
                return match streamed {
                    Some(found) => Ok(found),
                    None => Err(plan.checked().err().map_or_else(
                        || EngineError::Request("the model does not fit".to_owned()),
                        EngineError::from,
                    )),
                };
            }
            if shape.is_least() {
                return streamed.ok_or_else(|| {
                    EngineError::Request("the model does not fit the memory".to_owned())
                });
            }
            shape.halve();
        }
    }

    fn is_least(&self) -> bool {
        self.sequences == 1 && self.texts == 1 && self.pass_tokens == 1
    }

    fn halve(&mut self) {
        for count in [&mut self.sequences, &mut self.texts, &mut self.pass_tokens] {
            *count = count.div_ceil(2);
        }
    }

    /// What a decoding session may hold.
    pub(crate) fn limits(&self) -> Limits {
        Limits { rows: self.sequences, positions: self.context }
    }

    /// Plans for all that can run at the same time: a pass over prompts while sequences are
    /// decoded, and the batches of texts.
    pub(crate) fn plan(&self, opened: &Opened, budget: Option<u64>) -> Plan {
        let budget = budget.map(|budget| budget.saturating_sub(HTTP_BYTES));
        opened.plan_here(&self.work(), budget)
    }

    pub(crate) fn work(&self) -> Work {
        let pass = |longest: usize| self.pass_tokens.max(longest);
        let texts = self.batches_in_flight * pass(self.text_tokens);
        let states = Want { logits: Logits::None, hidden: false, last_hidden: true };
        if !self.decodes {
            return Work { batch: 1, prompt: texts, new_tokens: 0, want: states };
        }
        let rows = texts + pass(self.context);
        let prompt = rows.div_ceil(self.sequences);
        // The cache, and the keys and values of a prompt that has not joined yet.
        let columns = self.limits().columns() + pass(self.context).div_ceil(self.sequences);
        Work {
            batch: self.sequences,
            prompt,
            new_tokens: columns.saturating_sub(prompt).max(1),
            want: Want { logits: Logits::Last, ..states },
        }
    }
}
