//! What loading and running cost so far: for progress bars, and to say what the bottleneck is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use surefoot::device::supervisor;

use crate::weights::piece::{Cost, Piece};

/// Counts that only grow, shared by the prefetcher and whoever shows progress.
#[derive(Debug, Default)]
pub struct Meter {
    file_bytes: AtomicU64,
    reading: AtomicU64,
    converting: AtomicU64,
    waiting: AtomicU64,
    blocks: AtomicU64,
    tokens: AtomicU64,
    passes: AtomicU64,
    expert_hits: AtomicU64,
    expert_loads: AtomicU64,
    device_peak: AtomicU64,
}

/// A reading of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Reading {
    /// Bytes of weights that came from files.
    pub file_bytes: u64,
    /// Seconds spent waiting for the disk or the page cache.
    pub reading: f64,
    /// Seconds spent converting to f32.
    pub converting: f64,
    /// Seconds that computing waited for weights.
    pub waiting: f64,
    /// Blocks that were run.
    pub blocks: u64,
    /// Tokens that went through the whole model.
    pub tokens: u64,
    /// Passes that ended.
    pub passes: u64,
    /// How often an expert's matrix that does not always stay was needed and still in memory.
    pub expert_hits: u64,
    /// How often one had to be loaded.
    pub expert_loads: u64,
    /// The most bytes that the device's pool was seen to hold; 0 where nobody looked, since there
    /// is no budget or no pool.
    pub device_peak_bytes: u64,
}

impl Meter {
    pub(crate) fn loaded(&self, piece: &Piece, cost: Cost) {
        // Reading a large model takes longer than a supervisor waits.
        supervisor::still_alive();
        self.file_bytes.fetch_add(piece.file_bytes(), Relaxed);
        self.reading.fetch_add(nanos(cost.reading), Relaxed);
        self.converting.fetch_add(nanos(cost.converting), Relaxed);
    }

    /// An expert's matrix was needed, and was in the cache or not.
    pub(crate) fn expert(&self, cached: bool) {
        let count = if cached { &self.expert_hits } else { &self.expert_loads };
        count.fetch_add(1, Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.waiting.fetch_add(nanos(time), Relaxed);
    }

    pub(crate) fn block(&self) {
        supervisor::still_alive();
        self.blocks.fetch_add(1, Relaxed);
    }

    pub(crate) fn pass(&self, tokens: usize) {
        self.tokens.fetch_add(tokens as u64, Relaxed);
        self.passes.fetch_add(1, Relaxed);
    }

    pub(crate) fn device_holds(&self, bytes: u64) {
        self.device_peak.fetch_max(bytes, Relaxed);
    }

    /// The counts now.
    pub fn read(&self) -> Reading {
        let seconds = |count: &AtomicU64| count.load(Relaxed) as f64 / 1e9;
        Reading {
            file_bytes: self.file_bytes.load(Relaxed),
            reading: seconds(&self.reading),
            converting: seconds(&self.converting),
            waiting: seconds(&self.waiting),
            blocks: self.blocks.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            passes: self.passes.load(Relaxed),
            expert_hits: self.expert_hits.load(Relaxed),
            expert_loads: self.expert_loads.load(Relaxed),
            device_peak_bytes: self.device_peak.load(Relaxed),
        }
    }
}

impl Reading {
    /// What was added since `earlier`. The peak of the device's memory is not a sum: it stays.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            file_bytes: self.file_bytes - earlier.file_bytes,
            reading: self.reading - earlier.reading,
            converting: self.converting - earlier.converting,
            waiting: self.waiting - earlier.waiting,
            blocks: self.blocks - earlier.blocks,
            tokens: self.tokens - earlier.tokens,
            passes: self.passes - earlier.passes,
            expert_hits: self.expert_hits - earlier.expert_hits,
            expert_loads: self.expert_loads - earlier.expert_loads,
            device_peak_bytes: self.device_peak_bytes,
        }
    }

    /// What took the time between `earlier` and now, `elapsed` seconds apart: `compute` unless
    /// computing waited for weights for a fifth of it, else what the prefetcher was busy with.
    pub fn limit_since(&self, earlier: &Self, elapsed: f64) -> &'static str {
        if self.waiting - earlier.waiting < 0.2 * elapsed {
            "compute"
        } else if self.reading - earlier.reading >= self.converting - earlier.converting {
            "disk"
        } else {
            "conversion"
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
