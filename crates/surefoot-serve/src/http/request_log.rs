//! What is told of each request at its end: one event of the journal with its times, and its spans if requests are traced.
//!
//! A [`RequestRecord`] is made when a request for work of the model is admitted. Whoever works on the request holds it:
//! the handler, the task that streams the answer, and each of the request's sequences. It is told when the last of
//! them lets it go, which is when the request is over, also if its client went away.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderMap;
use surefoot::journal::{Event, EventKind, Journal};
use surefoot_models::runner::Runner;

use crate::engine::{SequenceObserver, SequenceTimes};
use crate::trace::{Attribute, Span, SpanContext, SpanKind, Tracer};

/// The header that names the span to which a request belongs.
const TRACE_PARENT: &str = "traceparent";

/// Where requests are told.
pub(super) struct RequestLog {
    pub(super) journal: Journal,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) runner: Arc<Runner>,
}

impl std::fmt::Debug for RequestRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestRecord").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A request that is being worked on.
pub(super) struct RequestRecord {
    log: Arc<RequestLog>,
    id: String,
    path: &'static str,
    begun: Instant,
    begun_at: SystemTime,
    trace: Option<TracedRequest>,
    progress: Mutex<Progress>,
}

/// A request's span and the one above it.
#[derive(Clone, Copy)]
struct TracedRequest {
    span: SpanContext,
    parent: Option<u64>,
}

#[derive(Default)]
struct Progress {
    /// None if the client went away before an answer began.
    status: Option<u16>,
    model: String,
    /// The tokens of prompts and texts.
    input_tokens: usize,
    sequences: Vec<SequenceTimes>,
}

impl RequestLog {
    /// Begins the record of a request; none if nobody is to be told of it.
    pub(super) fn begin(
        self: &Arc<Self>,
        path: &'static str,
        id: &str,
        headers: &HeaderMap,
    ) -> Option<Arc<RequestRecord>> {
        let is_work = matches!(
            path,
            "/v1/embeddings"
                | "/v1/completions"
                | "/v1/chat/completions"
                | "/v1/responses"
                | "/v1/rerank"
        );
        let trace = self.tracer.as_ref().and_then(|_| traced(headers));
        if !is_work || (!self.journal.is_on() && trace.is_none()) {
            return None;
        }
        if let (Some(tracer), Some(trace)) = (&self.tracer, &trace) {
            tracer.request_begun(trace.span);
        }
        Some(Arc::new(RequestRecord {
            log: Arc::clone(self),
            id: id.to_owned(),
            path,
            begun: Instant::now(),
            begun_at: SystemTime::now(),
            trace,
            progress: Mutex::default(),
        }))
    }
}

/// The span of a request, unless its client asks that it is not recorded.
fn traced(headers: &HeaderMap) -> Option<TracedRequest> {
    let parent = headers.get(TRACE_PARENT).and_then(|value| value.to_str().ok());
    match parent.and_then(SpanContext::parse) {
        None => Some(TracedRequest { span: SpanContext::root(), parent: None }),
        Some(parent) => parent
            .is_sampled
            .then(|| TracedRequest { span: parent.child(), parent: Some(parent.span) }),
    }
}

impl RequestRecord {
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer has this status; it may only have begun.
    pub(super) fn answered(&self, status: u16) {
        self.progress().status = Some(status);
    }

    /// The request is understood: this model, and so many tokens that it is given.
    pub(super) fn understood(&self, model: &str, input_tokens: usize) {
        let mut progress = self.progress();
        progress.model = model.to_owned();
        progress.input_tokens = input_tokens;
    }

