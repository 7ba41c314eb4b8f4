//! Some samples of a source, and holding out a test set.

use std::sync::Arc;

use super::{Form, Label, Sample, Source};
use crate::random::SeededRandom;

/// The samples of a source that are listed, in that order.
pub struct Subset {
    source: Arc<dyn Source>,
    samples: Vec<usize>,
}

impl Source for Subset {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn form(&self) -> Form {
        self.source.form()
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        self.source.read(self.samples[at])
    }

    fn label(&self, at: usize) -> Option<Label> {
        self.source.label(self.samples[at])
    }

    fn name(&self, at: usize) -> String {
        self.source.name(self.samples[at])
    }
}

/// Holds out a share of the samples, chosen by the seed: those to train on, those to test on.
/// Both keep at least one sample if there are two.
pub fn split(source: Arc<dyn Source>, share: f64, seed: u64) -> (Subset, Subset) {
    let count = source.len();
    let order = SeededRandom::of(&[seed, 0x5911]).permutation(count);
    let test = ((count as f64 * share).round() as usize).clamp(1, count.saturating_sub(1).max(1));
    let (mut test, mut train) =
        (order[..test.min(count)].to_vec(), order[test.min(count)..].to_vec());
    // Neighbours in a file are neighbours here: the order of training is the loader's affair.
    test.sort_unstable();
    train.sort_unstable();
    (Subset { source: Arc::clone(&source), samples: train }, Subset { source, samples: test })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits::digits;

    #[test]
    fn a_split_keeps_every_sample_once_and_depends_on_the_seed_alone() {
        let source: Arc<dyn Source> = Arc::new(digits().unwrap());
        let (train, test) = split(Arc::clone(&source), 0.2, 1);
        assert_eq!((train.len(), test.len()), (1438, 359));
        let mut all: Vec<usize> = train.samples.iter().chain(&test.samples).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..1797).collect::<Vec<_>>());
        assert_eq!(split(Arc::clone(&source), 0.2, 1).1.samples, test.samples);
        assert_ne!(split(source, 0.2, 2).1.samples, test.samples);
    }
}
