//! The server in front of one process that answers, which its supervisor starts again when it ends.
//!
//! The supervisor owns both this server and the socket on which the process listens, so a request that arrives while
//! there is no process waits in the operating system's queue for the next one.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::relay::{NoConnection, Upstream, relay};
use super::{Gateway, admit};
use crate::http::error::ApiError;
use crate::http::{ServerSettings, connections};

/// How long the process may take to say how it is.
const PROBE: Duration = Duration::from_secs(2);
/// How long answers that were given may take to arrive once no process is left.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A server in front of one process.
#[derive(Debug)]
pub struct ProcessGateway {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    ended: watch::Sender<bool>,
    processes: AtomicU64,
}

impl ProcessGateway {
    /// A server in front of the process that answers at `address`. Of the settings, the name is not used.
    pub fn new(address: SocketAddr, settings: ServerSettings) -> Self {
        Self {
            gateway: Arc::new(Gateway::new(settings)),
            address,
            ended: watch::Sender::new(false),
            processes: AtomicU64::new(0),
        }
    }

    /// Says that a process is started.
    pub fn begin(&self) {
        self.processes.fetch_add(1, Ordering::Release);
    }

    /// Says that no process will follow the last one.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    async fn ended(&self) {
        // The sender is here.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

/// Serves until `stop` is done or no process is left ([`ProcessGateway::end`]); then what was accepted is answered.
pub async fn serve_process(
    listener: TcpListener,
    front: Arc<ProcessGateway>,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let stop = async {
        tokio::select! {
            () = stop => {}
            () = front.ended() => {}
        }
        front.gateway.drain();
    };
    let limits = front.gateway.settings.connections;
    let serving = connections::serve(listener, router(&front), limits, stop);
    tokio::select! {
        served = serving => served,
        () = async { front.ended().await; tokio::time::sleep(LAST_WORDS).await } => Ok(()),
    }
}

fn router(front: &Arc<ProcessGateway>) -> Router {
    let gateway = &front.gateway;
    Router::new()
        .route("/live", get(async || Json(json!({"status": "live"}))))
        .fallback(pass_on)
        .layer(middleware::from_fn_with_state(Arc::clone(gateway), admit))
        // Outermost: a browser asks before it sends a key.
        .layer(gateway.settings.origins.layer())
        .with_state(Arc::clone(front))
}

async fn pass_on(
    State(front): State<Arc<ProcessGateway>>,
    request: Request,
) -> Result<Response, ApiError> {
    let is_probe = matches!(request.uri().path(), "/health" | "/ready" | "/metrics");
    let request = front.gateway.read(request).await?;
    let relayed = relay(SupervisedProcess(Arc::clone(&front)), request);
    if !is_probe {
        return relayed.await;
    }
    // Whoever asks how the process is wants to know that it does not answer.
    tokio::time::timeout(PROBE, relayed).await.unwrap_or_else(|_| {
        let message = "the process that answers is being started, or does not answer";
        Err(ApiError::unavailable(message).code("not_ready"))
    })
}

/// The process of a gateway.
struct SupervisedProcess(Arc<ProcessGateway>);

impl Upstream for SupervisedProcess {
    type Hold = ();

    async fn connect(&self) -> Result<(TcpStream, ()), NoConnection> {
        if *self.0.ended.borrow() {
            return Err(NoConnection::Refused(ApiError::draining()));
        }
        let stream =
            TcpStream::connect(self.0.address).await.map_err(|_| NoConnection::NotThere)?;
        Ok((stream, ()))
    }

    fn process(&self) -> u64 {
        self.0.processes.load(Ordering::Acquire)
    }

    async fn ended(&self) {
        self.0.ended().await;
    }
}
