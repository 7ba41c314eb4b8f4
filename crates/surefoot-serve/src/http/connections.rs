//! Accepts connections, limits how many are open, and closes those that send nothing.
//!
//! A connection is *waiting* until a whole request has arrived, *working* until the whole answer has
//! been sent, and then waiting again. One that waits for the head of a request for longer than
//! [`ConnectionLimits::header_timeout`] is closed; a body has a limit of its own. When as many are open
//! as allowed and another one arrives, the connection that has waited longest is closed to make room,
//! so clients that connect and send no whole request can't lock others out. Working connections are
//! never closed here; while all of them work, new ones stay in the operating system's queue.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// How long to wait before trying again when nothing can be accepted.
const RETRY: Duration = Duration::from_millis(50);
/// File descriptors kept for everything that is not a connection: model files that are opened
/// again, the journal, the event loop.
const RESERVED_FILES: usize = 16;
/// More connections than this help nobody: requests wait in the engine's queue anyway.
const MOST: usize = 8192;

/// How many connections may be open, and for how long they may be silent.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections that are open at once.
    pub connections: usize,
    /// How long a client may take to send the head of its next request.
    pub header_timeout: Duration,
}

impl ConnectionLimits {
    /// As many connections as the limit on open files leaves room for, each silent for at most
    /// 30 seconds.
    pub fn of_this_process() -> Self {
        let connections = file_limit().map_or(MOST, |limit| {
            limit.saturating_sub(open_files() + RESERVED_FILES).clamp(4, MOST)
        });
        Self { connections, header_timeout: Duration::from_secs(30) }
    }
}

impl ConnectionLimits {
    /// The same for a process that has another connection for each of its clients', and starts processes.
    pub fn of_this_gateway() -> Self {
        let limits = Self::of_this_process();
        let connections = limits.connections.saturating_sub(RESERVED_FILES) / 2;
        Self { connections: connections.clamp(4, MOST), ..limits }
    }
}

#[cfg(unix)]
fn file_limit() -> Option<usize> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current?;
    usize::try_from(limit).ok()
}

#[cfg(not(unix))]
fn file_limit() -> Option<usize> {
    None
}

/// The number of files this process has open, where the system tells.
fn open_files() -> usize {
    std::fs::read_dir("/dev/fd").map_or(RESERVED_FILES, Iterator::count)
}

/// All open connections, by number.
#[derive(Default)]
struct Connections(Mutex<HashMap<u64, Arc<Connection>>>);

/// One open connection.
struct Connection {
    /// Since when it waits; none while it works or is being closed.
    waiting_since: Mutex<Option<Instant>>,
    close: Notify,
}

impl Connection {
    fn new() -> Self {
        Self { waiting_since: Mutex::new(Some(Instant::now())), close: Notify::new() }
    }

