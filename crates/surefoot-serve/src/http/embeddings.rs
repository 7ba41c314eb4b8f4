//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::fields::Fields;
use super::inputs::inputs;
use super::posted::Posted;
use super::stream::check_tokens;
use super::tokenize::Special;
use crate::engine::EngineError;

pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    Posted { body, room, working: _working }: Posted,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    app.check_model(&fields.needed_text("model")?)?;
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
    fields.without("dimensions", |_| false)?;
    fields.finish()?;
    drop(body);
    let shape = app.engine.shape();
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
    let heard = app.engine.embed(texts, app.deadline())?;
    let mut data = Vec::with_capacity(heard.len());
    for (index, heard) in heard.into_iter().enumerate() {
        let vector = heard.await.unwrap_or(Err(EngineError::Closed))?;
        let embedding = match packed {
            true => Vector::Packed(base64(&little_endian(&vector))),
            false => Vector::Plain(vector),
        };
        data.push(Embedding { object: "embedding", index, embedding });
    }
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    let model = &app.settings.name;
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

/// Base64 with padding, as RFC 4648 has it.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for letter in 0..4 {
            if letter <= three.len() {
                text.push(LETTERS[(bits >> (18 - 6 * letter) & 63) as usize] as char);
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&little_endian(&[1.0, -2.5])), "AACAPwAAIMA=");
    }
}
