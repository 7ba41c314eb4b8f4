//! Sends a request to a process, and once more to the process after it where that one ends before its answer is whole.
//!
//! A client notices a pause only. An answer that is one document is sent on when all of it is here. A stream is sent on
//! as it comes; if it breaks, the next process answers from the beginning, and the client gets what it has not got yet
//! ([`SentEvents`]). Both processes give the same answer, since the random seed, the name and the time of the answer come
//! with the request ([`AnswerIdentity`]). Where they don't (a GPU may add up in another order), the stream ends with an
//! error instead of text that does not belong together.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::response;
use axum::http::{HeaderMap, Method, header, request};
use axum::response::Response;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use super::sent_events::{EventSplitter, EventUse, SentEvents, error_code, is_passing};
use crate::http::body_room::HeldRoom;
use crate::http::error::{ApiError, DEVICE_FAULT};

/// How often a request is sent to processes that end before they have answered it. One that ends every process it meets must not go
/// on for ever, nor as often as makes a supervisor give up.
const TRIES: u32 = 3;
/// How often it is looked whether there is a process.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a request that a process did not answer waits for the next process. One that can't work any more ends by then.
const NEXT_PROCESS: Duration = Duration::from_secs(2);
/// How long a client may take nothing of a stream.
const STALLED: Duration = Duration::from_secs(60);
/// Pieces of an answer that wait for a slow client before the process does.
const BUFFERED: usize = 8;

/// What answers requests, and may be replaced by another process at any time.
pub(in crate::http) trait Upstream: Send + Sync + 'static {
    /// Held while a request is answered.
    type Hold: Send + 'static;

    /// A connection to the process that is there now.
    fn connect(&self)
    -> impl Future<Output = Result<(TcpStream, Self::Hold), NoConnection>> + Send;

    /// The number of the process that a request meets now.
    fn process(&self) -> u64;

    /// Done when no process will follow.
    fn ended(&self) -> impl Future<Output = ()> + Send;
}

/// Why there is no connection.
#[derive(Debug)]
pub(in crate::http) enum NoConnection {
    /// A process has ended, and the next one is not there yet.
    NotThere,
    /// There will be none.
    Refused(ApiError),
}

/// A request that can be sent several times.
pub(in crate::http) struct RelayedRequest {
    pub(super) parts: request::Parts,
    pub(super) body: Bytes,
    /// The room of the body, until its answer begins.
    pub(super) room: Option<HeldRoom>,
    /// Where bodies are kept once their streams have begun.
    pub(super) kept: Arc<KeptBodies>,
    /// When its answer has to have begun.
    pub(super) until: Instant,
    /// The time that it has.
    pub(super) timeout: Duration,
}

/// The bodies of requests whose streams go on: they may have to be sent again.
#[derive(Debug, Default)]
pub(in crate::http) struct KeptBodies(AtomicUsize);

/// The bytes of all of them together. A body for which there is no room is not kept, and its stream ends with its process.
const MOST_KEPT: usize = 32 << 20;

/// A body that is kept.
struct KeptBody {
    all: Arc<KeptBodies>,
    bytes: usize,
}

impl KeptBodies {
    fn keep(self: &Arc<Self>, bytes: usize) -> Option<KeptBody> {
        let fits = |kept: usize| Some(kept + bytes).filter(|kept| *kept <= MOST_KEPT);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(KeptBody { all: Arc::clone(self), bytes })
    }
}