    fn set_waiting_since(&self, since: Option<Instant>) {
        *self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn waiting_since(&self) -> Option<Instant> {
        *self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request and its answer. When this is dropped the connection waits for the next one.
struct Exchange(Arc<Connection>);

impl Exchange {
    /// The head of a request has arrived.
    fn new(connection: &Arc<Connection>) -> Self {
        connection.set_waiting_since(Some(Instant::now()));
        Self(Arc::clone(connection))
    }

    /// There is something to do, or an answer to send.
    fn works(&self) {
        self.0.set_waiting_since(None);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.set_waiting_since(Some(Instant::now()));
    }
}

/// The body of a request. Its connection works once all of it has arrived.
struct ArrivingBody {
    body: Incoming,
    exchange: Arc<Exchange>,
}

impl ArrivingBody {
    fn new(body: Incoming, exchange: &Arc<Exchange>) -> Self {
        let arriving = Self { body, exchange: Arc::clone(exchange) };
        arriving.look();
        arriving
    }

    fn look(&self) {
        if self.body.is_end_stream() {
            self.exchange.works();
        }
    }
}

impl HttpBody for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            // The end of a body whose length was not told.
            Poll::Ready(None) => self.exchange.works(),
            _ => self.look(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Connections {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_longest_waiting(&self) {
        let connections = self.lock();
        let waiting = connections.values().filter_map(|one| Some((one.waiting_since()?, one)));
        if let Some((_, longest)) = waiting.min_by_key(|(since, _)| *since) {
            longest.set_waiting_since(None);
            longest.close.notify_one();
        }
    }
}

/// Answers requests with `router` until `stop` is done and every connection has ended. After
/// `stop` no connection is accepted, and each one ends with the answer it is sending.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let connections = Arc::new(Connections::default());
    let (drain, draining) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    let mut number = 0_u64;
    'accepting: loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(_) => {
                // Most likely too many open files.
                connections.close_longest_waiting();
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        while tasks.len() >= limits.connections {
            connections.close_longest_waiting();
            tokio::select! {
                () = &mut stop => break 'accepting,
                _ = tasks.join_next() => {}
                () = tokio::time::sleep(RETRY) => {}
            }
        }
        number += 1;
        let connection = Arc::new(Connection::new());
        connections.lock().insert(number, Arc::clone(&connection));
        let (router, connections, draining) =
            (router.clone(), Arc::clone(&connections), draining.clone());
        tasks.spawn(async move {
            talk(stream, router, limits.header_timeout, &connection, draining).await;
            connections.lock().remove(&number);
        });
    }
    drop((listener, drain));
    while tasks.join_next().await.is_some() {}
    Ok(())
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// Serves one connection until it ends or is closed to make room.
async fn talk(
    stream: TcpStream,
    router: Router,
    header_timeout: Duration,
    connection: &Arc<Connection>,
    mut draining: watch::Receiver<()>,
) {
    // A token should leave when it is there; without this it may wait for the one after it.
    let _ = stream.set_nodelay(true);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let exchange = Arc::new(Exchange::new(connection));
        let answer = router.call(request.map(|body| ArrivingBody::new(body, &exchange)));
        async move {
            let answer = answer.await?;
            exchange.works();
            // The frames of the body keep `exchange` alive until the last one was sent.
            Ok::<_, Infallible>(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _exchange = &exchange;
                    frame
                }))
            }))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    // What a client did wrong on the way is its own affair; it sees that the connection ends.
    tokio::select! {
        _ = &mut serving => return,
        () = connection.close.notified() => return,
        // The sender is dropped when the server drains.
        _ = draining.changed() => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use super::*;
    use axum::routing::{get, post};
    use tokio::sync::oneshot;

    const ASK: &[u8] = b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";

    struct Started {
        address: SocketAddr,
        stop: oneshot::Sender<()>,
        serving: tokio::task::JoinHandle<io::Result<()>>,
        runtime: tokio::runtime::Runtime,
    }

    /// A server that takes half a second for an answer.
    fn started(connections: usize, header_timeout: Duration) -> Started {
        let slow = async || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            "answered"
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let read = async |body: Bytes| {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(body.as_ref(), b"{}");
            "read"
        };
        let router = Router::new().route("/slow", get(slow)).route("/read", post(read));
        let stopped = async move { drop(stopped.await) };
        let limits = ConnectionLimits { connections, header_timeout };
        let serving = runtime.spawn(serve(listener, router, limits, stopped));
        Started { address, stop, serving, runtime }
    }

    impl Started {
        fn connect(&self, bytes: &[u8]) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        }
    }

    /// What comes until the connection ends. A reset ends it too, silence does not.
    fn rest_of(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        if let Err(error) = stream.read_to_end(&mut bytes) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_connection_that_sends_no_head_is_closed_and_one_that_works_is_not() {
        let server = started(8, Duration::from_millis(100));
        let mut silent = server.connect(b"");
        let mut half = server.connect(b"GET /slow HTTP/1.1\r\nHo");
        let mut working = server.connect(ASK);
        assert_eq!(rest_of(&mut silent), "");
        assert!(!rest_of(&mut half).contains("200 OK"));
        assert!(rest_of(&mut working).ends_with("answered"));
    }

    #[test]
    fn when_all_places_are_taken_the_longest_silent_connection_gives_way() {
        let server = started(3, Duration::from_secs(600));
        let mut working = server.connect(ASK);
        // Until its head has arrived it is one of those that wait.
        std::thread::sleep(Duration::from_millis(100));
        let mut silent: Vec<_> = (0..20).map(|_| server.connect(b"")).collect();
        let mut late = server.connect(ASK);
        assert!(rest_of(&mut late).ends_with("answered"));
        assert!(rest_of(&mut working).ends_with("answered"), "it worked, so it stays");
        assert_eq!(rest_of(&mut silent[0]), "");
    }

    #[test]
    fn a_body_that_never_comes_is_no_work() {
        let server = started(3, Duration::from_secs(600));
        let head = b"POST /read HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{";
        let mut halves: Vec<_> = (0..20).map(|_| server.connect(head)).collect();
        let whole = b"POST /read HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
        let mut late = server.connect(whole);
        assert!(rest_of(&mut late).ends_with("read"));
        assert_eq!(rest_of(&mut halves[0]), "");
        // Who has sent all is working, also where the length was not told.
        let chunked = b"POST /read HTTP/1.1\r\nHost: here\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        let mut working = server.connect(chunked);
        std::thread::sleep(Duration::from_millis(100));
        let _others: Vec<_> = (0..20).map(|_| server.connect(head)).collect();
        assert!(rest_of(&mut working).ends_with("read"));
    }

    #[test]
    fn draining_sends_what_is_on_its_way_and_ends_what_waits() {
        let server = started(8, Duration::from_secs(600));
        let mut silent = server.connect(b"");
        let mut working = server.connect(ASK);
        std::thread::sleep(Duration::from_millis(100));
        server.stop.send(()).unwrap();
        assert!(rest_of(&mut working).ends_with("answered"));
        assert_eq!(rest_of(&mut silent), "");
        server.runtime.block_on(server.serving).unwrap().unwrap();
    }
}
