//! How batches are loaded: chosen by the device and by measurement, unless the configuration says.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::Recipe;
use crate::config::LoadingConfig;

/// A batch that loads faster than this is loaded where it is needed: a thread would cost more.
const NOT_WORTH_A_THREAD: Duration = Duration::from_micros(500);
/// Enough samples to measure how long a batch takes to load: a whole one could take all memory.
const MEASURED_SAMPLES: usize = 64;
/// Batches that wait may take this share of the available memory.
const WAITING_SHARE: f64 = 0.25;
/// More threads than this are never chosen.
const MOST_WORKERS: usize = 4;

/// How batches are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loading {
    /// Threads that load; none loads each batch where it is needed.
    pub workers: usize,
    /// Batches that these threads have loaded or are loading, at most.
    pub prefetch: usize,
    /// Whether the next batch goes to the device while a step runs there.
    pub staging: bool,
    /// Seconds that a batch takes to load.
    pub load_seconds: f64,
}

impl Loading {
    /// Chooses: no threads where one core is all there is, or where a batch, measured, loads
    /// faster than a thread would hand it over; staging where the device's memory is its own.
    pub fn choose(
        asked: LoadingConfig,
        recipe: &Recipe,
        batch: usize,
        unified_memory: bool,
    ) -> Self {
        let batch = batch.min(recipe.source.len()).max(1);
        let samples: Vec<usize> = (0..batch.min(MEASURED_SAMPLES)).collect();
        let started = Instant::now();
        let _ = recipe.make(&samples, 0);
        let load = started.elapsed().mul_f64(batch as f64 / samples.len() as f64);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = asked.workers.unwrap_or(match cores {
            1 => 0,
            _ if load < NOT_WORTH_A_THREAD => 0,
            cores => (cores - 1).min(MOST_WORKERS),
        });
        Self {
            workers,
            // One for each thread and one that waits, until the time of a step is known.
            prefetch: asked.prefetch.unwrap_or(workers + 1),
            staging: asked.staging.unwrap_or(!unified_memory),
            load_seconds: load.as_secs_f64(),
        }
    }

    /// The choice once the time of a step is known: as many batches on their way as are used up
    /// while one loads, and one more for the times when loading takes longer. More would only
    /// take memory: where loading is slower than training, all threads are busy anyway.
    #[must_use]
    pub fn at_pace(self, asked: LoadingConfig, step_seconds: f64) -> Self {
        let used_up = (self.load_seconds / step_seconds.max(1e-9)).ceil().max(1.0) as usize;
        let prefetch = asked.prefetch.unwrap_or(used_up.min(self.workers) + 1);
        Self { prefetch, ..self }
    }

    /// The choice where batches of `batch` bytes wait in `available` bytes: if they would take too
    /// much of it, each is loaded where it is needed, unless threads were asked for.
    #[must_use]
    pub fn within(self, asked: LoadingConfig, batch: u128, available: u64) -> Self {
        let waiting = batch.saturating_mul(self.batches_in_memory() as u128) as f64;
        match asked.workers {
            None if waiting > WAITING_SHARE * available as f64 => Self { workers: 0, ..self },
            _ => self,
        }
    }

    /// Batches that are in memory at most: those on their way, the one that is trained on, and
    /// the one that is staged.
    pub fn batches_in_memory(&self) -> usize {
        let ahead = if self.workers > 0 { self.prefetch } else { 0 };
        ahead + 1 + usize::from(self.staging)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loading(workers: usize, load_seconds: f64) -> Loading {
        Loading { workers, prefetch: workers + 1, staging: false, load_seconds }
    }

    #[test]
    fn as_many_are_on_their_way_as_a_step_uses_up() {
        let auto = LoadingConfig::default();
        let prefetch = |workers, load, step| loading(workers, load).at_pace(auto, step).prefetch;
        assert_eq!(prefetch(4, 0.010, 0.1), 2, "loading is far faster than training");
        assert_eq!(prefetch(4, 0.025, 0.010), 4, "three are used up while one loads");
        assert_eq!(prefetch(4, 1.0, 0.001), 5, "all threads are busy, and more would not help");
        let asked = LoadingConfig { prefetch: Some(9), ..auto };
        assert_eq!(loading(4, 1.0).at_pace(asked, 0.1).prefetch, 9);
    }

    #[test]
    fn large_batches_do_not_wait_in_memory() {
        let auto = LoadingConfig::default();
        let workers = |batch| loading(4, 0.1).within(auto, batch, 1000).workers;
        assert_eq!((workers(40), workers(50)), (4, 0), "6 batches may take 250 bytes");
        let asked = LoadingConfig { workers: Some(4), ..auto };
        assert_eq!(loading(4, 0.1).within(asked, 50, 1000).workers, 4);
    }

    #[test]
    fn the_batches_in_memory_are_counted() {
        assert_eq!(loading(0, 0.1).batches_in_memory(), 1);
        assert_eq!(Loading { staging: true, ..loading(0, 0.1) }.batches_in_memory(), 2);
        assert_eq!(Loading { staging: true, ..loading(2, 0.1) }.batches_in_memory(), 5);
    }
}
