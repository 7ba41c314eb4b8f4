//! `POST /v1/rerank`, as Cohere, Jina and vLLM have it: documents in the order of how well they fit a query.
//!
//! A cross-encoder, which is a model that classifies texts with one label, reads the query and a document together
//! and gives their score. Any other model gives the cosine of the embeddings of query and document. The answer says
//! in `method` which it was.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use surefoot_models::classify::ScoreActivation;
use surefoot_models::generate::text::TokenPair;

use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::inputs::{Input, InputLimits};
use super::request_body::RequestBody;
use super::stream::check_tokens;
use super::tokenize::Special;
use super::{App, ServedModel};
use crate::engine::{EngineError, PendingVector};

/// A document: its text, or an object with one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object { text: String },
}

#[derive(Serialize)]
struct Reranked<'a> {
    id: String,
    object: &'static str,
    model: &'a str,
    method: &'static str,
    results: Vec<RankedDocument>,
    usage: Usage,
}

#[derive(Serialize)]
struct RankedDocument {
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

#[derive(Serialize)]
struct DocumentText {
    text: String,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// What is to be ordered.
struct RerankRequest {
    query: String,
    documents: Vec<String>,
    limits: InputLimits,
    /// Whether scores are the numbers of the label as they are.
    wants_raw: bool,
    /// The tokens that a pair is cut to, if it may be cut.
    cut_to: Option<usize>,
}

/// Scores in the order of the documents.
struct Scores {
    method: &'static str,
    scores: Vec<f64>,
    tokens: usize,
}

pub(super) async fn rerank(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    let model = app.model(&fields.needed_text("model")?)?;
    let limits = app.text_limits();
    let query = fields.long_text("query", limits)?;
    let query = query.ok_or_else(|| ApiError::misshapen("'query' is missing").param("query"))?;
    let documents = documents(fields.needed("documents")?, limits.inputs)?;
    let top = fields.count("top_n", 1..=1 << 20)?.unwrap_or(usize::MAX);
    let returns_documents = fields.flag("return_documents")?;
    let wants_raw = fields.flag("raw_scores")?;
    let cut_to = cut_to(&mut fields, limits.tokens)?;
    fields.finish()?;
    drop(body);
    for document in &documents {
        limits.check_text("documents", document.len())?;
    }
    let asked = RerankRequest { query, documents, limits, wants_raw, cut_to };
    let scores = match app.engine.classification_head().map(|head| head.labels()) {
        None => asked.by_embeddings(&app, &model).await?,
        Some(1) => asked.by_cross_encoder(&app, &model).await?,
        Some(labels) => {
            let message = format!(
                "'{}' classifies texts by {labels} labels; only a model with one label gives scores",
                model.name
            );
            return Err(ApiError::invalid(message).code("unsupported_model").param("model"));
        }
    };
    drop(room);
    working.understood(&model, scores.tokens);
    let documents = &asked.documents;
    let results = order(&scores.scores)
        .into_iter()
        .take(top)
        .map(|index| RankedDocument {
            index,
            relevance_score: scores.scores[index],
            document: returns_documents.then(|| DocumentText { text: documents[index].clone() }),
        })
        .collect();
    let reranked = Reranked {
        id: working.identity.id("rerank"),
        object: "rerank",
        model: &model.name,
        method: scores.method,
        results,
        usage: Usage { prompt_tokens: scores.tokens, total_tokens: scores.tokens },
    };
    Ok(Json(reranked).into_response())
}

impl RerankRequest {
    async fn by_embeddings(&self, app: &App, model: &ServedModel) -> Result<Scores, ApiError> {
        if self.wants_raw || self.cut_to.is_some() {
            let name = if self.wants_raw { "raw_scores" } else { "truncate_prompt_tokens" };
            let message = format!(
                "'{name}' means something with a cross-encoder only; '{}' gives the cosine of embeddings",
                model.name
            );
            return Err(ApiError::invalid(message).code("unsupported_parameter").param(name));
        }
        let texts: Vec<Input> = std::iter::once(&self.query)
            .chain(&self.documents)
            .map(|text| Input::Text(text.clone()))
            .collect();
        let tokenizer = Some(app.texts()?.as_ref());
        let limits = self.limits;
        let texts =
            app.tokenizing.tokens(tokenizer, texts, "documents", Special::Added, limits).await?;
        let mut tokens = 0;
        for text in &texts {
            check_tokens(text, app.engine.vocab(), "documents")?;
            check_length(text.len(), limits.tokens, "")?;
            tokens += text.len();
        }
        let heard = app.engine.embed(texts, model.adapter, app.deadline())?;
        let mut vectors = all(heard).await?;
        let query = vectors.remove(0);
        let scores = vectors.iter().map(|vector| cosine(&query, vector)).collect();
        Ok(Scores { method: "cosine of embeddings", scores, tokens })
    }

