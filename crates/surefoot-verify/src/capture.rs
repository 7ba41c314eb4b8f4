//! One pass over all challenges, with every site sketched on the way.
//!
//! All challenges are in one batch: they pass each segment of the model while it is in memory,
//! and none is run twice. At a boundary the hidden state is sketched and let go, so a pass needs
//! no more memory for a hundred sites than for one.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use surefoot_models::run::observe::Onward;
use surefoot_models::stream::needs::Work;
use surefoot_models::{Batch, Logits, Model, ModelError, Opened, Rows, Want};

use crate::projection::Projector;
use crate::seed::{self, Stream};
use crate::site::Site;
use crate::sketch::Sketch;

/// Log-probabilities that are kept of the last token, for what only shows its answers.
pub const TOP: usize = 20;

/// What a pass saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Captures {
    /// The sites, by depth.
    pub sites: Vec<Site>,
    /// `[challenge][site]`.
    pub sketches: Vec<Vec<Sketch>>,
    /// The likeliest next tokens of each challenge; none for a model without a head.
    pub next: Vec<Vec<NextToken>>,
}

/// A token that could come next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextToken {
    /// Its id.
    pub id: u32,
    /// The logarithm of its probability.
    pub logprob: f32,
}

/// A disturbance at every boundary, to learn what noise does to a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    /// None.
    None,
    /// Every number moves by this share of its own size, or of its row's scale if that is larger,
    /// as other orders of summation move it.
    Jitter {
        /// The share.
        share: f32,
        /// Which way each number moves.
        seed: u64,
    },
    /// Every number is rounded to bf16: to the nearest with the seed 0, else up or down by chance.
    Bf16 {
        /// The chance.
        seed: u64,
    },
}

/// The work of a capture, for plans: what is wanted, and room for the state that is looked at.
pub fn work(opened: &Opened, challenges: usize, tokens: usize) -> Work {
    let want = Want { last_hidden: true, ..want(opened.has_head()) };
    Work { batch: challenges, prompt: tokens, new_tokens: 0, want }
}

fn want(has_head: bool) -> Want {
    let logits = if has_head { Logits::Last } else { Logits::None };
    Want { logits, hidden: false, last_hidden: false }
}

/// Runs `sequences` in batches of `group` and sketches every site.
pub fn capture(
    model: &Model,
    sequences: &[Vec<u32>],
    bits: usize,
    group: usize,
    disturbance: Disturbance,
) -> Result<Captures, ModelError> {
    let mut all = Captures { sites: Vec::new(), sketches: Vec::new(), next: Vec::new() };
    for some in sequences.chunks(group.max(1)) {
        let captures = pass(model, some, bits, disturbance)?;
        all.sites = captures.sites;
        all.sketches.extend(captures.sketches);
        all.next.extend(captures.next);
    }
    Ok(all)
}

fn pass(
    model: &Model,
    sequences: &[Vec<u32>],
    bits: usize,
    disturbance: Disturbance,
) -> Result<Captures, ModelError> {
    let batch = Batch::new(sequences, model.blueprint().vocab)?;
    let mut projectors = BTreeMap::new();
    let mut sites = Vec::new();
    let mut sketches = vec![Vec::new(); sequences.len()];
    let mut see = |site: Site, rows: &Rows| -> Result<(), ModelError> {
        let found = sketch_all(site, rows, sequences, bits, &mut projectors)?;
        sites.push(site);
        sketches.iter_mut().zip(found).for_each(|(all, sketch)| all.push(sketch));
        Ok(())
    };
    let want = want(model.has_head());
    let mut number = 0_u64;
    let output = model.forward_observed(&batch, want, &mut |boundary, rows| {
        number += 1;
        let onward = disturb(rows, disturbance, number);
        see(boundary.into(), rows)?;
        Ok(onward)
    })?;
    let mut next = Vec::new();
    if let Some(logits) = &output.logits {
        see(Site::Head, logits)?;
        next = logits.numbers.chunks_exact(logits.cols).map(likeliest).collect();
    }
    Ok(Captures { sites, sketches, next })
}

