//! How much memory a piece of work needs besides the weight matrices: upper bounds, so that a budget holds.

use serde::Serialize;

use crate::arch::blueprint::Blueprint;
use crate::run::attention::MAX_SCORES;
use crate::run::output::{Logits, Want};
use crate::weights::binding::Binding;
use crate::weights::format::Format;

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Sequences at once.
    pub batch: usize,
    /// Tokens of the longest sequence.
    pub prompt: usize,
    /// Tokens to be generated behind it; 0 for a forward pass only.
    pub new_tokens: usize,
    /// What is kept of a pass.
    pub want: Want,
}

impl Work {
    /// Whether memory that was planned for this work is enough for `other`.
    pub fn covers(&self, other: &Self) -> bool {
        let wants = |logits: Logits| match logits {
            Logits::None => 0,
            Logits::Last => 1,
            Logits::All => 2,
        };
        other.batch <= self.batch
            && other.prompt <= self.prompt
            && other.new_tokens <= self.new_tokens
            && wants(other.want.logits) <= wants(self.want.logits)
            && (!other.want.hidden || self.want.hidden)
            && (!other.want.last_hidden || self.want.last_hidden || self.want.hidden)
    }
}

/// Bytes, by what they are for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Needs {
    /// The process as it stands, and what it grows by once it computes.
    pub baseline_bytes: u64,
    /// Norms and biases.
    pub vector_bytes: u64,
    /// Keys and values.
    pub kv_cache_bytes: u64,
    /// Intermediate results, logits and hidden states.
    pub activation_bytes: u64,
}

/// Code, thread stacks and the allocator's reserves that are touched only once work begins,
/// and the pages of a file that are being read or converted.
const WARMING: u64 = 14 << 20;
/// With a driver there are kernels as well, and the compiler that makes them: lavapipe, which
/// compiles in this process and keeps what it made, was seen to take 160 MiB.
const WARMING_A_DRIVER: u64 = 256 << 20;
/// What a driver in the process adds to that.
pub(super) const DRIVER_BYTES: u64 = WARMING_A_DRIVER - WARMING;

impl Needs {
    pub(crate) fn new(
        blueprint: &Blueprint,
        binding: &Binding,
        format: &Format,
        baseline: u64,
        work: &Work,
    ) -> Self {
        let kv_cache = if work.new_tokens > 0 {
            let positions = work.batch * (work.prompt + work.new_tokens);
            let of_position = 2 * blueprint.kv_heads * blueprint.head_dim * 4;
            (blueprint.blocks.len() * of_position) as u64 * positions as u64
        } else {
            0
        };
        Self {
            baseline_bytes: working(baseline, format),
            vector_bytes: binding.vector_bytes,
            kv_cache_bytes: kv_cache,
            activation_bytes: activations(blueprint, work) + dequantized(binding, format),
        }
    }

    /// What the device's memory holds beside matrices, if it has memory of its own.
    pub(crate) fn on_device(&self) -> u64 {
        self.vector_bytes + self.kv_cache_bytes + self.activation_bytes
    }

    pub(crate) fn total(&self) -> u64 {
        self.baseline_bytes + self.vector_bytes + self.kv_cache_bytes + self.activation_bytes
    }
}

/// What a process of `baseline` bytes holds once it works. In steps, so that commands that differ
/// by little come to the same plan.
fn working(baseline: u64, format: &Format) -> u64 {
    const STEP: u64 = 4 << 20;
    let warming = if format.is_on_host() { WARMING } else { WARMING_A_DRIVER };
    baseline.div_ceil(STEP) * STEP + warming
}

/// Where weights are dequantised a part at a time: the largest part, and the one before it, which may still be in use.
fn dequantized(binding: &Binding, format: &Format) -> u64 {
    2 * binding.matrices.iter().map(|matrix| format.dequantized_bytes(matrix)).max().unwrap_or(0)
}

fn activations(blueprint: &Blueprint, work: &Work) -> u64 {
    let wide = |count: usize| count as u64;
    let rows = wide(work.batch) * wide(work.prompt);
    let hidden = wide(blueprint.hidden);
    let attention = wide((blueprint.heads + 2 * blueprint.kv_heads) * blueprint.head_dim);
    // The widest moments: rotation holds queries, keys and values about five times over, the
    // feed-forward its inner state about six times, beside the residual and its norm. Kernels of a device may hold as many
    // scores as the feed-forward's six states have numbers (`decode_block.rs`).
    let within = rows * (6 * hidden + (5 * attention).max(6 * wide(blueprint.inner())));
    let keys = wide(work.prompt + work.new_tokens);
    // Runs of queries keep them below the limit, but a run has at least one query.
    let one_query = wide(blueprint.heads) * wide(work.batch) * keys;
    let scores = (one_query * wide(work.prompt)).min(one_query.max(MAX_SCORES as u64));
    let logits = match work.want.logits {
        Logits::None => 0,
        Logits::Last => 3 * wide(work.batch) * wide(blueprint.vocab),
        Logits::All => 3 * rows * wide(blueprint.vocab),
    };
    let states = if work.want.hidden { wide(blueprint.blocks.len()) + 1 } else { 0 };
    let kept = rows * hidden * (states + 2 * u64::from(work.want.last_hidden || work.want.hidden));
    // The allocator keeps some of what was freed.
    let numbers = (within + 4 * scores) * 5 / 4 + logits + kept;
    4 * numbers
}
