//! `POST /tokenize` and `POST /detokenize`, as vLLM has them: which tokens a text or a chat has, and which text
//! tokens stand for.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::App;
use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::inputs::{Input, inputs};
use super::messages::messages;
use super::request_body::RequestBody;
use super::stream::check_tokens;
use super::tokenize::Special;
use super::tools::{AskedTools, ToolNotation};
use crate::engine::EngineError;

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working: _working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    if let Some(model) = fields.text("model")? {
        app.model(&model)?;
    }
    let limits = app.prompt_limits();
    // What vLLM has, as far as it asks for what is done.
    fields.without("return_token_strs", |asked| *asked == json!(false))?;
    let either = "give either 'prompt' or 'messages'";
    let (param, text, special) = match (fields.raw("messages"), fields.raw("prompt")) {
        (Some(_), Some(_)) => return Err(ApiError::invalid(either).param("prompt")),
        (None, None) => return Err(ApiError::misshapen(either).param("prompt")),
        (Some(asked), None) => {
            fields.without("add_generation_prompt", |asked| *asked == json!(true))?;
            fields.without("continue_final_message", |asked| *asked == json!(false))?;
            fields.without("add_special_tokens", |asked| *asked == json!(false))?;
            let messages = messages(asked, limits)?;
            let tools = AskedTools::take(&mut fields, ToolNotation::Chat)?;
            let offered = tools.as_ref().map_or(&[][..], |tools| &tools.tools);
            let text = app
                .template()?
                .prompt_with_tools(&messages, offered)
                .map_err(|error| ApiError::invalid(error.to_string()).param("messages"))?;
            limits.check_text("messages", text.len())?;
            ("messages", vec![Input::Text(text)], Special::Written)
        }
        (None, Some(asked)) => {
            let text = inputs("prompt", asked, limits)?;
            let special = match fields.raw("add_special_tokens").map(|flag| flag.get()) {
                None | Some("true") => Special::Added,
                Some("false") => Special::Written,
                Some(_) => return Err(mistyped("add_special_tokens", "true or false")),
            };
            ("prompt", text, special)
        }
    };
    fields.finish()?;
    drop(body);
    let [Input::Text(_)] = text.as_slice() else { return Err(mistyped(param, "a text")) };
    let tokens = app.tokenizing.tokens(app.texts.as_deref(), text, param, special, limits).await?;
    drop(room);
    let tokens = tokens.concat();
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": app.engine.capacity().context,
        "tokens": tokens,
    }))
    .into_response())
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    RequestBody { body, room: _room, working: _working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    if let Some(model) = fields.text("model")? {
        app.model(&model)?;
    }
    let tokens = inputs("tokens", fields.needed("tokens")?, app.prompt_limits())?;
    fields.finish()?;
    let [Input::Tokens(tokens)] = tokens.as_slice() else {
        return Err(mistyped("tokens", "a list of token ids"));
    };
    check_tokens(tokens, app.engine.vocab(), "tokens")?;
    let prompt = app.texts()?.decode(tokens).map_err(EngineError::from)?;
    Ok(Json(json!({ "prompt": prompt })).into_response())
}
