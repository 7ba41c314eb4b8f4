//! Traces of requests for OpenTelemetry collectors.
//!
//! A [`Tracer`] is told of requests and of passes through the model. A request is a span whose parent is the one that its
//! header `traceparent` names; below it are spans for its time in the queue, for its prompt and for its answer. A
//! pass works for all requests that are in flight: its span is below that of the oldest of them and linked to the
//! others. Faults and rungs of a pass are events of its span.
//!
//! Invariant: telling a span never waits. Spans go into a bounded queue; one that finds no room, or whose batch the
//! collector does not take, is dropped and counted (`surefoot_trace_spans_total{outcome="dropped"}`). The thread of
//! the [`Exporter`] sends them, in OTLP's JSON over HTTP or HTTPS (`otlp.rs`, `endpoint.rs`).

mod certificates;
mod context;
mod endpoint;
mod exporter;
mod otlp;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use surefoot::journal::{Event, EventKind, Journal};

pub use certificates::{PemFile, UnusableCertificates};
pub use context::SpanContext;
pub use endpoint::{TraceEndpoint, UnusableEndpoint, UnusableHeaders};
pub use exporter::Exporter;

use crate::metrics::Metrics;

/// Spans that wait to be sent, at most.
const QUEUE: usize = 2048;
/// The most links of a pass to requests, and the most events of a span.
const MOST_LINKS: usize = 32;
const MOST_EVENTS: usize = 32;

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute {
    Text(String),
    Whole(i64),
    Number(f64),
}

pub(crate) type Attributes = Vec<(&'static str, Attribute)>;

/// Something that happened during a span.
#[derive(Clone, Debug)]
struct SpanEvent {
    time: SystemTime,
    name: Cow<'static, str>,
    attributes: Attributes,
}

/// What a span is, as OTLP numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Internal = 1,
    Server = 2,
}

/// A piece of work that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) context: SpanContext,
    pub(crate) parent: Option<u64>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: SpanKind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Attributes,
    /// What went wrong, if it failed.
    pub(crate) error: Option<String>,
    events: Vec<SpanEvent>,
    links: Vec<SpanContext>,
}

impl Span {
    pub(crate) fn new(
        context: SpanContext,
        parent: Option<u64>,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        (start, end): (SystemTime, SystemTime),
    ) -> Self {
        Self {
            context,
            parent,
            name: name.into(),
            kind,
            start,
            end,
            attributes: Vec::new(),
            error: None,
            events: Vec::new(),
            links: Vec::new(),
        }
    }
}

/// Collects spans.
#[derive(Debug)]
pub struct Tracer {
    waiting: Mutex<Waiting>,
    news: Condvar,
    in_flight: Mutex<Vec<SpanContext>>,
    /// Faults and rungs of passes that have not ended, by thread.
    unfinished: Mutex<HashMap<u32, Vec<SpanEvent>>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<Span>,
    is_closed: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracer {
    fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            waiting: Mutex::default(),
            news: Condvar::new(),
            in_flight: Mutex::default(),
            unfinished: Mutex::default(),
            metrics,
        }
    }

    /// A request begins; [`Tracer::request_ended`] is to be called for it.
    pub(crate) fn request_begun(&self, context: SpanContext) {
        locked(&self.in_flight).push(context);
    }

    /// A request is over.
    pub(crate) fn request_ended(&self, context: SpanContext) {
        locked(&self.in_flight).retain(|other| *other != context);
    }

    /// Queues a span, or drops it if the queue is full.
    pub(crate) fn record(&self, span: Span) {
        let mut waiting = locked(&self.waiting);
        if waiting.spans.len() >= QUEUE || waiting.is_closed {
            drop(waiting);
            self.metrics.trace_spans("dropped", 1);
            return;
        }
        waiting.spans.push_back(span);
        drop(waiting);
        self.news.notify_one();
    }

    /// A journal for an engine's footing that hears of passes and of what goes wrong in them, and tells `journal` of
    /// everything.
    pub fn listening(self: &Arc<Self>, journal: Journal) -> Journal {
        let tracer = Arc::clone(self);
        Journal::builder()
            .listener(move |event| {
                tracer.heard(event);
                journal.with(|| event.clone());
            })
            .build()
    }

    fn heard(&self, event: &Event) {
        match event.kind {
            EventKind::Fault | EventKind::Rung => {
                let mut unfinished = locked(&self.unfinished);
                let events = unfinished.entry(event.thread).or_default();
                if events.len() < MOST_EVENTS {
                    events.push(span_event(event));
                }
            }
            EventKind::Step => self.pass_ended(event),
            _ => {}
        }
    }

    fn pass_ended(&self, event: &Event) {
        let events = locked(&self.unfinished).remove(&event.thread).unwrap_or_default();
        let in_flight = locked(&self.in_flight).clone();
        // Loading and warming up are no work for a request.
        let Some((oldest, others)) = in_flight.split_first() else { return };
        let end = UNIX_EPOCH + Duration::from_micros(event.time_us);
        let start = end - event.duration.unwrap_or_default();
        let name = event.op.clone();
        let mut span =
            Span::new(oldest.child(), Some(oldest.span), name, SpanKind::Internal, (start, end));
        if let Some(device) = &event.device {
            span.attributes.push(("surefoot.device", Attribute::Text(device.to_string())));
        }
        if let Some(dtype) = &event.dtype {
            span.attributes.push(("surefoot.dtype", Attribute::Text(dtype.to_string())));
        }
        if let Some(rung) = &event.recovery {
            span.attributes.push(("surefoot.recovery", Attribute::Text(rung.to_string())));
        }
        span.error = event.fault.as_ref().map(|fault| fault.message.to_string());
        span.events = events;
        span.links = others.iter().take(MOST_LINKS).copied().collect();
        self.record(span);
    }

    fn close(&self) {
        locked(&self.waiting).is_closed = true;
        self.news.notify_all();
    }
}

fn span_event(event: &Event) -> SpanEvent {
    let mut attributes = Vec::new();
    if let Some(fault) = &event.fault {
        attributes.push(("surefoot.fault", Attribute::Text(fault.kind.as_str().to_owned())));
        attributes.push(("surefoot.message", Attribute::Text(fault.message.to_string())));
    }
    if let Some(rung) = &event.recovery {
        attributes.push(("surefoot.rung", Attribute::Text(rung.to_string())));
    }
    SpanEvent {
        time: UNIX_EPOCH + Duration::from_micros(event.time_us),
        name: event.kind.as_str().into(),
        attributes,
    }
}
