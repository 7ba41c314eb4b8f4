//! The HTML page of a load test: rate and latency by number of clients, the distribution of
//! latencies, and batch sizes.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::page::{self, Connect, Kind};

/// A load test of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadTest {
    /// The title.
    pub title: String,
    /// The result, in one or two sentences.
    pub summary: String,
    /// The phases, by number of clients.
    pub phases: Vec<LoadPhase>,
    /// The histogram of latencies, over all phases.
    pub latencies: Vec<LatencyBucket>,
    /// The histogram of batch sizes: size and count.
    pub batches: Vec<(u64, u64)>,
    /// Further facts as name and value.
    pub facts: Vec<(String, String)>,
}

/// A part of the test with a fixed number of clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadPhase {
    /// Concurrent clients.
    pub clients: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Tokens per second, for generated text.
    pub tokens_per_second: Option<f64>,
    /// Median latency.
    pub median_ms: f64,
    /// 95th percentile of the latency.
    pub p95_ms: f64,
    /// 99th percentile of the latency.
    pub p99_ms: f64,
    /// Requests answered.
    pub answered: u64,
    /// Requests rejected because the queue was full.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// A bucket of the histogram of latencies.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// The upper bound of the latency.
    pub up_to_ms: f64,
    /// The number of requests.
    pub count: u64,
}

impl LoadTest {
    /// Writes the page.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        page::write(out, Kind::Load, Connect::Nowhere, &self.title, self)
    }
}
