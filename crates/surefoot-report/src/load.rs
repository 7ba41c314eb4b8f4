//! The page of a load test: rates and latencies as clients are added, how latencies are spread,
//! and how large the batches were.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::page::{self, Connect, Kind};

/// A load test of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadTest {
    /// What the reader knows it by.
    pub title: String,
    /// What it came to, in a sentence or two.
    pub summary: String,
    /// The phases, in order of their clients.
    pub phases: Vec<LoadPhase>,
    /// How latencies are spread, over all phases.
    pub latencies: Vec<LatencyBucket>,
    /// How many batches had so many requests: the size and the count.
    pub batches: Vec<(u64, u64)>,
    /// Anything else worth a line: a name and its value.
    pub facts: Vec<(String, String)>,
}

/// A stretch with a fixed number of clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadPhase {
    /// Clients at once.
    pub clients: u64,
    /// Requests answered in a second.
    pub requests_per_second: f64,
    /// Tokens in a second, where that means something.
    pub tokens_per_second: Option<f64>,
    /// Half of the requests took at most this.
    pub median_ms: f64,
    /// 95 % took at most this.
    pub p95_ms: f64,
    /// 99 % took at most this.
    pub p99_ms: f64,
    /// Requests answered.
    pub answered: u64,
    /// Requests turned away because the queue was full.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// Requests that took about as long.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// They took at most this.
    pub up_to_ms: f64,
    /// How many.
    pub count: u64,
}

impl LoadTest {
    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        page::write(out, Kind::Load, Connect::Nowhere, &self.title, self)
    }
}
