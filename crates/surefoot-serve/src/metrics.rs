//! Metrics: scraped by Prometheus, and summarised in the journal.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use surefoot::journal::{Event, EventKind};
use surefoot_models::generate::pages::PageCounts;

type Label = [(&'static str, String); 1];
type Labels = [(&'static str, String); 2];
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// Counts that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sequences and texts that were accepted.
    pub accepted: u64,
    /// Those that were answered.
    pub finished: u64,
    /// Those that were answered by an error.
    pub failed: u64,
    /// Those whose client went away.
    pub cancelled: u64,
    /// Requests that were not accepted.
    pub refused: u64,
    /// Passes through the model.
    pub batches: u64,
    /// Sequences and texts in them.
    pub rows: u64,
    /// Tokens that were generated or embedded.
    pub tokens: u64,
    /// The time that passes took together, in microseconds.
    pub busy_micros: u64,
    /// Sequences that started.
    pub started: u64,
    /// Those of them whose beginning was known.
    pub prefix_hits: u64,
    /// Sequences that gave up their pages and were run again later.
    pub preemptions: u64,
    /// Tokens that were proposed, and are what the model chose too.
    pub accepted_proposals: u64,
    /// Tokens that were proposed in vain.
    pub rejected_proposals: u64,
}

/// How full the engine is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Pages of keys and values, where they are in pages.
    pub pages: Option<PageCounts>,
    /// Sequences that wait to be decoded, those that were preempted included.
    pub waiting: usize,
}

impl Counts {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            accepted: self.accepted - earlier.accepted,
            finished: self.finished - earlier.finished,
            failed: self.failed - earlier.failed,
            cancelled: self.cancelled - earlier.cancelled,
            refused: self.refused - earlier.refused,
            batches: self.batches - earlier.batches,
            rows: self.rows - earlier.rows,
            tokens: self.tokens - earlier.tokens,
            busy_micros: self.busy_micros - earlier.busy_micros,
            started: self.started - earlier.started,
            prefix_hits: self.prefix_hits - earlier.prefix_hits,
            preemptions: self.preemptions - earlier.preemptions,
            accepted_proposals: self.accepted_proposals - earlier.accepted_proposals,
            rejected_proposals: self.rejected_proposals - earlier.rejected_proposals,
        }
    }
}

/// All that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    request_seconds: Histograms,
    first_token_seconds: Histogram,
    queue_seconds: Histograms,
    batch_size: Histograms,
    batch_seconds: Histograms,
    tokens: Family<Label, Counter>,
    queue_depth: Family<Label, Gauge>,
    faults: Family<Label, Counter>,
    rungs: Family<Label, Counter>,
    memory: Family<Labels, Gauge>,
    cache_pages: Family<Label, Gauge>,
    prefix_lookups: Family<Label, Counter>,
    preemptions: Counter,
    accepted_proposals: Counter,
    rejected_proposals: Counter,
    trace_spans: Family<Label, Counter>,
    levels: Mutex<Levels>,
    started: AtomicU64,
    prefix_hits: AtomicU64,
    batches: AtomicU64,
    rows: AtomicU64,
    useful_tokens: AtomicU64,
    busy_micros: AtomicU64,
    accepted: Counter,
    finished: Counter,
    failed: Counter,
    cancelled: Counter,
    refused: Counter,
}

fn seconds() -> Histogram {
    // 100 µs to about 100 s.
    Histogram::new(exponential_buckets(1e-4, 2.0, 21))
}

fn sizes() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 10))
}

