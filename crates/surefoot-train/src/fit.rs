//! Finds by trying how large a batch fits in memory and which size is fastest.
//!
//! Batches of 1, 2, 4 and so on samples are run for real, each a few steps whose results are
//! thrown away. Memory is measured after each. Running out of the host's memory would kill the
//! process, so a size is only tried if the growth so far says that it will stay below the limit.
//!
//! Why this is not one of the other tuners: it runs before training, on steps that are made for the
//! measurement, and memory is measured together with time; the others tune work that runs anyway.

use std::time::{Duration, Instant};

use serde::Serialize;
use surefoot::device::memory::{Bytes, address_space_limit, address_space_peak};
use surefoot::{Fault, FaultKind, Footing};

use crate::batch::HostBatch;
use crate::estimate::{SHARE, available};
use crate::loader::Recipe;
use crate::model::Trainable;
use crate::parameters;
use crate::state::State;
use crate::step::{Done, StepOrder, StepSettings, step};

/// A size is timed for about this long.
const TIME_EACH: Duration = Duration::from_millis(300);
/// Sizes are not doubled further once a step takes this long.
const SLOW: Duration = Duration::from_secs(10);

/// The expected growth is exceeded by one part in this many without breaking the limit.
const GROWTH_MARGIN: u64 = 4;

/// The same steps take up to this many bytes more in one run than in another, since the allocator
/// hands freed pages back at different times: the limit of a trial is lower by as much.
const VARIATION: u64 = 2 << 20;

/// One size that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Samples of a batch.
    pub batch: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Samples in a second.
    pub samples_per_second: f64,
    /// The most memory that was in use.
    pub memory: u64,
}

/// What trying found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The largest batch that fits.
    pub largest: usize,
    /// The batch with the most samples in a second.
    pub fastest: usize,
    /// Why no larger one was tried.
    pub limit: String,
    /// Every size that was tried.
    pub tried: Vec<Tried>,
}

/// What is tried on.
pub struct Trials<'a, M> {
    /// The device.
    pub footing: &'a Footing,
    /// A run's state, which stays as it is.
    pub state: &'a State<M>,
    /// The samples.
    pub recipe: &'a Recipe,
    /// How a step is done.
    pub settings: StepSettings,
    /// A budget in bytes.
    pub memory: Option<u64>,
    /// What one more sample is estimated to take, in bytes.
    pub sample: u64,
    /// What the run holds besides a step, in bytes: batches that are loaded.
    pub besides: u64,
    /// Sizes above this are not tried.
    pub most: usize,
    /// Whether activations are recomputed, as the run is asked to.
    pub checkpointing: bool,
    /// Whether each size is timed, or run once.
    pub timed: bool,
}