/// One sketch for each sequence, from the rows that are not padding.
fn sketch_all(
    site: Site,
    rows: &Rows,
    sequences: &[Vec<u32>],
    bits: usize,
    projectors: &mut BTreeMap<usize, Projector>,
) -> Result<Vec<Sketch>, ModelError> {
    let width = rows.numbers.len() / rows.cols / sequences.len();
    let projector =
        projectors.entry(rows.cols).or_insert_with(|| Projector::new(bits, rows.cols, width));
    let sketch = |(number, ids): (usize, &Vec<u32>)| {
        // Padding comes first. Where only the last token was computed, that one is left.
        let real = ids.len().min(width);
        let (from, to) = ((number + 1) * width - real, (number + 1) * width);
        Sketch::of(&rows.numbers[from * rows.cols..to * rows.cols], projector).ok_or_else(|| {
            ModelError::Request(format!(
                "challenge {number} gives numbers that are not finite at {site}: such a model \
                 can't be compared"
            ))
        })
    };
    sequences.par_iter().enumerate().map(sketch).collect()
}

fn disturb(rows: &mut Rows, disturbance: Disturbance, number: u64) -> Onward {
    let stream = |seed: u64| {
        let key = seed::public_key("surefoot disturbances");
        Stream::new(&key, &[&seed.to_le_bytes(), &number.to_le_bytes()])
    };
    match disturbance {
        Disturbance::None => return Onward::Same,
        Disturbance::Bf16 { seed: 0 } => rows.numbers.iter_mut().for_each(|x| {
            *x = half::bf16::from_f32(*x).to_f32();
        }),
        Disturbance::Bf16 { seed } => {
            let mut stream = stream(seed);
            for numbers in rows.numbers.chunks_mut(4) {
                let chance = stream.next();
                for (at, x) in numbers.iter_mut().enumerate() {
                    // The sixteen bits that go are added to as many of chance: what carries over
                    // rounds up.
                    let dither = (chance >> (16 * at)) as u32 & 0xffff;
                    *x = f32::from_bits(x.to_bits().wrapping_add(dither) & 0xffff_0000);
                }
            }
        }
        Disturbance::Jitter { share, seed } => {
            let mut stream = stream(seed);
            for row in rows.numbers.chunks_exact_mut(rows.cols) {
                let root = row.iter().map(|x| x.abs().sqrt()).sum::<f32>() / row.len() as f32;
                let scale = root * root;
                let signs = stream.signs(row.len());
                let step = |x: f32| share * x.abs().max(scale);
                row.iter_mut().zip(signs).for_each(|(x, sign)| *x += sign * step(*x));
            }
        }
    }
    Onward::Changed
}

/// The likeliest tokens with their log-probabilities, the likeliest first.
fn likeliest(logits: &[f32]) -> Vec<NextToken> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    let log_total = f64::from(most) + total.ln();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let count = TOP.min(ids.len());
    if count < ids.len() {
        ids.select_nth_unstable_by(count - 1, by_logit);
        ids.truncate(count);
    }
    ids.sort_unstable_by(by_logit);
    ids.into_iter()
        .map(|id| NextToken { id, logprob: (f64::from(logits[id as usize]) - log_total) as f32 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_tokens_come_first_and_their_probabilities_add_up() {
        let logits: Vec<f32> = (0..50).map(|x| ((x * 7) % 50) as f32 / 5.0).collect();
        let next = likeliest(&logits);
        assert_eq!(next.len(), TOP);
        assert!(next.is_sorted_by(|a, b| a.logprob > b.logprob));
        assert_eq!(next[0].id, 7);
        let few = likeliest(&logits[..3]);
        let total: f32 = few.iter().map(|token| token.logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-5);
    }
}