fn label(name: &'static str, value: &str) -> Label {
    [(name, value.to_owned())]
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("surefoot");
        let requests = Family::default();
        let request_seconds = Histograms::new_with_constructor(seconds);
        let first_token_seconds = seconds();
        let queue_seconds = Histograms::new_with_constructor(seconds);
        let batch_size = Histograms::new_with_constructor(sizes);
        let batch_seconds = Histograms::new_with_constructor(seconds);
        let outcomes = Family::<Label, Counter>::default();
        let tokens = Family::default();
        let queue_depth = Family::default();
        let faults = Family::default();
        let rungs = Family::default();
        let memory = Family::default();
        let cache_pages = Family::default();
        let prefix_lookups = Family::default();
        let preemptions = Counter::default();
        let trace_spans = Family::default();
        registry.register("http_requests", "HTTP requests by path and status", requests.clone());
        registry.register(
            "http_request_seconds",
            "From a request to the end of its answer",
            request_seconds.clone(),
        );
        registry.register(
            "first_token_seconds",
            "From accepting a sequence to its first token",
            first_token_seconds.clone(),
        );
        registry.register("queue_seconds", "Waiting to be run", queue_seconds.clone());
        registry.register("batch_size", "Sequences or texts in one pass", batch_size.clone());
        registry.register("batch_seconds", "One pass", batch_seconds.clone());
        registry.register("sequences", "Sequences and texts by how they went", outcomes.clone());
        registry.register("tokens", "Tokens by what they were for", tokens.clone());
        registry.register("queue_depth", "Sequences or texts that wait", queue_depth.clone());
        registry.register("faults", "Device faults by kind", faults.clone());
        registry.register("rungs", "Rungs of the recovery ladder taken", rungs.clone());
        registry.register("memory_bytes", "Memory in use and at most", memory.clone());
        registry.register(
            "cache_pages",
            "Pages of keys and values: of sequences that run (live), of earlier ones that nobody uses (idle), and the limit (most)",
            cache_pages.clone(),
        );
        registry.register(
            "prefix_lookups",
            "Sequences that started, by whether the beginning of their tokens was known",
            prefix_lookups.clone(),
        );
        registry.register(
            "preemptions",
            "Sequences that gave up their pages and were run again later",
            preemptions.clone(),
        );
        let proposed = Family::<Label, Counter>::default();
        registry.register(
            "proposed_tokens",
            "Tokens that speculative decoding proposed, by whether the model chose them too",
            proposed.clone(),
        );
        let proposals = |result| proposed.get_or_create_owned(&label("result", result));
        registry.register(
            "trace_spans",
            "Spans of traces: accepted by the collector (exported), or lost because it is away or too slow (dropped)",
            trace_spans.clone(),
        );
        let outcome = |name| outcomes.get_or_create_owned(&label("outcome", name));
        Self {
            accepted: outcome("accepted"),
            finished: outcome("finished"),
            failed: outcome("failed"),
            cancelled: outcome("cancelled"),
            refused: outcome("refused"),
            registry,
            requests,
            request_seconds,
            first_token_seconds,
            queue_seconds,
            batch_size,
            batch_seconds,
            tokens,
            queue_depth,
            faults,
            rungs,
            memory,
            cache_pages,
            prefix_lookups,
            preemptions,
            accepted_proposals: proposals("accepted"),
            rejected_proposals: proposals("rejected"),
            trace_spans,
            levels: Mutex::default(),
            started: AtomicU64::new(0),
            prefix_hits: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            useful_tokens: AtomicU64::new(0),
            busy_micros: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Everything in OpenMetrics' text format.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// The counts now.
    pub fn counts(&self) -> Counts {
        Counts {
            accepted: self.accepted.get(),
            finished: self.finished.get(),
            failed: self.failed.get(),
            cancelled: self.cancelled.get(),
            refused: self.refused.get(),
            batches: self.batches.load(Relaxed),
            rows: self.rows.load(Relaxed),
            tokens: self.useful_tokens.load(Relaxed),
            busy_micros: self.busy_micros.load(Relaxed),
            started: self.started.load(Relaxed),
            prefix_hits: self.prefix_hits.load(Relaxed),
            preemptions: self.preemptions.get(),
            accepted_proposals: self.accepted_proposals.get(),
            rejected_proposals: self.rejected_proposals.get(),
        }
    }

    /// Hears of what goes wrong.
    pub fn heard(&self, event: &Event) {
        match event.kind {
            EventKind::Fault => {
                let kind = event.fault.as_ref().map_or("unknown", |fault| fault.kind.as_str());
                self.faults.get_or_create(&label("kind", kind)).inc();
            }
            EventKind::Rung => {
                let rung = event.recovery.as_deref().unwrap_or("unknown");
                self.rungs.get_or_create(&label("rung", rung)).inc();
            }
            _ => {}
        }
    }

    /// An HTTP request was answered.
    pub fn answered(&self, path: &'static str, status: u16) {
        let labels = [("path", path.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    /// The answer to an HTTP request came to its end.
    pub fn took(&self, path: &'static str, time: Duration) {
        self.request_seconds.get_or_create(&label("path", path)).observe(time.as_secs_f64());
    }

    pub(crate) fn accepted(&self, count: usize) {
        self.accepted.inc_by(count as u64);
    }

    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn finished(&self) {
        self.finished.inc();
    }

    pub(crate) fn failed(&self) {
        self.failed.inc();
    }

    pub(crate) fn cancelled(&self) {
        self.cancelled.inc();
    }

    pub(crate) fn generated_tokens(&self, tokens: usize) {
        self.count_tokens("generated", tokens);
    }

    pub(crate) fn prompt_tokens(&self, tokens: usize) {
        self.count_tokens("prompt", tokens);
    }

    /// A sequence started of which so many tokens were known and need not be run again.
    pub(crate) fn started(&self, known: usize) {
        let result = if known > 0 { "hit" } else { "miss" };
        self.started.fetch_add(1, Relaxed);
        self.prefix_hits.fetch_add(u64::from(known > 0), Relaxed);
        self.prefix_lookups.get_or_create(&label("result", result)).inc();
        self.tokens.get_or_create(&label("kind", "reused")).inc_by(known as u64);
    }

    /// So many sequences gave up their pages.
    pub(crate) fn preempted(&self, count: usize) {
        self.preemptions.inc_by(count as u64);
    }

    /// Of so many tokens that were proposed so many were right.
    pub(crate) fn speculated(&self, proposed: usize, accepted: usize) {
        self.accepted_proposals.inc_by(accepted as u64);
        self.rejected_proposals.inc_by((proposed - accepted) as u64);
    }

    /// How full the engine is now.
    pub fn levels(&self) -> Levels {
        *self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn level(&self, levels: Levels) {
        *self.levels.lock().unwrap_or_else(PoisonError::into_inner) = levels;
        let Some(counts) = levels.pages else { return };
        for (state, pages) in [("live", counts.live), ("idle", counts.idle), ("most", counts.most)]
        {
            self.cache_pages.get_or_create(&label("state", state)).set(pages as i64);
        }
    }

    /// Counts spans of traces by what became of them.
    pub(crate) fn trace_spans(&self, outcome: &'static str, count: usize) {
        self.trace_spans.get_or_create(&label("outcome", outcome)).inc_by(count as u64);
    }

    pub(crate) fn embedded_tokens(&self, tokens: usize) {
        self.count_tokens("embedded", tokens);
    }

    fn count_tokens(&self, what: &'static str, tokens: usize) {
        self.tokens.get_or_create(&label("kind", what)).inc_by(tokens as u64);
        self.useful_tokens.fetch_add(tokens as u64, Relaxed);
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first_token_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn queued(&self, engine: &'static str, arrived: impl Iterator<Item = Instant>) {
        let waited = self.queue_seconds.get_or_create(&label("engine", engine));
        for arrived in arrived {
            waited.observe(arrived.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn batch(&self, engine: &'static str, size: usize, time: Duration) {
        let labels = label("engine", engine);
        self.batch_size.get_or_create(&labels).observe(size as f64);
        self.batch_seconds.get_or_create(&labels).observe(time.as_secs_f64());
        self.batches.fetch_add(1, Relaxed);
        self.rows.fetch_add(size as u64, Relaxed);
        self.busy_micros.fetch_add(time.as_micros() as u64, Relaxed);
    }

    pub(crate) fn queue(&self, engine: &'static str, depth: usize) {
        self.queue_depth.get_or_create(&label("engine", engine)).set(depth as i64);
    }

    pub(crate) fn memory(&self, device: &str, now: u64, peak: u64) {
        for (what, bytes) in [("now", now), ("peak", peak)] {
            let labels = [("device", device.to_owned()), ("when", what.to_owned())];
            self.memory.get_or_create(&labels).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
}
