//! A server in front of processes that answer: of one that may be started again at any time ([`ProcessGateway`]), and of
//! several models ([`ModelGateway`]).
//!
//! A gateway takes the connections of clients, so these outlive the process. It checks keys, reads requests within the
//! limits on bodies, and sends them on ([`relay`]); what a request asks for is the business of the process.

mod models;
mod process;
mod relay;
mod sent_events;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

pub use models::{ModelGateway, serve_models};
pub use process::{ProcessGateway, serve_process};

use super::answer_identity::AnswerIdentity;
use super::error::ApiError;
use super::request_body::{Bodies, read_json};
use super::{LONGEST_WAIT_FOR_ROOM, REQUEST_ID, ServerSettings, now, request_id};
use relay::{KeptBodies, RelayedRequest};

/// The paths to which clients post what is to be answered.
const WORK: [&str; 7] = [
    "/v1/embeddings",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/rerank",
    "/tokenize",
    "/detokenize",
];

/// What all requests share.
#[derive(Debug)]
struct Gateway {
    settings: ServerSettings,
    bodies: Bodies,
    kept: Arc<KeptBodies>,
    draining: AtomicBool,
    has_answered: AtomicBool,
    created: u64,
    requests: AtomicU64,
}

impl Gateway {
    /// The name of a model in the settings is not used.
    fn new(settings: ServerSettings) -> Self {
        Self {
            bodies: Bodies::new(settings.max_body, LONGEST_WAIT_FOR_ROOM.min(settings.timeout)),
            kept: Arc::default(),
            settings,
            draining: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            created: now(),
            requests: AtomicU64::new(0),
        }
    }

    /// A number for a request or its answer.
    fn number(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{:x}{number:06x}", self.created)
    }

    /// Takes no more requests.
    fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Remembers that something was answered.
    fn note_answer(&self, response: &Response) {
        if response.status().is_success() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Reads a request, so that it can be sent on several times.
    async fn read(&self, request: Request) -> Result<RelayedRequest, ApiError> {
        let until = Instant::now() + self.settings.timeout;
        let (parts, body) = request.into_parts();
        if parts.method != Method::POST || !WORK.contains(&parts.uri.path()) {
            return Ok(self.relayed(parts, Bytes::new(), until));
        }
        let (body, room) = read_json(&self.bodies, &parts.headers, body).await?;
        let mut request = self.relayed(parts, body.into(), until);
        let headers = &mut request.parts.headers;
        AnswerIdentity::of_request(headers, || self.number()).write(headers);
        request.room = Some(room);
        Ok(request)
    }

    fn relayed(&self, parts: Parts, body: Bytes, until: Instant) -> RelayedRequest {
        RelayedRequest {
            parts,
            body,
            room: None,
            kept: Arc::clone(&self.kept),
            until,
            timeout: self.settings.timeout,
        }
    }
}

/// What happens to every request: its name, which the process uses too, keys and draining.
async fn admit(
    State(gateway): State<Arc<Gateway>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let id = request_id(&request, || gateway.number());
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let path = request.uri().path();
    let is_probe = matches!(path, "/health" | "/live" | "/ready");
    let mut response = if !is_probe && !gateway.settings.keys.allow(request.headers()) {
        ApiError::unauthorized().into_response()
    } else if gateway.draining.load(Ordering::Acquire) && !matches!(path, "/metrics" | "/live") {
        ApiError::draining().into_response()
    } else {
        next.run(request).await
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}