impl<M: Trainable> Trials<'_, M> {
    /// Tries doubling sizes.
    pub fn run(&self, mut tell: impl FnMut(&Tried)) -> Result<Fit, Fault> {
        let device = self.footing.device()?;
        let limit = match self.memory {
            Some(budget) => budget,
            None => {
                let usable = available(self.footing, None)? as f64 * SHARE;
                device.memory_in_use().saturating_add(usable as u64)
            }
        };
        let most = self.most.min(self.recipe.source.len()).max(1);
        let limit = limit.saturating_sub(self.besides + VARIATION);
        let mut tried: Vec<Tried> = Vec::new();
        let mut address_space: Vec<(usize, u64)> = Vec::new();
        let mut size = 1;
        let why = loop {
            let measured: Vec<(usize, u64)> =
                tried.iter().map(|tried| (tried.batch, tried.memory)).collect();
            let needed = expected(&measured, size, self.sample);
            if let Some(needed) = needed.filter(|needed| *needed > limit) {
                break format!(
                    "{size} samples would need about {}, and {} are there",
                    Bytes(needed),
                    Bytes(limit)
                );
            }
            let reach = expected(&address_space, size, self.sample).zip(address_space_limit());
            if let Some((needed, most)) = reach.filter(|(needed, most)| needed > most) {
                break format!(
                    "{size} samples would need an address space of about {}, and the limit leaves {}",
                    Bytes(needed),
                    Bytes(most)
                );
            }
            let done = match self.time(size) {
                Ok(done) => done,
                Err(fault) if fault.kind == FaultKind::OutOfMemory && !tried.is_empty() => {
                    break format!("{size} samples don't fit: {}", fault.root_cause());
                }
                Err(fault) => return Err(fault),
            };
            if done.memory > limit {
                break format!(
                    "{size} samples used {}, and {} are there",
                    Bytes(done.memory),
                    Bytes(limit)
                );
            }
            tell(&done);
            tried.push(done);
            address_space.extend(address_space_peak().map(|peak| (size, peak)));
            if size == most {
                break format!("{size} is as much as was to be tried");
            }
            if self.timed && done.seconds > SLOW.as_secs_f64() {
                break format!("a step with {size} samples takes {:.0} s", done.seconds);
            }
            size = (size * 2).min(most);
        };
        // Parts of a batch leave gradients that wait for those of the next part.
        let gradients = 4 * self.state.model.num_params() as u64;
        let waits = |tried: &Tried| if tried.batch < self.most { gradients } else { 0 };
        let largest = tried.iter().rfind(|tried| tried.memory + waits(tried) <= limit);
        let fastest =
            tried.iter().max_by(|a, b| a.samples_per_second.total_cmp(&b.samples_per_second));
        match (largest, fastest) {
            (Some(largest), Some(fastest)) => {
                Ok(Fit { largest: largest.batch, fastest: fastest.batch, limit: why, tried })
            }
            _ => Err(Fault::new(
                FaultKind::OutOfMemory,
                "fit",
                format!("not one sample fits: {why}"),
            )
            .on(device.name().to_string())
            .advise("give it more with --memory, or make the model smaller")),
        }
    }

    fn time(&self, size: usize) -> Result<Tried, Fault> {
        let (seconds, memory) = self.footing.device()?.peak_during(|| self.seconds(size));
        let seconds = seconds?;
        Ok(Tried { batch: size, seconds, samples_per_second: size as f64 / seconds, memory })
    }

    fn seconds(&self, size: usize) -> Result<f64, Fault> {
        let samples: Vec<usize> = (0..size).collect();
        let batch = self.recipe.make(&samples, 0)?;
        let shapes = parameters::shapes(&self.state.model);
        // The optimizer's memory is there from the first step on, so later ones need more; and
        // what was done has to be saved.
        let first = self.one(self.state, &shapes, &batch)?;
        let second = self.one(&first.state, &shapes, &batch)?;
        drop(first);
        second.state.hold()?;
        let started = Instant::now();
        let mut steps = 0u32;
        while self.timed && started.elapsed() < TIME_EACH {
            self.one(&second.state, &shapes, &batch)?;
            steps += 1;
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(steps.max(1)))
    }

    fn one(
        &self,
        state: &State<M>,
        shapes: &[parameters::Shape],
        batch: &HostBatch,
    ) -> Result<Done<M>, Fault> {
        let settings = StepSettings { micro_batch: batch.samples(), ..self.settings };
        let order = StepOrder { lr: 1e-6, checkpointing: self.checkpointing, name_bad: false };
        Ok(step(self.footing, &settings, order, state, shapes, batch)?.value)
    }
}

/// The memory that the next size will need if it grows as it did, evenly with the samples, or by
/// the estimate for a sample if that is more; with a margin, since a trial that takes more than the
/// limit has already broken it.
fn expected(measured: &[(usize, u64)], next: usize, sample: u64) -> Option<u64> {
    let (batch, memory) = *measured.last()?;
    let each = match measured {
        [.., (fewer, less), _] => memory.saturating_sub(*less) / (batch - fewer) as u64,
        _ => sample,
    };
    let growth = each * (next - batch) as u64;
    Some(memory + growth + growth / GROWTH_MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_expected_to_grow_with_the_samples() {
        assert_eq!(expected(&[], 1, 8), None);
        assert_eq!(expected(&[(1, 100)], 2, 8), Some(110), "by the estimate");
        assert_eq!(expected(&[(2, 100), (4, 120)], 8, 8), Some(170), "40 more, and a margin of 10");
        assert_eq!(expected(&[(2, 100), (4, 90)], 8, 8), Some(90));
    }
}