impl Drop for KeptBody {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// An answer that has come so far.
enum Begun<H> {
    Whole(Response),
    Stream(response::Parts, OpenStream<H>),
}

/// A stream that is being heard, with what keeps it going.
struct OpenStream<H> {
    body: Incoming,
    _sender: SendRequest<Full<Bytes>>,
    _hold: H,
}

/// How a try has failed.
enum Failure {
    /// With an answer, which the client gets if it was the last try.
    Answered(Response),
    Broken(String),
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Why a stream ends for now.
enum StreamEnd {
    /// The client has all, or is gone.
    Done,
    /// The process failed, with this event if it could still say so.
    Failed(Option<Vec<u8>>),
    /// The second process answers something else.
    Differs,
}

/// Sends a request on.
pub(in crate::http) async fn relay<U: Upstream>(
    upstream: U,
    request: RelayedRequest,
) -> Result<Response, ApiError> {
    let mut tries = Tries { upstream, request, process: 0, failed: 0 };
    match tries.begin(None).await? {
        Begun::Whole(response) => Ok(response),
        Begun::Stream(parts, stream) => {
            let (sender, pieces) = channel(BUFFERED);
            // What others may need is given back: nobody knows how long the client takes.
            tries.request.room = None;
            let kept = tries.request.kept.keep(tries.request.body.len());
            if kept.is_none() {
                (tries.request.body, tries.failed) = (Bytes::new(), TRIES);
            }
            tokio::spawn(async move {
                let _kept = kept;
                tokio::select! {
                    () = tries.tell(stream, &sender) => {}
                    () = sender.closed() => {}
                }
            });
            let pieces = Body::from_stream(ReceiverStream::new(pieces));
            Ok(Response::from_parts(parts, pieces))
        }
    }
}

/// The tries to get one request answered.
struct Tries<U> {
    upstream: U,
    request: RelayedRequest,
    /// The process of the last try.
    process: u64,
    failed: u32,
}

impl<U: Upstream> Tries<U> {
    /// Tries until an answer has begun. `failure` is that of the try before, if there was one.
    async fn begin(&mut self, failure: Option<Failure>) -> Result<Begun<U::Hold>, ApiError> {
        let mut failure = failure;
        loop {
            if failure.is_some() {
                self.failed += 1;
                if self.failed >= TRIES || Instant::now() >= self.request.until {
                    return self.given_up(failure);
                }
                self.next_process().await;
            }
            let until = self.request.until.into();
            let connected = tokio::time::timeout_at(until, self.connected()).await;
            let (stream, hold) = match connected {
                Ok(Ok(connected)) => connected,
                // What the last process said tells more.
                Ok(Err(_)) if failure.is_some() => return self.given_up(failure),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(ApiError::expired(self.request.timeout)),
            };
            // The process keeps to the limit too, and knows more about it.
            let late = until + Duration::from_secs(1);
            self.process = self.upstream.process();
            match tokio::time::timeout_at(late, self.exchange(stream, hold))
                .await
                .map_err(|_| ApiError::expired(self.request.timeout))?
            {
                Ok(begun) => return Ok(begun),
                Err(last) => failure = Some(last),
            }
        }
    }

    fn given_up(&self, failure: Option<Failure>) -> Result<Begun<U::Hold>, ApiError> {
        match failure {
            Some(Failure::Answered(response)) => Ok(Begun::Whole(response)),
            Some(Failure::Broken(problem)) => Err(unanswered(self.failed, &problem)),
            None => Err(unanswered(self.failed, "no process was there")),
        }
    }

    /// Waits for the process after the one that failed, if it comes soon: otherwise the same one may work again.
    async fn next_process(&self) {
        let begun = Instant::now();
        tokio::time::sleep(LOOK_EVERY).await;
        while self.upstream.process() == self.process && begun.elapsed() < NEXT_PROCESS {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.upstream.ended() => return,
            }
        }
    }

