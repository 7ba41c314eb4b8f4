//! The server of several models: finds out which model a request asks for, waits until the
//! [pool](crate::model_pool) has loaded it, and passes the request on to it.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::header;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use serde_json::{Value, json};
use surefoot::journal::{Event, EventKind};
use tokio::net::{TcpListener, TcpStream};

use super::relay::{NoConnection, Upstream, relay};
use super::{Gateway, WORK, admit};
use crate::http::error::ApiError;
use crate::http::{ServerSettings, connections};
use crate::model_pool::{Lease, ModelPool, ModelState, ModelStatus, PoolError};

/// How often it is looked whether the models do something else.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// A server of the models of a pool.
#[derive(Debug)]
pub struct ModelGateway {
    pool: Arc<ModelPool>,
    gateway: Arc<Gateway>,
}

impl ModelGateway {
    /// A server of the models of a pool. The name in the settings is not used.
    pub fn new(pool: Arc<ModelPool>, settings: ServerSettings) -> Self {
        Self { pool, gateway: Arc::new(Gateway::new(settings)) }
    }

    /// The models.
    pub fn pool(&self) -> &Arc<ModelPool> {
        &self.pool
    }

    /// Whether a model has answered a request.
    pub fn has_answered(&self) -> bool {
        self.gateway.has_answered.load(Ordering::Relaxed)
    }

    /// The model whose process answers for a name: that of a model, or of one of its adapters (`MODEL:NAME`).
    fn process_of<'n>(&self, name: &'n str) -> &'n str {
        let adapter = self.gateway.settings.adapters.iter().any(|adapter| adapter == name);
        name.split_once(':').filter(|_| adapter).map_or(name, |(model, _)| model)
    }

    fn unknown(&self, name: &str) -> ApiError {
        let models = self.pool.status().into_iter().map(|model| model.name);
        let names: Vec<String> =
            models.chain(self.gateway.settings.adapters.iter().cloned()).collect();
        let message = format!("the model '{name}' does not exist here; {} do", names.join(", "));
        ApiError::not_found(message).code("model_not_found").param("model")
    }

    /// What is said of a name, which is the model's own or that of one of its adapters.
    fn about(&self, name: &str, model: &ModelStatus) -> Value {
        let mut about = json!({
            "id": name,
            "object": "model",
            "created": self.gateway.created,
            "owned_by": "surefoot",
            "state": model.state.to_string(),
            "memory_bytes": model.share,
            "requests": model.in_use,
            "waiting": model.waiting,
        });
        if name != model.name {
            about["parent"] = json!(model.name);
        }
        about
    }
}

/// Serves until `stop` is done, then drains. The models are left to [`ModelPool::close`].
pub async fn serve_models(
    listener: TcpListener,
    front: Arc<ModelGateway>,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let draining = Arc::clone(&front);
    let stop = async move {
        stop.await;
        draining.gateway.drain();
    };
    let telling = tokio::spawn(tell_models(Arc::clone(&front)));
    let served =
        connections::serve(listener, router(&front), front.gateway.settings.connections, stop)
            .await;
    telling.abort();
    served
}

/// Tells the journal what each model is doing, at the start and whenever that has changed.
async fn tell_models(front: Arc<ModelGateway>) {
    let mut told: Vec<ModelStatus> = Vec::new();
    loop {
        let status = front.pool.status();
        for (number, model) in status.iter().enumerate() {
            if told.get(number) != Some(model) {
                front.gateway.settings.journal.with(|| {
                    Event::new(EventKind::Note, "model")
                        .context("name", model.name.clone())
                        .context("state", model.state.to_string())
                        .context("requests", model.in_use)
                        .context("waiting", model.waiting)
                        .context("memory_bytes", model.share)
                        .context("loads", model.loads)
                        .context("evictions", model.evictions)
                });
            }
        }
        told = status;
        tokio::time::sleep(TELL_EVERY).await;
    }
}

fn router(front: &Arc<ModelGateway>) -> Router {
    let mut router = Router::new();
    for path in WORK {
        router = router.route(path, post(pass_on));
    }
    router
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/metrics", get(metrics))
        .route("/health", get(ready))
        .route("/live", get(async || Json(json!({"status": "live"}))))
        .route("/ready", get(ready))
        .fallback(async || ApiError::not_found("there is no such path; see /v1/models"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn_with_state(Arc::clone(&front.gateway), admit))
        .layer(front.gateway.settings.origins.layer())
        .with_state(Arc::clone(front))
}

#[derive(Deserialize)]
struct Asked<'b> {
    #[serde(borrow)]
    model: Option<Cow<'b, str>>,
}

/// Passes a request on to the model that it names.
async fn pass_on(
    State(front): State<Arc<ModelGateway>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request = front.gateway.read(request).await?;
    let asked: Asked<'_> = serde_json::from_slice(&request.body).map_err(|error| {
        ApiError::misshapen("the request is not a JSON object").because(&error.to_string())
    })?;
    let Some(name) = asked.model.map(Cow::into_owned) else {
        let names: Vec<String> = front.pool.status().into_iter().map(|model| model.name).collect();
        let message = format!("'model' is missing; it can be {}", names.join(", "));
        return Err(ApiError::invalid(message).param("model"));
    };
    let response = relay(ModelProcess { front: Arc::clone(&front), name }, request).await?;
    front.gateway.note_answer(&response);
    Ok(response)
}

