//! Sends spans to a collector, in batches, from a thread of its own.
//!
//! A batch that a collector does not take for now (it can't be reached, or answers 429, 502, 503 or 504) is sent again, a few times
//! and not while the program ends; then its spans are dropped and counted. The first time, and again after batches were taken in
//! between, whoever started the exporter is told why.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::http::StatusCode;
use surefoot::fault::catch;
use ureq::Agent;

use super::endpoint::TraceEndpoint;
use super::{Span, Tracer, locked, otlp};
use crate::metrics::Metrics;

/// Spans of one request, at most.
const BATCH: usize = 512;
/// How long spans wait for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long a collector may take to accept a batch.
const SENDING: Duration = Duration::from_secs(5);
/// How long to wait before a batch is sent again: once for each of these. Spans that come meanwhile wait, as many as a tracer keeps.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// The thread that sends spans. Dropping it sends what is left, within a few seconds.
#[derive(Debug)]
pub struct Exporter {
    tracer: Arc<Tracer>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts the thread. Spans have the name of the service, and are counted in `metrics`; when the collector begins not to take
    /// them, `tell` gets to know why.
    pub fn start(
        endpoint: TraceEndpoint,
        service: String,
        metrics: Arc<Metrics>,
        tell: impl Fn(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        // Shown from the start, not from the first loss.
        for outcome in ["exported", "dropped"] {
            metrics.trace_spans(outcome, 0);
        }
        let tracer = Arc::new(Tracer::new(Arc::clone(&metrics)));
        let own = Arc::clone(&tracer);
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(move || {
            let agent = endpoint.agent(SENDING);
            let mut is_taken = true;
            while let Some(spans) = own.next_batch() {
                let sent = caught(|| {
                    let body = otlp::request(&service, &spans).to_string();
                    own.send(&agent, &endpoint, body.as_bytes())
                });
                let outcome = if sent.is_ok() { "exported" } else { "dropped" };
                metrics.trace_spans(outcome, spans.len());
                if let Err(problem) = &sent
                    && is_taken
                {
                    tell(&format!("{} does not take traces: {problem}", endpoint.shown()));
                }
                is_taken = sent.is_ok();
            }
        })?;
        Ok(Self { tracer, thread: Some(thread) })
    }

    /// What is told of spans.
    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.tracer.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Tracer {
    /// Waits for spans; none once the tracer is closed and all were taken.
    fn next_batch(&self) -> Option<Vec<Span>> {
        let mut waiting = locked(&self.waiting);
        while waiting.spans.is_empty() {
            if waiting.is_closed {
                return None;
            }
            waiting = self.news.wait(waiting).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if !waiting.is_closed && waiting.spans.len() < BATCH {
            let gathered = self.news.wait_timeout_while(waiting, GATHER, |waiting| {
                !waiting.is_closed && waiting.spans.len() < BATCH
            });
            waiting = gathered.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        let count = waiting.spans.len().min(BATCH);
        let spans = waiting.spans.drain(..count).collect();
        if waiting.is_closed {
            // A collector that takes nothing must not hold the end up batch after batch.
            let left = waiting.spans.len();
            waiting.spans.clear();
            drop(waiting);
            self.metrics.trace_spans("dropped", left);
        }
        Some(spans)
    }

    /// Sends a batch, again if it was not taken for now.
    fn send(&self, agent: &Agent, endpoint: &TraceEndpoint, body: &[u8]) -> Result<(), NotSent> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let problem = match endpoint.post(agent, body) {
                Ok(status) if status.is_success() => return Ok(()),
                Ok(status) => NotSent::Refused(status),
                Err(error) => NotSent::Unreachable(error),
            };
            let Some(pause) = pauses.next().filter(|_| problem.may_pass()) else {
                return Err(problem);
            };
            if self.closes_within(pause) {
                return Err(problem);
            }
        }
    }

    /// Waits so long; true, and at once, if the tracer is closed meanwhile.
    fn closes_within(&self, pause: Duration) -> bool {
        let waiting = locked(&self.waiting);
        let waited = self.news.wait_timeout_while(waiting, pause, |waiting| !waiting.is_closed);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.is_closed
    }
}

/// Why a batch was not sent.
#[derive(Debug, thiserror::Error)]
enum NotSent {
    #[error("it answers with status {0}")]
    Refused(StatusCode),
    #[error("{0}")]
    Unreachable(ureq::Error),
    #[error("sending them failed by a defect of this program: {0}")]
    Panicked(String),
}

/// Sends a batch. A panic loses it, but none that come later.
fn caught(send: impl FnOnce() -> Result<(), NotSent>) -> Result<(), NotSent> {
    catch(send).unwrap_or_else(|panic| {
        Err(NotSent::Panicked(format!("{} ({})", panic.message, panic.place)))
    })
}

impl NotSent {
    /// Whether the same batch may be taken later.
    fn may_pass(&self) -> bool {
        match self {
            Self::Refused(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            // A collector that does not answer may have taken it, and one whose certificate is no good won't have another.
            Self::Unreachable(ureq::Error::Timeout(_) | ureq::Error::Tls(_)) => false,
            Self::Unreachable(ureq::Error::Rustls(_)) => false,
            Self::Unreachable(ureq::Error::Io(error)) => error.kind() != ErrorKind::InvalidData,
            Self::Unreachable(_) => true,
            Self::Panicked(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A collector that answers each request with the next of `statuses`, and gives the heads of the requests.
    fn collector(statuses: &'static [u16]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        use std::io::{BufRead, BufReader, Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let answer = |status: &u16| {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    reader.read_line(&mut head).unwrap();
                }
                reader.read_exact(&mut [0; 2]).unwrap();
                let mut stream = stream;
                write!(stream, "HTTP/1.1 {status} told\r\nContent-Length: 0\r\n\r\n").unwrap();
                head
            };
            statuses.iter().map(answer).collect()
        });
        (address, thread)
    }

    #[test]
    fn a_batch_is_sent_again_while_a_collector_can_not_take_it_and_no_more_often() {
        let cases: [(&'static [u16], bool); 4] =
            [(&[200], true), (&[503, 429, 200], true), (&[503, 503, 503], false), (&[400], false)];
        for (statuses, accepted) in cases {
            let (address, heads) = collector(statuses);
            let endpoint =
                TraceEndpoint::below(&address).unwrap().with_headers("x-key=one").unwrap();
            let tracer = Tracer::new(Arc::default());
            let sent = tracer.send(&endpoint.agent(SENDING), &endpoint, b"{}");
            assert_eq!(sent.is_ok(), accepted, "{statuses:?}");
            let heads = heads.join().unwrap();
            assert_eq!(heads.len(), statuses.len());
            assert!(heads.iter().all(|head| head.contains("x-key: one\r\n")), "{heads:?}");
        }
        // Whoever ends does not wait for a collector.
        let (address, heads) = collector(&[503]);
        let tracer = Tracer::new(Arc::default());
        tracer.close();
        let endpoint = TraceEndpoint::below(&address).unwrap();
        assert!(tracer.send(&endpoint.agent(SENDING), &endpoint, b"{}").is_err());
        assert_eq!(heads.join().unwrap().len(), 1);
    }

    #[test]
    fn a_panic_while_sending_loses_its_batch_alone_and_is_told_once() {
        use ureq::tls::{Certificate, ClientCert, PrivateKey};
        // Connections are accepted, and the certificate panics before anything is sent.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let key = PrivateKey::from_pem(key.as_bytes()).unwrap();
        let identity = ClientCert::new_with_certs(&[Certificate::from_der(b"none")], key);
        let endpoint = TraceEndpoint::below(&address).unwrap().showing(identity);
        let metrics = Arc::new(Metrics::default());
        let (sender, told) = std::sync::mpsc::channel();
        let tell = move |text: &str| sender.send(text.to_owned()).unwrap();
        let exporter =
            Exporter::start(endpoint, "tested".to_owned(), Arc::clone(&metrics), tell).unwrap();
        for lost in 1..=2 {
            let now = std::time::SystemTime::now();
            let context = super::super::SpanContext::root();
            let kind = super::super::SpanKind::Server;
            exporter.tracer().record(Span::new(context, None, "one", kind, (now, now)));
            let dropped = format!("surefoot_trace_spans_total{{outcome=\"dropped\"}} {lost}\n");
            let begun = std::time::Instant::now();
            while !metrics.text().unwrap().contains(&dropped) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{}", metrics.text().unwrap());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(exporter);
        let told: Vec<String> = told.iter().collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("defect") && told[0].contains("certificate"), "{told:?}");
    }
}
