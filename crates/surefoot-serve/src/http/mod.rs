//! The server: OpenAI's endpoints over HTTP/1.1.
//!
//! A request is read whole, within a limit, checked, and handed to the [`Engine`]; its handler
//! only waits for what the engine says. When a client goes away its handler is dropped, which
//! the engine sees. Draining: new requests are refused, those that were accepted are answered,
//! then [`serve`] returns.

mod access;
mod answer;
mod answer_end;
mod answer_identity;
mod body_room;
mod call_reader;
mod chat;
mod completions;
mod connections;
mod cors;
mod embeddings;
mod error;
mod fields;
mod format;
mod gateway;
mod inputs;
mod messages;
mod request_body;
mod request_log;
mod rerank;
mod responses;
mod sampling;
mod stream;
mod text_stream;
mod tokenize;
mod tokens;
mod tools;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use surefoot::journal::Journal;
use surefoot_models::generate::text::Texts;
use tokio::net::TcpListener;

pub use access::{Keys, UnusableKeys};
pub use connections::ConnectionLimits;
pub use cors::{Origins, UnusableOrigin};
pub use error::ApiError;
pub use gateway::{ModelGateway, ProcessGateway, serve_models, serve_process};

use answer_identity::AnswerIdentity;
use format::Constraints;
use inputs::InputLimits;
use request_body::Bodies;
use request_log::{RequestLog, RequestRecord};
use tokenize::TokenizerPool;

use crate::chat::{ChatError, Template};
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::trace::Tracer;

/// What a server lets its clients do.
#[derive(Debug)]
pub struct ServerSettings {
    /// What the model is called.
    pub name: String,
    /// What the adapters of the engine are called, in their order.
    pub adapters: Vec<String>,
    /// Who may ask.
    pub keys: Keys,
    /// The largest request, in bytes.
    pub max_body: usize,
    /// The most tokens that one request may generate.
    pub max_tokens: usize,
    /// The longest that a request may take.
    pub timeout: Duration,
    /// Origins whose pages may ask from a browser.
    pub origins: Origins,
    /// How many connections may be open, and for how long they may be silent.
    pub connections: ConnectionLimits,
    /// Where the times of each request are told.
    pub journal: Journal,
    /// What is told of the spans of requests, if they are traced.
    pub tracer: Option<Arc<Tracer>>,
}

/// What all requests share.
pub struct App {
    engine: Engine,
    texts: Option<Arc<Texts>>,
    template: Result<Option<Template>, ChatError>,
    settings: ServerSettings,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    bodies: Bodies,
    tokenizing: TokenizerPool,
    constraints: Constraints,
    /// Requests that were read and are not answered to the end.
    working: Arc<AtomicUsize>,
    requests: Arc<RequestLog>,
    created: u64,
    next_id: AtomicU64,
}

/// The model that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServedModel {
    name: String,
    /// The number of its adapter.
    adapter: Option<usize>,
}

/// A request that was read and is not answered to the end.
struct Working {
    count: Arc<AtomicUsize>,
    record: Option<Arc<RequestRecord>>,
    identity: AnswerIdentity,
}

