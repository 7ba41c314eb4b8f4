//! The routes of the server: the live page, the stream of events, and the page as a file.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event as Sse, KeepAlive, Sse as Stream};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use surefoot_core::journal::Line;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::history::{History, Reader};
use crate::JournalPage;
use crate::chunk::Chunk;
use crate::journal::write_live;

/// Events per message: enough for speed, few enough for a page to stay responsive.
const MESSAGE: usize = 5_000;
/// How often the server looks for new events.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// How long a page may take to close the stream after the end.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone)]
struct Shared {
    history: Arc<History>,
    title: Arc<str>,
    /// Distinguishes two runs on the same port.
    instance: u64,
}

pub(super) fn routes(history: Arc<History>, title: String) -> Router {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // A number that JavaScript holds exactly.
    let instance = since.as_micros() as u64;
    let shared = Shared { history, title: title.into(), instance };
    Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/report.html", get(report))
        .layer(middleware::from_fn(only_loopback))
        .with_state(shared)
}

/// Rejects requests with a host name other than loopback.
async fn only_loopback(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let name = host.map(|host| host.rsplit_once(':').map_or(host, |(name, _)| name));
    if !matches!(name, Some("127.0.0.1" | "localhost")) {
        return (StatusCode::FORBIDDEN, "only for this machine: use 127.0.0.1\n").into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

async fn page(State(shared): State<Shared>) -> Response {
    let mut html = Vec::new();
    match write_live(&mut html, &shared.title, "live") {
        Ok(()) => Html(html).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The run so far as a page that can be saved.
async fn report(State(shared): State<Shared>) -> Response {
    let made = tokio::task::spawn_blocking(move || {
        let mut page = JournalPage::new(&*shared.title);
        for event in shared.history.since(0, usize::MAX).events {
            page.add(&Line::Event(event.as_ref().clone()));
        }
        let mut html = Vec::new();
        page.write(&mut html).map(|()| html)
    });
    match made.await {
        Ok(Ok(html)) => Html(html).into_response(),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made\n").into_response(),
    }
}

async fn events(State(shared): State<Shared>) -> Response {
    // One message waits while the next is made: a page that doesn't read stops its feeder here,
    // and nothing else.
    let (sender, receiver) = mpsc::channel(1);
    let reader = shared.history.join();
    tokio::spawn(feed(shared, sender, reader));
    Stream::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()).into_response()
}

type Message = Result<Sse, Infallible>;

/// Sends the past events and then new ones, until the run ends or the page closes the stream.
async fn feed(shared: Shared, sender: mpsc::Sender<Message>, reader: Reader) {
    let hello = Sse::default().event("hello").data(format!("{{\"instance\":{}}}", shared.instance));
    let mut open = sender.send(Ok(hello)).await.is_ok();
    let mut position = 0;
    while open {
        // Read before the events: what is recorded in between is sent in the next round.
        let has_ended = shared.history.has_ended();
        let new = shared.history.since(position, MESSAGE);
        if new.events.is_empty() {
            if has_ended {
                let _ = sender.send(Ok(Sse::default().event("end").data("{}"))).await;
                break;
            }
            tokio::select! {
                () = shared.history.ended_within(POLL_INTERVAL) => {}
                () = sender.closed() => break,
            }
            continue;
        }
        position = new.number + new.events.len() as u64;
        let mut chunk = Chunk::of(new.number, new.events.iter().map(AsRef::as_ref));
        chunk.lost = new.lost;
        let Ok(text) = serde_json::to_string(&chunk) else { break };
        open = sender.send(Ok(Sse::default().event("chunk").data(text))).await.is_ok();
    }
    // A page closes the stream when it receives the end.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, sender.closed()).await;
    drop(reader);
}
