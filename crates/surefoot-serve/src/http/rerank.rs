//! `POST /v1/rerank`, as Cohere, Jina and vLLM have it: documents in the order of how well they fit a query.
//!
//! There is no cross-encoder here: the score is the cosine of the embeddings of query and document, which the
//! answer says in `method`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::App;
use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::inputs::Input;
use super::request_body::RequestBody;
use super::stream::check_tokens;
use super::tokenize::Special;
use crate::engine::EngineError;

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

pub(super) async fn rerank(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working: _working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    let model = app.model(&fields.needed_text("model")?)?;
    let limits = app.text_limits();
    let query = fields.needed_text("query")?;
    let documents = documents(fields.needed("documents")?, limits.inputs)?;
    let top = fields.count("top_n", 1..=1 << 20)?.unwrap_or(usize::MAX);
    let returns_documents = fields.flag("return_documents")?;
    fields.finish()?;
    drop(body);
    limits.check_text("query", query.len())?;
    for document in &documents {
        limits.check_text("documents", document.len())?;
    }
    let texts: Vec<Input> =
        std::iter::once(query).chain(documents.iter().cloned()).map(Input::Text).collect();
    let tokenizer = Some(app.texts()?.as_ref());
    let texts =
        app.tokenizing.tokens(tokenizer, texts, "documents", Special::Added, limits).await?;
    let most = app.engine.capacity().text_tokens;
    let mut tokens = 0;
    for text in &texts {
        check_tokens(text, app.engine.vocab(), "documents")?;
        if text.len() > most {
            let message = format!("a text has {} tokens; this model takes {most}", text.len());
            return Err(ApiError::invalid(message)
                .code("context_length_exceeded")
                .param("documents"));
        }
        tokens += text.len();
    }
    drop(room);
    let mut vectors = Vec::with_capacity(texts.len());
    for heard in app.engine.embed(texts, model.adapter, app.deadline())? {
        vectors.push(heard.await.unwrap_or(Err(EngineError::Closed))?);
    }
    let query = vectors.remove(0);
    let scores: Vec<f64> = vectors.iter().map(|vector| cosine(&query, vector)).collect();
    let results = order(&scores)
        .into_iter()
        .take(top)
        .map(|index| RankedDocument {
            index,
            relevance_score: scores[index],
            document: returns_documents.then(|| DocumentText { text: documents[index].clone() }),
        })
        .collect();
    let reranked = Reranked {
        id: app.id("rerank"),
        object: "rerank",
        model: &model.name,
        method: "cosine of embeddings",
        results,
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    };
    Ok(Json(reranked).into_response())
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