    fn event(&self, progress: &Progress, took: Duration) -> Event {
        let mut event = Event::new(EventKind::Step, self.path)
            .duration(took)
            .context("request_id", self.id.clone())
            // As web servers log a client that went away.
            .context("status", progress.status.unwrap_or(499))
            .context("model", progress.model.clone())
            .context("prompt_tokens", progress.input_tokens);
        if let Some(device) = self.log.runner.device() {
            event = event.device(device.to_string());
        }
        if progress.sequences.is_empty() {
            return event;
        }
        let tokens: usize = progress.sequences.iter().map(|times| times.tokens).sum();
        event = event.context("tokens", tokens);
        if progress.sequences.len() > 1 {
            event = event.context("sequences", progress.sequences.len());
        }
        // Of several sequences the slowest: that is what the client waited for.
        let slowest = |of: fn(&SequenceTimes) -> Option<Duration>| {
            progress.sequences.iter().filter_map(of).max()
        };
        for (name, time) in [
            ("queue_ms", slowest(SequenceTimes::queue)),
            ("prompt_ms", slowest(SequenceTimes::prompt)),
            ("first_token_ms", slowest(SequenceTimes::to_first_token)),
            ("between_tokens_ms", slowest(SequenceTimes::between_tokens)),
            ("longest_between_tokens_ms", slowest(|times| Some(times.longest_gap))),
        ] {
            if let Some(time) = time {
                event = event.context(name, millis(time));
            }
        }
        match &self.trace {
            Some(trace) => event.context("trace_id", format!("{:032x}", trace.span.trace)),
            None => event,
        }
    }

    fn tell_spans(
        &self,
        tracer: &Tracer,
        trace: TracedRequest,
        progress: &Progress,
        took: Duration,
    ) {
        let at = |moment: Instant| self.begun_at + moment.saturating_duration_since(self.begun);
        let stage = |name: &'static str, from: Option<Instant>, to: Option<Instant>| {
            let times = (at(from?), at(to?));
            let context = trace.span.child();
            Some(Span::new(context, Some(trace.span.span), name, SpanKind::Internal, times))
        };
        for times in &progress.sequences {
            let started = times.started();
            let prompt = stage("prompt", started, times.first_token).map(|mut span| {
                let tokens = Attribute::Whole(times.prompt_tokens as i64);
                span.attributes.push(("gen_ai.usage.input_tokens", tokens));
                span
            });
            let answer = stage("answer", times.first_token, times.last_token).map(|mut span| {
                let tokens = Attribute::Whole(times.tokens as i64);
                span.attributes.push(("gen_ai.usage.output_tokens", tokens));
                let longest = Attribute::Number(millis(times.longest_gap));
                span.attributes.push(("surefoot.longest_between_tokens_ms", longest));
                span
            });
            let queue = stage("queue", Some(times.accepted), started);
            for span in [queue, prompt, answer].into_iter().flatten() {
                tracer.record(span);
            }
        }
        let status = progress.status.unwrap_or(499);
        let name = format!("POST {}", self.path);
        let times = (self.begun_at, self.begun_at + took);
        let mut span = Span::new(trace.span, trace.parent, name, SpanKind::Server, times);
        let text = |text: &str| Attribute::Text(text.to_owned());
        let tokens: usize = progress.sequences.iter().map(|times| times.tokens).sum();
        span.attributes = vec![
            ("http.request.method", text("POST")),
            ("url.path", text(self.path)),
            ("http.response.status_code", Attribute::Whole(i64::from(status))),
            ("surefoot.request_id", text(&self.id)),
            ("gen_ai.request.model", text(&progress.model)),
            ("gen_ai.usage.input_tokens", Attribute::Whole(progress.input_tokens as i64)),
            ("gen_ai.usage.output_tokens", Attribute::Whole(tokens as i64)),
        ];
        if let Some(device) = self.log.runner.device() {
            span.attributes.push(("surefoot.device", text(&device.to_string())));
        }
        span.error = (status >= 500).then(|| format!("answered with status {status}"));
        tracer.record(span);
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl SequenceObserver for RequestRecord {
    fn ended(&self, times: &SequenceTimes) {
        self.progress().sequences.push(times.clone());
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        let progress = std::mem::take(&mut *self.progress());
        if self.log.journal.is_on() {
            self.log.journal.with(|| self.event(&progress, took));
        }
        if let (Some(tracer), Some(trace)) = (&self.log.tracer, self.trace) {
            tracer.request_ended(trace.span);
            self.tell_spans(tracer, trace, &progress, took);
        }
    }
}