impl Working {
    /// The request is understood: this model, and so many tokens that it is given.
    fn understood(&self, model: &ServedModel, input_tokens: usize) {
        if let Some(record) = &self.record {
            record.understood(&model.name, input_tokens);
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // Told before whoever waits for the last request goes on.
        self.record = None;
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl App {
    /// A server of one model. Without `texts` it accepts token ids only. Without a `template`
    /// chats are refused; if the model's template could not be used, the refusal says why.
    pub fn new(
        engine: Engine,
        texts: Option<Texts>,
        template: Result<Option<Template>, ChatError>,
        settings: ServerSettings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let requests = Arc::new(RequestLog {
            journal: settings.journal.clone(),
            tracer: settings.tracer.clone(),
            runner: Arc::clone(engine.runner()),
        });
        let mut texts = texts;
        if let (Some(texts), Ok(Some(template))) = (&mut texts, &template) {
            // Where calls are marked by special tokens, these are how calls are found.
            let style = template.call_style();
            texts.show(&[&style.marker, &style.end_marker]);
        }
        Self {
            engine,
            requests,
            bodies: Bodies::new(settings.max_body, LONGEST_WAIT_FOR_ROOM.min(settings.timeout)),
            tokenizing: TokenizerPool::new(),
            constraints: Constraints::default(),
            working: Arc::default(),
            texts: texts.map(Arc::new),
            template,
            settings,
            metrics,
            draining: AtomicBool::new(false),
            created: now(),
            next_id: AtomicU64::new(1),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether a sequence or text was answered.
    pub fn has_answered(&self) -> bool {
        self.metrics.counts().finished > 0
    }

    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.settings.timeout)
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    fn working(&self, record: Option<Arc<RequestRecord>>, identity: AnswerIdentity) -> Working {
        self.working.fetch_add(1, Ordering::AcqRel);
        Working { count: Arc::clone(&self.working), record, identity }
    }

    /// Done once nothing is worked on for a while: what was said by then has arrived, unless a
    /// client takes nothing.
    async fn done(&self) {
        let mut idle_since = Instant::now();
        while idle_since.elapsed() < LAST_WORDS {
            if self.working.load(Ordering::Acquire) > 0 {
                idle_since = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A number for one answer or request.
    fn number(&self) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{:x}{number:06x}", self.created)
    }

    fn texts(&self) -> Result<&Arc<Texts>, ApiError> {
        self.texts.as_ref().ok_or_else(|| {
            ApiError::invalid("this model has no tokenizer.json, so there is no text to give")
        })
    }

    /// What a request to generate may hold.
    fn prompt_limits(&self) -> InputLimits {
        self.limits(self.engine.capacity().context)
    }

    /// What a request to embed may hold.
    fn text_limits(&self) -> InputLimits {
        self.limits(self.engine.capacity().text_tokens)
    }

    fn limits(&self, tokens: usize) -> InputLimits {
        let bytes = tokenize::most_bytes(self.texts.as_deref(), tokens);
        InputLimits { inputs: self.engine.capacity().queue, tokens, bytes }
    }

    /// The chat template, or the refusal of a chat.
    fn template(&self) -> Result<&Template, ApiError> {
        let why = match &self.template {
            Ok(Some(template)) => return Ok(template),
            Ok(None) => "this model has no chat template".to_owned(),
            Err(error) => format!("this model's chat template can't be used: {error}"),
        };
        let message =
            format!("{why}; use /v1/completions, or start the server with --chat-template");
        Err(ApiError::invalid(message).code("no_chat_template"))
    }

    fn check_generates(&self) -> Result<(), ApiError> {
        if self.engine.decodes() {
            return Ok(());
        }
        let is_cross_encoder = self.engine.classification_head().is_some_and(|h| h.labels() == 1);
        let (what, path) = match is_cross_encoder {
            true => ("a cross-encoder", "/v1/rerank"),
            false => ("an encoder", "/v1/embeddings"),
        };
        let name = &self.settings.name;
        let message = format!("'{name}' is {what}, which can't generate text: use {path}");
        Err(ApiError::invalid(message).code("unsupported_model").param("model"))
    }

    /// The model that is asked for: the one that is here, or that with one of its adapters.
    fn model(&self, name: &str) -> Result<ServedModel, ApiError> {
        let adapter = self.settings.adapters.iter().position(|adapter| adapter == name);
        if adapter.is_some() || name == self.settings.name {
            return Ok(ServedModel { name: name.to_owned(), adapter });
        }
        let message = match self.settings.adapters.as_slice() {
            [] => format!("the model '{name}' does not exist here; '{}' does", self.settings.name),
            adapters => format!(
                "the model '{name}' does not exist here; these do: '{}', '{}'",
                self.settings.name,
                adapters.join("', '")
            ),
        };
        Err(ApiError::not_found(message).code("model_not_found").param("model"))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Serves until `stop` is done, then drains.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let draining = Arc::clone(&app);
    let (drained, drain) = tokio::sync::oneshot::channel();
    let stop = async move {
        stop.await;
        draining.draining.store(true, Ordering::Release);
        let _ = drained.send(());
    };
    let limits = app.settings.connections;
    let serving = connections::serve(listener, router(Arc::clone(&app)), limits, stop);
    // A client that never finishes its request, or takes no answer, can't hold the server up.
    let given_up = async {
        if drain.await.is_ok() {
            app.done().await;
        }
    };
    tokio::select! {
        ended = serving => ended,
        () = given_up => Ok(()),
    }
}

/// How long the body of a request may wait for room.
const LONGEST_WAIT_FOR_ROOM: Duration = Duration::from_secs(30);
/// How long an answer may take to arrive once it was given.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The routes.
pub fn router(app: Arc<App>) -> Router {
    let max_body = app.settings.max_body;
    let cors = app.settings.origins.layer();
    Router::new()
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/responses", post(responses::responses))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .fallback(async || ApiError::not_found("there is no such path; see /v1/models"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), admit))
        .layer(DefaultBodyLimit::max(max_body))
        // Outermost: a browser asks before it sends a key.
        .layer(cors)
        .with_state(app)
}

/// The header that names a request, in both directions.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest name of a request that is taken from a client.
const LONGEST_ID: usize = 128;

/// The name of a request: its own, if it has one that can be written to a log, or one with a new number.
fn request_id(request: &Request, new: impl FnOnce() -> String) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID).filter(|id| {
        let id = id.as_bytes();
        !id.is_empty() && id.len() <= LONGEST_ID && id.iter().all(u8::is_ascii_graphic)
    });
    match given {
        Some(id) => id.clone(),
        // Hexadecimal digits are a header's value.
        None => HeaderValue::from_str(&format!("req-{}", new()))
            .unwrap_or_else(|_| HeaderValue::from_static("req")),
    }
}

/// What happens to every request: its name, keys, draining, the limit of time, and counting.
async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(&request, || app.number());
    let path = known(request.uri().path());
    let record = app.requests.begin(path, id.to_str().unwrap_or_default(), request.headers());
    if let Some(record) = &record {
        request.extensions_mut().insert(Arc::clone(record));
    }
    let limit = app.settings.timeout.saturating_add(Duration::from_secs(1));
    let is_probe = matches!(path, "/health" | "/live" | "/ready");
    let mut response = if !is_probe && !app.settings.keys.allow(request.headers()) {
        ApiError::unauthorized().into_response()
    } else if app.is_draining() && !matches!(path, "/metrics" | "/live") {
        ApiError::draining().into_response()
    } else {
        match tokio::time::timeout(limit, next.run(request)).await {
            Ok(response) => response,
            Err(_) => ApiError::expired(limit).into_response(),
        }
    };
    response.headers_mut().insert(REQUEST_ID, id);
    if let Some(record) = record {
        record.answered(response.status().as_u16());
    }
    app.metrics.answered(path, response.status().as_u16());
    if !is_stream(&response) {
        app.metrics.took(path, begun.elapsed());
    }
    response
}

/// Whether the answer has only begun.
fn is_stream(response: &Response) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
}

/// The path under which a request is counted in the metrics: clients can't add new ones.
fn known(path: &str) -> &'static str {
    match path {
        "/v1/embeddings" => "/v1/embeddings",
        "/v1/completions" => "/v1/completions",
        "/v1/chat/completions" => "/v1/chat/completions",
        "/tokenize" => "/tokenize",
        "/detokenize" => "/detokenize",
        "/metrics" => "/metrics",
        "/health" => "/health",
        "/live" => "/live",
        "/ready" => "/ready",
        "/v1/rerank" => "/v1/rerank",
        "/v1/responses" => "/v1/responses",
        path if path.starts_with("/v1/models") => "/v1/models",
        _ => "other",
    }
}

fn about(app: &App, model: &str) -> serde_json::Value {
    let base = &app.settings.name;
    let mut about = json!({
        "id": model,
        "object": "model",
        "created": app.created,
        "owned_by": "surefoot",
        "max_model_len": app.engine.capacity().context,
    });
    if model != base {
        // As vLLM lists adapters.
        about["parent"] = json!(base);
    }
    about
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let names = std::iter::once(&app.settings.name).chain(&app.settings.adapters);
    let data: Vec<_> = names.map(|name| about(&app, name)).collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|_| ApiError::not_found("a model's name is UTF-8"))?;
    let model = app.model(&name)?;
    Ok(Json(about(&app, &model.name)).into_response())
}

async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    app.engine.measure();
    let text = app
        .metrics
        .text()
        .map_err(|error| ApiError::internal(format!("the metrics can't be written: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    can_work(&app)?;
    Ok(Json(json!({
        "status": "ok",
        "model": app.settings.name,
        "device": app.engine.device(),
    }))
    .into_response())
}

/// Whether this process can still answer, or has to be replaced: for a liveness probe. A server that
/// drains is alive.
async fn live(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    can_work(&app)?;
    Ok(Json(json!({"status": "live"})).into_response())
}

/// Whether new requests should be sent here: for a readiness probe and for load balancers. Not while
/// the server drains, and not while the queue is full.
async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    can_work(&app)?;
    let (waiting, room) = (app.engine.waiting(), app.engine.capacity().queue);
    if waiting >= room {
        return Err(ApiError::unavailable(format!(
            "{waiting} of {room} places in the queue are taken"
        ))
        .code("queue_full"));
    }
    Ok(Json(json!({
        "status": "ready",
        "model": app.settings.name,
        "device": app.engine.device(),
        "queue": {"waiting": waiting, "room": room},
    }))
    .into_response())
}

fn can_work(app: &App) -> Result<(), ApiError> {
    app.engine.check_health().map_err(|fault| ApiError::unavailable(fault.root_cause().to_owned()))
}
