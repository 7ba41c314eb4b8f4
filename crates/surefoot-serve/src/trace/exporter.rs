//! Sends spans to a collector, in batches, from a thread of its own.
//!
//! A batch that a collector does not take for now (it can't be reached, or answers 429, 502, 503 or 504) is sent again, a few times
//! and not while the program ends; then its spans are dropped and counted.

use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode, Uri, header};
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
/// How long to wait before a batch is sent again: once for each of these. Spans that come meanwhile wait, as many as a tracer keeps.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// Where traces are sent: `http://HOST:PORT/PATH`, and the headers that go with them.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceEndpoint {
    host: String,
    port: u16,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Headers may hold keys, which no log should.
impl std::fmt::Debug for TraceEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "http://{}:{}{} with {names:?}", self.host, self.port, self.path)
    }
}

/// Why headers can't be sent. What they hold is not told: it may be a key.
#[derive(Debug, thiserror::Error)]
#[error(
    "header {number} of those for a collector can't be sent: {problem}; they have the form name=value,name=value"
)]
pub struct UnusableHeaders {
    number: usize,
    problem: &'static str,
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
            headers: Vec::new(),
        })
    }

    /// Sends these headers too, written as in `OTEL_EXPORTER_OTLP_HEADERS`: `name=value,name=value`, where values may have
    /// `%` and two digits for a byte.
    pub fn with_headers(mut self, text: &str) -> Result<Self, UnusableHeaders> {
        for (at, header) in text.split(',').map(str::trim).enumerate() {
            if header.is_empty() {
                continue;
            }
            let unusable = |problem| UnusableHeaders { number: at + 1, problem };
            let (name, value) = header.split_once('=').ok_or_else(|| unusable("it has no '='"))?;
            let name = HeaderName::from_str(name.trim())
                .map_err(|_| unusable("its name is none of a header"))?;
            let value: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
            let mut value = HeaderValue::from_bytes(&value)
                .map_err(|_| unusable("its value is none of a header"))?;
            value.set_sensitive(true);
            self.headers.push((name, value));
        }
        Ok(self)
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
                let body = Bytes::from(otlp::request(&service, &spans).to_string());
                let outcome = match runtime.block_on(own.send(&endpoint, &body)) {
                    true => "exported",
                    false => "dropped",
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

    /// Sends a batch, again if it was not taken for now; whether it was accepted.
    async fn send(&self, endpoint: &TraceEndpoint, body: &Bytes) -> bool {
        let mut pauses = PAUSES.into_iter();
        loop {
            let answer = tokio::time::timeout(SENDING, post(endpoint, body.clone())).await;
            let may_come = match answer {
                Ok(Ok(status)) if status.is_success() => return true,
                Ok(Ok(status)) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
                Ok(Err(_)) => true,
                // A collector that does not answer may have taken it.
                Err(_) => false,
            };
            let Some(pause) = pauses.next().filter(|_| may_come) else { return false };
            if self.closes_within(pause) {
                return false;
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
enum SendError {
    #[error(transparent)]
    Connection(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Header(#[from] axum::http::Error),
}

/// Sends a batch once.
async fn post(endpoint: &TraceEndpoint, body: Bytes) -> Result<StatusCode, SendError> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut request = Request::post(endpoint.path.as_str())
        .header(header::HOST, format!("{}:{}", endpoint.host, endpoint.port))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in &endpoint.headers {
        request = request.header(name, value);
    }
    let response = sender.send_request(request.body(Full::new(body))?).await?;
    connection.abort();
    Ok(response.status())
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
            headers: Vec::new(),
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
    #[test]
    fn headers_are_read_as_opentelemetry_writes_them_and_not_shown() {
        let endpoint = TraceEndpoint::below("http://collector:4318").unwrap();
        let with = endpoint.with_headers("x-key=a%20secret%3D, Authorization=Basic abc=,").unwrap();
        let all: Vec<_> =
            with.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(all, [("x-key", &b"a secret="[..]), ("authorization", b"Basic abc=")]);
        let shown = format!("{with:?}");
        assert!(shown.contains("x-key") && !shown.contains("secret"), "{shown}");
        for wrong in ["no value", "na me=x", "x=%0a", "a=b,=c"] {
            let endpoint = TraceEndpoint::below("http://collector").unwrap();
            assert!(endpoint.with_headers(wrong).is_err(), "{wrong}");
        }
    }
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let cases: [(&'static [u16], bool); 4] =
            [(&[200], true), (&[503, 429, 200], true), (&[503, 503, 503], false), (&[400], false)];
        for (statuses, accepted) in cases {
            let (address, heads) = collector(statuses);
            let endpoint =
                TraceEndpoint::below(&address).unwrap().with_headers("x-key=one").unwrap();
            let tracer = Tracer::new(Arc::default());
            let sent = runtime.block_on(tracer.send(&endpoint, &Bytes::from_static(b"{}")));
            assert_eq!(sent, accepted, "{statuses:?}");
            let heads = heads.join().unwrap();
            assert_eq!(heads.len(), statuses.len());
            assert!(heads.iter().all(|head| head.contains("x-key: one\r\n")), "{heads:?}");
        }
        // Whoever ends does not wait for a collector.
        let (address, heads) = collector(&[503]);
        let tracer = Tracer::new(Arc::default());
        tracer.close();
        let endpoint = TraceEndpoint::below(&address).unwrap();
        assert!(!runtime.block_on(tracer.send(&endpoint, &Bytes::from_static(b"{}"))));
        assert_eq!(heads.join().unwrap().len(), 1);
    }
}
