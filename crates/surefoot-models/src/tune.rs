//! Runs a model in the shapes that it will be run in, so that kernels are compiled and, in builds with `autotune`, tuned before anyone waits for
//! them. What a shape compiled stays on disk, so tuning that was interrupted goes on where it was.

use std::ops::ControlFlow;
use std::time::Instant;

use serde::Serialize;

use crate::error::ModelError;
use crate::generate::sample::Sampling;
use crate::generate::tokens::{Request, WANT};
use crate::run::batch::TokenBatch;
use crate::run::output::{Logits, Want};
use crate::runner::{RunRequest, Runner};
use crate::stream::needs::Work;

/// Tokens behind each prompt: enough for a decoding step to be recorded and repeated.
const NEW_TOKENS: usize = 8;
/// Tokens of the shortest prompt.
const SHORTEST: usize = 16;

/// Sequences and tokens that are run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens that are generated behind each; 0 where a model gives none.
    pub new_tokens: usize,
}

/// How long a shape took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// What was run.
    #[serde(flatten)]
    pub shape: Shape,
    /// Seconds the first time, without loading the model.
    pub first_seconds: f64,
    /// Seconds the second time.
    pub next_seconds: f64,
}

/// Prompts of doubling lengths up to `prompt_tokens`, and doubling numbers of sequences up to `sequences`, each as far as the model takes them.
pub fn shapes(runner: &Runner, prompt_tokens: usize, sequences: usize) -> Vec<Shape> {
    let new_tokens = if runner.opened().has_head() { NEW_TOKENS } else { 0 };
    let positions = runner.blueprint().max_positions.saturating_sub(new_tokens).max(1);
    let longest = prompt_tokens.clamp(1, positions);
    let doubling = |from: usize, to: usize| {
        let below = std::iter::successors(Some(from), |size| Some(2 * size));
        below.take_while(move |size| *size < to).chain([to])
    };
    let alone = doubling(SHORTEST, longest).map(|prompt_tokens| Shape {
        sequences: 1,
        prompt_tokens,
        new_tokens,
    });
    let together = doubling(2, sequences).filter(|_| sequences > 1).map(|sequences| Shape {
        sequences,
        prompt_tokens: SHORTEST.min(longest),
        new_tokens,
    });
    alone.chain(together).collect()
}

/// Runs each shape twice and tells how long it took.
pub fn tune(
    runner: &Runner,
    shapes: &[Shape],
    mut tell: impl FnMut(&Tuned),
) -> Result<Vec<Tuned>, ModelError> {
    let mut all = Vec::with_capacity(shapes.len());
    for &shape in shapes {
        let first_seconds = seconds(runner, shape, 0)?;
        let next_seconds = seconds(runner, shape, 0)?;
        // Requests seldom have as many tokens as a pass takes: others have kernels that know of padding.
        if shape.prompt_tokens > 1 {
            seconds(runner, shape, 1)?;
        }
        let tuned = Tuned { shape, first_seconds, next_seconds };
        tell(&tuned);
        all.push(tuned);
    }
    Ok(all)
}

/// Seconds of one run of a shape, whose first and every other prompt after it has so many tokens less.
fn seconds(runner: &Runner, shape: Shape, less: usize) -> Result<f64, ModelError> {
    let Shape { sequences, prompt_tokens, new_tokens } = shape;
    let vocab = runner.blueprint().vocab;
    let prompt = |number: usize| -> Vec<u32> {
        let tokens = if number.is_multiple_of(2) { prompt_tokens - less } else { prompt_tokens };
        (0..tokens).map(|at| ((at * 31 + number * 17 + 1) % vocab) as u32).collect()
    };
    let prompts: Vec<Vec<u32>> = (0..sequences).map(prompt).collect();
    let encoded = Want { logits: Logits::None, hidden: false, last_hidden: true };
    let want = if new_tokens > 0 { WANT } else { encoded };
    let work = Work { batch: sequences, prompt: prompt_tokens, new_tokens, want };
    let begun = Instant::now();
    let outcome = runner.run(&RunRequest::new("tune", work), |attempt| {
        if new_tokens == 0 {
            let batch = TokenBatch::new(&prompts, vocab)?;
            return attempt.model().forward(&batch, want).map(drop);
        }
        let request = Request {
            prompts: prompts.clone(),
            max_tokens: new_tokens,
            ends: Vec::new(),
            sampling: Sampling::GREEDY,
        };
        attempt.model().generate(&request, |_, _| ControlFlow::Continue(())).map(drop)
    })?;
    Ok((begun.elapsed().saturating_sub(outcome.load_time)).as_secs_f64())
}
