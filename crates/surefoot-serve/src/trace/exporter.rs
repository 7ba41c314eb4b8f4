//! Sends spans to a collector, in batches, from a thread of its own.

use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Request, Uri, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Span, Tracer, locked, otlp};
use crate::metrics::Metrics;

/// Spans of one request, at most.
const BATCH: usize = 512;
/// How long spans wait for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long a collector may take to accept a batch.
const SENDING: Duration = Duration::from_secs(5);

/// Where traces are sent: `http://HOST:PORT/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEndpoint {
    host: String,
    port: u16,
    path: String,
}

/// Why nothing can be sent to an address.
#[derive(Debug, thiserror::Error)]
#[error("'{address}' is no address of a collector: {problem}; it has the form http://HOST:4318")]
pub struct UnusableEndpoint {
    address: String,
    problem: &'static str,
}

impl TraceEndpoint {
    /// The endpoint below the address of a collector, to which `/v1/traces` is added.
    pub fn below(address: &str) -> Result<Self, UnusableEndpoint> {
        Self::exactly(&format!("{}/v1/traces", address.trim_end_matches('/')))
    }

    /// The endpoint at an address, as it is.
    pub fn exactly(address: &str) -> Result<Self, UnusableEndpoint> {
        let unusable = |problem| UnusableEndpoint { address: address.to_owned(), problem };
        let uri = Uri::from_str(address).map_err(|_| unusable("it is no URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(unusable(
                    "https is not supported, send to a collector on this machine",
                ));
            }
            _ => return Err(unusable("it does not begin with http://")),
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| unusable("it has no host"))?;
        Ok(Self {
            // Sockets take IPv6 addresses without the brackets that URLs have.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: uri.path().to_owned(),
        })
    }
}

/// The thread that sends spans. Dropping it sends what is left, within a few seconds.
#[derive(Debug)]
pub struct Exporter {
    tracer: Arc<Tracer>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts the thread. Spans have the name of the service, and are counted in `metrics`.
    pub fn start(
        endpoint: TraceEndpoint,
        service: String,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        // Shown from the start, not from the first loss.
        for outcome in ["exported", "dropped"] {
            metrics.trace_spans(outcome, 0);
        }
        let tracer = Arc::new(Tracer::new(Arc::clone(&metrics)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let own = Arc::clone(&tracer);
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(move || {
            while let Some(spans) = own.next_batch() {
                let body = otlp::request(&service, &spans).to_string();
                // The timer has to be made where the runtime is.
                let sent = runtime
                    .block_on(async { tokio::time::timeout(SENDING, post(&endpoint, body)).await });
                let outcome = match sent {
                    Ok(Ok(true)) => "exported",
                    _ => "dropped",
                };
                metrics.trace_spans(outcome, spans.len());
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
}

/// Why a batch was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Connection(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Header(#[from] axum::http::Error),
}

/// Sends a batch; whether it was accepted.
async fn post(endpoint: &TraceEndpoint, body: String) -> Result<bool, SendError> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(endpoint.path.as_str())
        .header(header::HOST, format!("{}:{}", endpoint.host, endpoint.port))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(Full::new(Bytes::from(body)))?;
    let response = sender.send_request(request).await?;
    connection.abort();
    Ok(response.status().is_success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_collector_is_completed() {
        let expected = |port, path: &str| TraceEndpoint {
            host: "collector".to_owned(),
            port,
            path: path.to_owned(),
        };
        let below = |address| TraceEndpoint::below(address).unwrap();
        assert_eq!(below("http://collector:4318"), expected(4318, "/v1/traces"));
        assert_eq!(below("http://collector/otel/"), expected(80, "/otel/v1/traces"));
        let exactly = TraceEndpoint::exactly("http://collector:1/x").unwrap();
        assert_eq!(exactly, expected(1, "/x"));
        assert_eq!(TraceEndpoint::below("http://[::1]:4318").unwrap().host, "::1");
        for wrong in ["collector:4318", "https://collector", "http://", ""] {
            assert!(TraceEndpoint::below(wrong).is_err(), "{wrong}");
        }
    }
}
