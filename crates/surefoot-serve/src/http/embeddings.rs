//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::fields::Fields;
use super::inputs::inputs;
use super::request_body::RequestBody;
use super::stream::check_tokens;
use super::tokenize::Special;
use crate::engine::EngineError;

pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    let model = app.model(&fields.needed_text("model")?)?;
    let limits = app.text_limits();
    let inputs = inputs("input", fields.needed("input")?, limits)?;
    let packed = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("'encoding_format' is '{other}'; it can be float or base64");
            return Err(ApiError::invalid(message).param("encoding_format"));
        }
    };
    let dimensions = fields.count("dimensions", 1..=1 << 20)?;
    fields.finish()?;
    drop(body);
    let shape = app.engine.capacity();
    let tokenizer = app.texts.as_deref();
    let texts = app.tokenizing.tokens(tokenizer, inputs, "input", Special::Added, limits).await?;
    let mut tokens = 0;
    for text in &texts {
        check_tokens(text, app.engine.vocab(), "input")?;
        if text.len() > shape.text_tokens {
            return Err(ApiError::invalid(format!(
                "a text has {} tokens; this model takes {}",
                text.len(),
                shape.text_tokens
            ))
            .code("context_length_exceeded")
            .param("input"));
        }
        tokens += text.len();
    }
    drop(room);
    working.understood(&model, tokens);
    let heard = app.engine.embed(texts, model.adapter, app.deadline())?;
    let mut data = Vec::with_capacity(heard.len());
    for (index, heard) in heard.into_iter().enumerate() {
        let mut vector = heard.await.unwrap_or(Err(EngineError::Closed))?;
        if let Some(dimensions) = dimensions {
            shorten(&mut vector, dimensions)?;
        }
        let embedding = match packed {
            true => Vector::Packed(STANDARD.encode(little_endian(&vector))),
            false => Vector::Plain(vector),
        };
        data.push(Embedding { object: "embedding", index, embedding });
    }
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    let model = &model.name;
    Ok(Json(Embeddings { object: "list", data, model, usage }).into_response())
}

#[derive(Serialize)]
struct Embeddings<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Plain(Vec<f32>),
    Packed(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

fn little_endian(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Leaves the first `dimensions` numbers of a vector, with length 1, as models that were trained for
/// it (Matryoshka embeddings) expect it.
fn shorten(vector: &mut Vec<f32>, dimensions: usize) -> Result<(), ApiError> {
    if dimensions > vector.len() {
        let message = format!(
            "'dimensions' is {dimensions}; the vectors of this model have {}",
            vector.len()
        );
        return Err(ApiError::invalid(message).param("dimensions"));
    }
    vector.truncate(dimensions);
    let norm = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|number| *number = (f64::from(*number) / norm) as f32);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_are_little_endian_in_base64() {
        assert_eq!(STANDARD.encode(little_endian(&[1.0, -2.5])), "AACAPwAAIMA=");
    }

    #[test]
    fn a_shortened_vector_has_length_one_and_the_same_direction() {
        let mut vector = vec![3.0, 4.0, 12.0];
        shorten(&mut vector, 2).unwrap();
        assert_eq!(vector, [0.6, 0.8]);
        let error = shorten(&mut vector, 3).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "dimensions");
        let mut zero = vec![0.0, 0.0, 1.0];
        shorten(&mut zero, 2).unwrap();
        assert_eq!(zero, [0.0, 0.0], "a vector without a direction stays");
    }
}
