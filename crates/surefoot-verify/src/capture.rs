//! One pass over all challenges, with every site sketched on the way.
//!
//! The challenges of a batch pass each segment of the model while it is in memory. At a boundary the hidden state is sketched and let go, so a pass needs
//! no more memory for a hundred sites than for one.

use surefoot_models::run::observe::{Boundary, Onward};
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, Model, ModelError, Opened, TokenBatch, Want};
use surefoot_stats::StatsError;
pub use surefoot_stats::capture::{Captures, NextToken, Recorder, TOP};
pub use surefoot_stats::disturbance::Disturbance;

use crate::site::Site;

/// The work of a capture, for plans: what is wanted, and room for the state that is looked at.
pub fn work(opened: &Opened, challenges: usize, tokens: usize) -> Work {
    let want = Want { last_hidden: true, ..want(opened.has_head()) };
    Work { batch: challenges, prompt: tokens, new_tokens: 0, want }
}

fn want(has_head: bool) -> Want {
    let logits = if has_head { Logits::Last } else { Logits::None };
    Want { logits, hidden: false, last_hidden: false }
}

/// Runs `sequences` in batches of `group` and sketches every site. The first of them has the place
/// `first` in its set. `between_groups` is called between two batches.
pub fn capture(
    model: &Model,
    sequences: &[Vec<u32>],
    first: usize,
    bits: usize,
    group: usize,
    disturbance: Disturbance,
    between_groups: impl Fn(),
) -> Result<Captures, ModelError> {
    let mut all = Captures::default();
    let group = group.max(1);
    for (number, some) in sequences.chunks(group).enumerate() {
        if number > 0 {
            between_groups();
        }
        let captures = pass(model, some, first + number * group, bits, disturbance)?;
        all.sites = captures.sites;
        all.sketches.extend(captures.sketches);
        all.next.extend(captures.next);
    }
    Ok(all)
}

fn pass(
    model: &Model,
    sequences: &[Vec<u32>],
    first: usize,
    bits: usize,
    disturbance: Disturbance,
) -> Result<Captures, ModelError> {
    let refused = |error: StatsError| ModelError::Request(error.to_string());
    let batch = TokenBatch::new(sequences, model.blueprint().vocab)?;
    let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
    let mut recorder = Recorder::new(bits, &lengths).map_err(refused)?;
    let mut number = 0_u64;
    let output =
        model.forward_observed(&batch, want(model.has_head()), &mut |boundary, rows| {
            number += 1;
            let each = (rows.numbers.len() / sequences.len()).max(1);
            let mut changed = false;
            for (numbers, challenge) in rows.numbers.chunks_mut(each).zip(first as u64..) {
                changed |= disturbance.apply(numbers, rows.cols, number, challenge);
            }
            recorder.record(site(boundary), &rows.numbers, rows.cols).map_err(refused)?;
            Ok(if changed { Onward::Changed } else { Onward::Same })
        })?;
    if let Some(logits) = &output.logits {
        recorder.record_logits(&logits.numbers, logits.cols).map_err(refused)?;
    }
    Ok(recorder.finish())
}

/// The site behind a boundary between segments of a model.
fn site(boundary: Boundary) -> Site {
    match boundary {
        Boundary::Embeddings => Site::Embeddings,
        Boundary::Block(number) => Site::Block(number),
        Boundary::Norm => Site::Norm,
    }
}
