//! What one pass of a model over a set of challenges leaves behind: a sketch for each challenge at
//! each site, and the likeliest next tokens.
//!
//! [`Recorder`] turns activations into [`Captures`] as they arrive, site by site, so that no more
//! than one site's activations are in memory. Every model library can feed it: it takes slices.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::StatsError;
use crate::projection::Projector;
use crate::site::Site;
use crate::sketch::{self, Sketch};

/// How many of the likeliest next tokens are kept for each challenge.
pub const TOP: usize = 20;

/// What a pass over all challenges gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Captures {
    /// The sites, by depth.
    pub sites: Vec<Site>,
    /// `[challenge][site]`.
    pub sketches: Vec<Vec<Sketch>>,
    /// The likeliest next tokens of each challenge; empty for a model without a head.
    pub next: Vec<Vec<NextToken>>,
}

/// A token that could come next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextToken {
    /// Its id.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// Sketches the activations of one batch of challenges, site after site.
///
/// ```
/// use surefoot_stats::capture::Recorder;
/// use surefoot_stats::site::Site;
///
/// // Two challenges of 3 and 2 tokens; activations of width 4, padded on the left to 3 rows each.
/// let activations: Vec<f32> = (0..2 * 3 * 4).map(|x| (x as f32).sin()).collect();
/// let mut recorder = Recorder::new(1024, &[3, 2])?;
/// recorder.record(Site::Embeddings, &activations, 4)?;
/// recorder.record_logits(&[0.1, 2.0, 0.3, 1.5, 0.2, 0.0], 3)?;
/// let captures = recorder.finish();
/// assert_eq!(captures.sites, [Site::Embeddings, Site::Head]);
/// assert_eq!(captures.next[0][0].id, 1);
/// # Ok::<_, surefoot_stats::StatsError>(())
/// ```
pub struct Recorder {
    bits: usize,
    lengths: Vec<usize>,
    projectors: BTreeMap<usize, Projector>,
    captures: Captures,
}

impl Recorder {
    /// For sketches of `bits` bits of challenges with `lengths` tokens.
    pub fn new(bits: usize, lengths: &[usize]) -> Result<Self, StatsError> {
        sketch::check_bits(bits)?;
        let captures =
            Captures { sketches: vec![Vec::new(); lengths.len()], ..Captures::default() };
        Ok(Self { bits, lengths: lengths.to_vec(), projectors: BTreeMap::new(), captures })
    }

    /// Sketches the activations at `site`: `[challenge][row][column]`, the same number of rows for
    /// every challenge. Shorter challenges are padded on the left, and padding is not sketched.
    /// Where there is only one row for each challenge, it is that of the last token.
    pub fn record(
        &mut self,
        site: Site,
        numbers: &[f32],
        columns: usize,
    ) -> Result<(), StatsError> {
        let (bits, count) = (self.bits, self.lengths.len());
        let rows = numbers.len() / columns.max(1) / count.max(1);
        if rows == 0 || rows * columns * count != numbers.len() {
            return Err(StatsError::request(format!(
                "{} numbers at {site} are not whole rows of {columns} for each of {count} \
                 challenges",
                numbers.len()
            )));
        }
        let projector =
            self.projectors.entry(columns).or_insert_with(|| Projector::new(bits, columns, rows));
        let sketch = |(number, length): (usize, &usize)| {
            let real = (*length).min(rows);
            let (from, to) = ((number + 1) * rows - real, (number + 1) * rows);
            Sketch::of(&numbers[from * columns..to * columns], projector).ok_or_else(|| {
                StatsError::incomparable(format!(
                    "challenge {number} gives numbers that are not finite at {site}: such a model \
                     cannot be compared"
                ))
            })
        };
        let found: Vec<Sketch> =
            self.lengths.par_iter().enumerate().map(sketch).collect::<Result<_, _>>()?;
        self.captures.sites.push(site);
        let all = self.captures.sketches.iter_mut().zip(found);
        all.for_each(|(of_challenge, sketch)| of_challenge.push(sketch));
        Ok(())
    }

    /// Sketches the logits of each challenge's last token as [`Site::Head`] and keeps the
    /// likeliest next tokens: `[challenge][token]`.
    pub fn record_logits(&mut self, logits: &[f32], vocab: usize) -> Result<(), StatsError> {
        self.record(Site::Head, logits, vocab)?;
        self.captures.next = logits.chunks_exact(vocab).map(likeliest).collect();
        Ok(())
    }

    /// All that was recorded.
    pub fn finish(self) -> Captures {
        self.captures
    }
}

/// The likeliest tokens with their log-probabilities, the likeliest first.
pub fn likeliest(logits: &[f32]) -> Vec<NextToken> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    let log_total = f64::from(largest) + total.ln();
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

    #[test]
    fn padding_on_the_left_does_not_change_a_sketch() {
        let row = |seed: f32| (0..8).map(|x| (x as f32 * seed).sin()).collect::<Vec<f32>>();
        let record = |padding: f32| {
            let mut recorder = Recorder::new(1024, &[2, 1]).unwrap();
            let numbers = [row(0.3), row(0.7), vec![padding; 8], row(1.1)].concat();
            recorder.record(Site::Block(0), &numbers, 8).unwrap();
            recorder.finish()
        };
        assert_eq!(record(0.0), record(5.0));
    }

    #[test]
    fn numbers_that_are_not_whole_rows_or_not_finite_are_refused() {
        let mut recorder = Recorder::new(1024, &[1, 1]).unwrap();
        assert!(recorder.record(Site::Norm, &[1.0; 7], 4).is_err());
        assert!(recorder.record(Site::Norm, &[], 4).is_err());
        assert!(recorder.record(Site::Norm, &[f32::NAN; 8], 4).is_err());
        assert!(recorder.finish().sites.is_empty());
        assert!(Recorder::new(1000, &[1]).is_err());
    }
}