    /// A connection, as soon as there is a process.
    async fn connected(&self) -> Result<(TcpStream, U::Hold), ApiError> {
        loop {
            match self.upstream.connect().await {
                Ok(connected) => return Ok(connected),
                Err(NoConnection::Refused(error)) => return Err(error),
                Err(NoConnection::NotThere) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Sends the request once. A whole answer is read to its end.
    async fn exchange(&self, stream: TcpStream, hold: U::Hold) -> Result<Begun<U::Hold>, Failure> {
        let answering = async {
            let (sender, response) = send(stream, &self.request).await?;
            let (mut parts, body) = response.into_parts();
            without_hop(&mut parts.headers);
            // What the answer depends on besides is for the gateway to say.
            parts.headers.remove(header::VARY);
            if is_events(&parts.headers) {
                return Ok(Begun::Stream(parts, OpenStream { body, _sender: sender, _hold: hold }));
            }
            let body = body.collect().await?.to_bytes();
            let is_passing = parts.status.is_server_error()
                && self.request.parts.method == Method::POST
                && error_code(&body).is_some_and(|code| is_passing(&code));
            let response = Response::from_parts(parts, Body::from(body));
            match is_passing {
                true => Err(Failure::Answered(response)),
                false => Ok(Begun::Whole(response)),
            }
        };
        tokio::select! {
            answered = answering => answered,
            () = self.upstream.ended() => Err(Failure::Broken("the server ends".to_owned())),
        }
    }

    /// Sends a stream on to its end, from as many processes as that takes.
    async fn tell(&mut self, stream: OpenStream<U::Hold>, sender: &Pieces) {
        let (mut stream, mut sent) = (stream, SentEvents::default());
        loop {
            let event = match pass(stream, &mut sent, sender).await {
                StreamEnd::Done => return,
                StreamEnd::Differs => {
                    let message = "the process that answered has ended, and the next one does not give the same answer";
                    let error = ApiError::unavailable(message).code(DEVICE_FAULT);
                    return last_event(&error, sender).await;
                }
                StreamEnd::Failed(event) => event,
            };
            let failure = Failure::Broken("it ended in the midst of an answer".to_owned());
            stream = match self.begin(Some(failure)).await {
                Ok(Begun::Stream(_, stream)) => stream,
                // What the last process said of itself is more than that another could not be asked.
                Ok(Begun::Whole(_)) | Err(_) if event.is_some() => {
                    let _ = sender.send(Ok(event.unwrap_or_default().into())).await;
                    return;
                }
                Ok(Begun::Whole(response)) => {
                    let status = response.status();
                    let error = ApiError::unavailable(format!(
                        "the process that answered has ended, and the next one says {status}"
                    ));
                    return last_event(&error, sender).await;
                }
                Err(error) => return last_event(&error, sender).await,
            };
            sent.begin_again();
        }
    }
}

/// Where the pieces of an answer go.
type Pieces = Sender<Result<Bytes, Infallible>>;

/// Sends on what the client has not got yet.
async fn pass<H>(stream: OpenStream<H>, sent: &mut SentEvents, sender: &Pieces) -> StreamEnd {
    let mut stream = stream;
    let mut events = EventSplitter::default();
    loop {
        let piece = match stream.body.frame().await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(piece) => piece,
                Err(_) => continue,
            },
            Some(Err(_)) if !sent.is_complete() => return StreamEnd::Failed(None),
            None if !sent.has_caught_up() => return StreamEnd::Differs,
            Some(Err(_)) | None => {
                let rest = events.rest();
                if !rest.is_empty() {
                    let _ = sender.send(Ok(rest.into())).await;
                }
                return StreamEnd::Done;
            }
        };
        events.push(&piece);
        let mut fresh = Vec::new();
        let mut end = None;
        while let Some(event) = events.next() {
            match sent.hear(&event) {
                EventUse::Send => fresh.extend(event),
                EventUse::Skip => {}
                EventUse::Differs => end = Some(StreamEnd::Differs),
                EventUse::Failed => end = Some(StreamEnd::Failed(Some(event))),
            }
            if end.is_some() {
                break;
            }
        }
        if !fresh.is_empty() {
            let sent = tokio::time::timeout(STALLED, sender.send(Ok(fresh.into()))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return StreamEnd::Done;
            }
        }
        if let Some(end) = end {
            return end;
        }
    }
}

async fn last_event(error: &ApiError, sender: &Pieces) {
    // Who is gone needs no end.
    let _ = sender.send(Ok(format!("data: {}\n\n", error.body()).into())).await;
}

fn unanswered(tries: u32, problem: &str) -> ApiError {
    let message = format!("the request was sent {tries} times and not answered: {problem}");
    ApiError::unavailable(message).code(DEVICE_FAULT)
}

/// Sends a request over a connection of its own, and waits for the head of the answer.
async fn send(
    stream: TcpStream,
    request: &RelayedRequest,
) -> Result<(SendRequest<Full<Bytes>>, hyper::Response<Incoming>), hyper::Error> {
    // Without it a small request may wait for an acknowledgement; it is slower then.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut sent = Request::new(Full::new(request.body.clone()));
    *sent.method_mut() = request.parts.method.clone();
    *sent.uri_mut() = request.parts.uri.clone();
    *sent.headers_mut() = request.parts.headers.clone();
    let headers = sent.headers_mut();
    without_hop(headers);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::EXPECT);
    let response = sender.send_request(sent).await?;
    Ok((sender, response))
}

/// Removes the headers that are about one connection.
fn without_hop(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE] {
        headers.remove(name);
    }
}