/// The process of a model, which the pool starts when it is asked for.
struct ModelProcess {
    front: Arc<ModelGateway>,
    name: String,
}

impl Upstream for ModelProcess {
    /// The model stays loaded until its answer was sent on or nobody wants it any more.
    type Hold = Lease;

    async fn connect(&self) -> Result<(TcpStream, Lease), NoConnection> {
        let lease = self.front.pool.lease(self.front.process_of(&self.name)).await;
        let lease = lease.map_err(|error| NoConnection::Refused(refused(&self.front, error)))?;
        let stream =
            TcpStream::connect(lease.address()).await.map_err(|_| NoConnection::NotThere)?;
        Ok((stream, lease))
    }

    fn process(&self) -> u64 {
        self.front.pool.next_process(self.front.process_of(&self.name))
    }

    /// The pool closes when all requests have been answered.
    async fn ended(&self) {
        std::future::pending().await
    }
}

fn refused(front: &ModelGateway, error: PoolError) -> ApiError {
    match error {
        PoolError::Unknown(name) => front.unknown(&name),
        PoolError::Launch(error) => {
            ApiError::unavailable(error.to_string()).code("model_not_loaded")
        }
        PoolError::Closed => ApiError::draining(),
    }
}

async fn models(State(front): State<Arc<ModelGateway>>) -> Response {
    let mut data = Vec::new();
    for model in front.pool.status() {
        data.push(front.about(&model.name, &model));
        let adapters = front.gateway.settings.adapters.iter();
        for adapter in adapters.filter(|adapter| front.process_of(adapter) == model.name) {
            data.push(front.about(adapter, &model));
        }
    }
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn model(
    State(front): State<Arc<ModelGateway>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|_| ApiError::not_found("a model's name is UTF-8"))?;
    let status = front.pool.status();
    let found = status.iter().find(|model| model.name == front.process_of(&name));
    let found = found.ok_or_else(|| front.unknown(&name))?;
    Ok(Json(front.about(&name, found)).into_response())
}

/// Whether new requests should be sent here: any model can be loaded.
async fn ready(State(front): State<Arc<ModelGateway>>) -> Response {
    let models: serde_json::Map<String, Value> = front
        .pool
        .status()
        .into_iter()
        .map(|model| (model.name, model.state.to_string().into()))
        .collect();
    Json(json!({"status": "ready", "models": models})).into_response()
}

#[derive(Deserialize)]
struct MetricsQuery {
    model: Option<String>,
}

/// The metrics of the pool, or those of one model that is loaded.
async fn metrics(
    State(front): State<Arc<ModelGateway>>,
    Query(query): Query<MetricsQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Some(name) = query.model {
        let status = front.pool.status();
        let found = status.iter().find(|model| model.name == name);
        let found = found.ok_or_else(|| front.unknown(&name))?;
        if found.state != ModelState::Loaded {
            let message = format!("the model '{name}' is {}", found.state);
            return Err(ApiError::unavailable(message).code("model_not_loaded"));
        }
        let request = front.gateway.read(request).await?;
        return relay(ModelProcess { front: Arc::clone(&front), name }, request).await;
    }
    let text = text(&front.pool)
        .map_err(|error| ApiError::internal(format!("the metrics can't be written: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

fn text(pool: &ModelPool) -> Result<String, std::fmt::Error> {
    type OfModel = Family<[(&'static str, String); 1], Gauge>;
    let mut registry = Registry::default();
    let budget = Gauge::<i64>::default();
    budget.set(whole(pool.budget()));
    registry.register("surefoot_models_memory_budget_bytes", "Memory for all models", budget);
    let states = Family::<[(&'static str, String); 2], Gauge>::default();
    registry.register("surefoot_model_state", "1 for the state that a model is in", states.clone());
    let mut family = |name: &str, help: &str| {
        let family = OfModel::default();
        registry.register(name, help, family.clone());
        family
    };
    let memory = family("surefoot_model_memory_bytes", "Memory that a model may take");
    let requests = family("surefoot_model_requests", "Requests that a model works on");
    let loads = family("surefoot_model_loads", "How often a model was loaded");
    let failures = family("surefoot_model_load_failures", "How often loading a model failed");
    let evictions =
        family("surefoot_model_evictions", "How often a model was unloaded for another");
    for model in pool.status() {
        let label = [("model", model.name.clone())];
        states.get_or_create(&[("model", model.name), ("state", model.state.to_string())]).set(1);
        memory.get_or_create(&label).set(whole(model.share));
        requests.get_or_create(&label).set(model.in_use as i64);
        loads.get_or_create(&label).set(whole(model.loads));
        failures.get_or_create(&label).set(whole(model.failures));
        evictions.get_or_create(&label).set(whole(model.evictions));
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