    async fn by_cross_encoder(&self, app: &App, model: &ServedModel) -> Result<Scores, ApiError> {
        let texts = Arc::clone(app.texts()?);
        let most = self.limits.tokens;
        let cut_to = self.cut_to.unwrap_or(usize::MAX);
        let pairs = app
            .tokenizing
            .in_turn(
                self.query.len() + self.documents.iter().map(String::len).sum::<usize>(),
                || {
                    let pair = |document: &String| texts.encode_pair(&self.query, document, cut_to);
                    self.documents.iter().map(pair).collect::<Result<Vec<_>, _>>()
                },
            )
            .await
            .map_err(|error| ApiError::invalid(error.to_string()).param("documents"))?;
        let pairs: Vec<TokenPair> = pairs.into_iter().map(|(pair, _)| pair).collect();
        let mut tokens = 0;
        for pair in &pairs {
            check_tokens(&pair.ids, app.engine.vocab(), "documents")?;
            let hint = ": shorten the texts, or cut them with \"truncate_prompt_tokens\": -1";
            check_length(pair.ids.len(), most, hint)?;
            tokens += pair.ids.len();
        }
        let activation = match app.engine.classification_head() {
            Some(head) if !self.wants_raw => head.score_activation,
            _ => ScoreActivation::Identity,
        };
        let heard = app.engine.classify(pairs, model.adapter, app.deadline())?;
        let numbers = all(heard).await?;
        let scores = numbers.iter().flatten().map(|number| f64::from(activation.score(*number)));
        let scores = scores.collect();
        Ok(Scores { method: "cross-encoder", scores, tokens })
    }
}

/// The vectors of all texts.
async fn all(heard: Vec<PendingVector>) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = Vec::with_capacity(heard.len());
    for heard in heard {
        vectors.push(heard.await.unwrap_or(Err(EngineError::Closed))?);
    }
    Ok(vectors)
}

/// `truncate_prompt_tokens`, as vLLM has it: -1 is as many as the model takes.
fn cut_to(fields: &mut Fields<'_>, most: usize) -> Result<Option<usize>, ApiError> {
    const NAME: &str = "truncate_prompt_tokens";
    let Some(value) = fields.take(NAME)? else { return Ok(None) };
    match value.as_i64() {
        Some(-1) => Ok(Some(most)),
        Some(tokens) => match usize::try_from(tokens) {
            Ok(tokens) if (8..=most).contains(&tokens) => Ok(Some(tokens)),
            _ => {
                let message = format!("'{NAME}' is {tokens}; it can be -1, or 8 to {most}");
                Err(ApiError::invalid(message).param(NAME))
            }
        },
        None => Err(mistyped(NAME, "a whole number")),
    }
}

fn check_length(tokens: usize, most: usize, hint: &str) -> Result<(), ApiError> {
    if tokens <= most {
        return Ok(());
    }
    let what = if hint.is_empty() { "a text has" } else { "a query and its document have" };
    let message = format!("{what} {tokens} tokens; this model takes {most}{hint}");
    Err(ApiError::invalid(message).code("context_length_exceeded").param("documents"))
}

fn documents(raw: &RawValue, most: usize) -> Result<Vec<String>, ApiError> {
    let list: Vec<Document> = serde_json::from_str(raw.get())
        .map_err(|_| mistyped("documents", "a list of texts, or of objects with a 'text'"))?;
    // The query is one more.
    if list.is_empty() || list.len() >= most {
        let message = format!("'documents' has {}; it can have 1 to {}", list.len(), most - 1);
        return Err(ApiError::invalid(message).param("documents"));
    }
    Ok(list
        .into_iter()
        .map(|document| match document {
            Document::Text(text) | Document::Object { text } => text,
        })
        .collect())
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

/// The places of the scores, highest first; of equal ones the earlier first.
fn order(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_ordered_by_the_angle_to_the_query() {
        let query = [1.0, 0.0];
        let scores: Vec<f64> = [[0.0, 1.0], [5.0, 0.1], [-1.0, 0.0], [0.0, 2.0]]
            .iter()
            .map(|v| cosine(&query, v))
            .collect();
        assert_eq!(order(&scores), [1, 0, 3, 2]);
        assert!((scores[2] + 1.0).abs() < 1e-9);
        assert_eq!(cosine(&query, &[0.0, 0.0]), 0.0);
    }
}