fn is_events(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Processes that send what is written here, one after another, and end.
    struct Scripted(std::net::SocketAddr, AtomicUsize);

    impl Scripted {
        fn new(answers: Vec<Vec<u8>>) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(move || {
                for answer in answers {
                    let (mut stream, _) = listener.accept().unwrap();
                    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                    stream.write_all(&answer).unwrap();
                }
            });
            Self(address, AtomicUsize::new(0))
        }
    }

    impl Upstream for Scripted {
        type Hold = ();

        async fn connect(&self) -> Result<(TcpStream, ()), NoConnection> {
            let stream = TcpStream::connect(self.0).await;
            stream.map(|stream| (stream, ())).map_err(|_| NoConnection::NotThere)
        }

        /// Each try meets another one.
        fn process(&self) -> u64 {
            self.1.fetch_add(1, Ordering::Relaxed) as u64
        }

        async fn ended(&self) {
            std::future::pending().await
        }
    }

    fn request() -> RelayedRequest {
        let request = Request::post("/v1/completions").body(()).unwrap();
        RelayedRequest {
            parts: request.into_parts().0,
            body: Bytes::from_static(b"{}"),
            room: None,
            kept: Arc::default(),
            until: Instant::now() + Duration::from_secs(60),
            timeout: Duration::from_secs(60),
        }
    }

    /// The status and the body that a client gets if processes answer like this.
    async fn relayed(answers: Vec<Vec<u8>>) -> (StatusCode, String) {
        let response = match relay(Scripted::new(answers), request()).await {
            Ok(response) => response,
            Err(error) => axum::response::IntoResponse::into_response(error),
        };
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn document(status: &str, body: &str) -> Vec<u8> {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    /// A stream in pieces of at most `size` bytes.
    fn stream(body: &str, size: usize) -> Vec<u8> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut bytes = head.as_bytes().to_vec();
        for piece in body.as_bytes().chunks(size) {
            bytes.extend(format!("{:x}\r\n", piece.len()).into_bytes());
            bytes.extend(piece);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
        bytes
    }

    const EVENTS: &str = "data: {\"choices\":[{\"index\":0,\"text\":\"one\"}]}\n\n: \n\n\
        data: {\"choices\":[{\"index\":0,\"text\":\"two\"}]}\n\ndata: [DONE]\n\n";

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn wherever_a_process_stops_the_client_gets_each_byte_once() {
        let whole = document("200 OK", "{\"text\": \"one two\"}");
        let streamed = stream(EVENTS, 50);
        run(async {
            let mut tries = tokio::task::JoinSet::new();
            for (answer, expected) in [(whole, "{\"text\": \"one two\"}"), (streamed, EVENTS)] {
                for cut in 0..=answer.len() {
                    let answers = vec![answer[..cut].to_vec(), answer.clone()];
                    tries.spawn(async move {
                        // Comments keep a connection alive, and belong to no answer.
                        let (status, body) = relayed(answers).await;
                        let body = body.replace(": \n\n", "");
                        assert_eq!(status, StatusCode::OK, "{cut}");
                        assert_eq!(body, expected.replace(": \n\n", ""), "cut at {cut}");
                    });
                }
            }
            while let Some(done) = tries.join_next().await {
                done.unwrap();
            }
        });
    }

    #[test]
    fn another_answer_ends_the_stream_with_an_error() {
        run(async {
            let first = stream(EVENTS, 50);
            let second = stream(&EVENTS.replace("one", "ONE"), 50);
            let cut = first.len() - 30;
            let (_, body) = relayed(vec![first[..cut].to_vec(), second]).await;
            let events: Vec<&str> = body.split("\n\n").filter(|event| !event.is_empty()).collect();
            assert!(body.contains("one") && !body.contains("ONE"), "{body}");
            assert!(events.last().unwrap().contains("does not give the same answer"), "{body}");
            assert!(!body.contains("[DONE]"), "{body}");
        });
    }

    #[test]
    fn what_ends_every_process_is_given_up() {
        run(async {
            let (status, body) = relayed(vec![Vec::new(); TRIES as usize]).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(body.contains("sent 3 times and not answered"), "{body}");
            let fault = "{\"error\": {\"code\": \"device_fault\", \"message\": \"lost\"}}";
            let lost = document("503 Service Unavailable", fault);
            let (status, body) = relayed(vec![lost.clone(); TRIES as usize]).await;
            assert_eq!((status.as_u16(), body.as_str()), (503, fault), "the last one's own words");
            let failing = stream(&format!("data: {fault}\n\n"), 50);
            let (status, body) = relayed(vec![failing; TRIES as usize]).await;
            assert_eq!((status.as_u16(), body), (200, format!("data: {fault}\n\n")));
            // A process that is lost and one that is there.
            let (status, body) = relayed(vec![lost, document("200 OK", "{}")]).await;
            assert_eq!((status.as_u16(), body.as_str()), (200, "{}"));
        });
    }

    #[test]
    fn errors_of_the_request_are_sent_on_at_once() {
        run(async {
            for (status, code) in
                [("400 Bad Request", "device_fault"), ("500 Internal Server Error", "not_finite")]
            {
                let body = format!("{{\"error\": {{\"code\": \"{code}\"}}}}");
                let (told, answer) = relayed(vec![document(status, &body)]).await;
                assert_eq!((told.as_str(), answer), (&status[..3], body));
            }
        });
    }
}
