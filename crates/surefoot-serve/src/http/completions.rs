//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::App;
use super::answer::Form;
use super::error::ApiError;
use super::fields::Fields;
use super::format;
use super::inputs::{Input, inputs};
use super::request_body::RequestBody;
use super::sampling::GenerationParameters;
use super::stream::{self, Ask};
use super::tokenize::Special;

/// As many tokens as OpenAI gives if a request doesn't say.
const USUAL: usize = 16;
/// The most alternatives to a token.
const MAX_LOGPROBS: usize = 20;

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    let model = app.model(&fields.needed_text("model")?)?;
    app.check_generates()?;
    let limits = app.prompt_limits();
    let prompts = inputs("prompt", fields.needed("prompt")?, limits)?;
    let answering = GenerationParameters::take(
        &mut fields,
        &["max_tokens"],
        0..=app.settings.max_tokens,
        working.identity.seed,
    )?;
    let logprobs = fields.count("logprobs", 0..=MAX_LOGPROBS)?;
    let echo = fields.flag("echo")?;
    let format = format::asked(&mut fields)?;
    fields.without("suffix", |value| value == "")?;
    fields.without("best_of", |value| *value == json!(answering.choices))?;
    fields.finish()?;
    drop(body);
    let generates = answering.max_tokens != Some(0);
    if !generates && !echo {
        let message = "'max_tokens' is 0, which means something only with 'echo': true";
        return Err(ApiError::invalid(message).param("max_tokens"));
    }
    let texts = app.texts()?;
    let mut echoes = Vec::new();
    if echo {
        for prompt in &prompts {
            echoes.push(match prompt {
                Input::Text(text) => text.clone(),
                Input::Tokens(tokens) => {
                    stream::check_tokens(tokens, app.engine.vocab(), "prompt")?;
                    texts.decode(tokens).map_err(crate::engine::EngineError::from)?
                }
            });
        }
    }
    let prompts =
        app.tokenizing.tokens(Some(texts), prompts, "prompt", Special::Added, limits).await?;
    let ask = Ask {
        model,
        form: Form::Text,
        prompt_field: "prompt",
        prompts,
        echoes,
        rates_prompt: echo && (logprobs.is_some() || !generates),
        answering,
        logprobs,
        format,
        call_style: None,
        usual_tokens: USUAL.min(app.settings.max_tokens),
    };
    drop(room);
    stream::answer(app, ask, working).await
}
