//! What batches are made of, and which samples form which batch.

use std::sync::Arc;

use surefoot::{Fault, FaultKind};

use crate::batch::HostBatch;
use crate::config::OnBadSample;
use crate::data::{Form, Sample, Source, Transform, read_caught};
use crate::random::SeededRandom;

/// What batches are made of.
#[derive(Clone)]
pub struct Recipe {
    /// The samples.
    pub source: Arc<dyn Source>,
    /// What is done to each.
    pub transform: Arc<Transform>,
    /// What a bad one does.
    pub on_bad_sample: OnBadSample,
    /// The seed of random augmentation; none for testing.
    pub seed: Option<u64>,
    /// How much each class counts in the loss; all the same if none.
    pub class_weights: Option<Arc<Vec<f32>>>,
}

impl Recipe {
    /// Makes one batch of these samples.
    pub fn make(&self, samples: &[usize], epoch: u64) -> Result<HostBatch, Fault> {
        let mut batch = HostBatch::new(self.source.form(), samples.len());
        batch.weigh_classes(self.class_weights.clone());
        for &at in samples {
            let outcome = self.sample(at, epoch).and_then(|sample| batch.push(sample));
            if let (Ok(()), Some(seed), Form::Sequences { .. }) =
                (&outcome, self.seed, batch.form())
            {
                batch.seed_last(SeededRandom::of(&[seed, 0xd209, epoch, at as u64]).number());
            }
            if let Err(why) = outcome {
                let bad = format!("{}: {why}", self.source.name(at));
                match self.on_bad_sample {
                    OnBadSample::Skip => batch.skipped.push(bad),
                    OnBadSample::Fail => {
                        return Err(Fault::new(FaultKind::DataLoading, "load", bad)
                            .advise("mend it, or set `on_bad_sample: skip` under `data`"));
                    }
                }
            }
        }
        Ok(batch)
    }

    fn sample(&self, at: usize, epoch: u64) -> Result<Sample, String> {
        let mut sample = read_caught(&*self.source, at)?;
        if let Sample::Dense { values, label } = &mut sample {
            *label = self.transform.apply_to_label(*label);
            if values.len() != self.source.form().size() {
                return Err(format!("it has {} numbers", values.len()));
            }
            let random = self
                .seed
                .filter(|_| self.transform.is_random())
                .map(|seed| SeededRandom::of(&[seed, epoch, at as u64]));
            self.transform.apply(values, random);
        }
        Ok(sample)
    }
}

/// The samples of each batch of an epoch, shuffled by the seed, or in order without one.
pub fn plan(samples: usize, batch: usize, seed: Option<u64>, epoch: u64) -> Vec<Vec<usize>> {
    let order = match seed {
        Some(seed) => SeededRandom::of(&[seed, 0x0de2, epoch]).permutation(samples),
        None => (0..samples).collect(),
    };
    order.chunks(batch.max(1)).map(<[usize]>::to_vec).collect()
}
