//! What batches are made of, and which samples form which batch.

use std::sync::Arc;

use surefoot::{Fault, FaultKind};

use crate::batch::HostBatch;
use crate::chance::Chance;
use crate::config::OnBadSample;
use crate::data::{Sample, Source, Transform, read_caught};

/// What batches are made of.
#[derive(Clone)]
pub struct Recipe {
    /// The samples.
    pub source: Arc<dyn Source>,
    /// What is done to each.
    pub transform: Arc<Transform>,
    /// What a bad one does.
    pub on_bad_sample: OnBadSample,
    /// Where the chances of augmentation come from; none to test.
    pub seed: Option<u64>,
}

impl Recipe {
    /// Makes one batch of these samples.
    pub fn make(&self, samples: &[usize], epoch: u64) -> Result<HostBatch, Fault> {
        let mut batch = HostBatch::new(self.source.form(), samples.len());
        for &at in samples {
            let outcome = self.sample(at, epoch).and_then(|sample| batch.push(sample));
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
        if let Sample::Dense { values, .. } = &mut sample {
            if values.len() != self.source.form().size() {
                return Err(format!("it has {} numbers", values.len()));
            }
            let chance = self
                .seed
                .filter(|_| self.transform.is_random())
                .map(|seed| Chance::of(&[seed, epoch, at as u64]));
            self.transform.apply(values, chance);
        }
        Ok(sample)
    }
}

/// The samples of each batch of an epoch, shuffled by the seed, or in order without one.
pub fn plan(samples: usize, batch: usize, seed: Option<u64>, epoch: u64) -> Vec<Vec<usize>> {
    let order = match seed {
        Some(seed) => Chance::of(&[seed, 0x0de2, epoch]).permutation(samples),
        None => (0..samples).collect(),
    };
    order.chunks(batch.max(1)).map(<[usize]>::to_vec).collect()
}
