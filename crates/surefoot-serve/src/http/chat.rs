//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::App;
use super::answer::Form;
use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::format;
use super::inputs::Input;
use super::messages::messages;
use super::request_body::RequestBody;
use super::sampling::GenerationParameters;
use super::stream::{self, Ask};
use super::tokenize::Special;
use super::tools::{AskedTools, ToolNotation};

/// The most alternatives to a token.
const MAX_LOGPROBS: usize = 20;

/// `chat_template_kwargs`, as vLLM has it: variables of the template.
pub(super) fn template_variables(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let variables = match fields.take(NAME)? {
        None => return Ok(Map::new()),
        Some(Value::Object(variables)) => variables,
        Some(_) => return Err(mistyped(NAME, "an object")),
    };
    for key in ["messages", "tools"] {
        if variables.contains_key(key) {
            let message = format!("'{NAME}' can't hold '{key}', which is given beside it");
            return Err(ApiError::invalid(message).param(NAME));
        }
    }
    Ok(variables)
}

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    let model = app.model(&fields.needed_text("model")?)?;
    app.check_generates()?;
    let limits = app.prompt_limits();
    let messages = messages(fields.needed("messages")?, limits)?;
    let names = ["max_tokens", "max_completion_tokens"];
    let answering = GenerationParameters::take(
        &mut fields,
        &names,
        1..=app.settings.max_tokens,
        working.identity.seed,
    )?;
    let format = format::asked(&mut fields)?;
    let tools = AskedTools::take(&mut fields, ToolNotation::Chat)?;
    let variables = template_variables(&mut fields)?;
    let rated = fields.flag("logprobs")?;
    let top = fields.count("top_logprobs", 0..=MAX_LOGPROBS)?;
    if top.is_some() && !rated {
        let message = "'top_logprobs' means something only with 'logprobs': true";
        return Err(ApiError::invalid(message).param("top_logprobs"));
    }
    let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.without("functions", empty)?;
    fields.without("modalities", |value| *value == json!(["text"]))?;
    fields.without_all(&[
        "audio",
        "prediction",
        "reasoning_effort",
        "verbosity",
        "web_search_options",
    ])?;
    fields.finish()?;
    drop(body);
    let template = app.template()?;
    let offered = tools.as_ref().map_or(&[][..], |tools| &tools.tools);
    let prompt = template
        .prompt_with_variables(&messages, offered, &variables)
        .map_err(|error| ApiError::invalid(error.to_string()).param("messages"))?;
    drop(messages);
    let call_style = tools.as_ref().map(|_| Arc::clone(template.call_style()));
    let format = AskedTools::format_of(tools.as_ref(), format, template.call_style());
    limits.check_text("messages", prompt.len())?;
    let prompts = app
        .tokenizing
        .tokens(Some(app.texts()?), vec![Input::Text(prompt)], "messages", Special::Written, limits)
        .await?;
    let ask = Ask {
        model,
        form: Form::Chat,
        prompt_field: "messages",
        prompts,
        echoes: Vec::new(),
        rates_prompt: false,
        answering,
        logprobs: rated.then(|| top.unwrap_or(0)),
        format,
        call_style,
        usual_tokens: app.settings.max_tokens,
    };
    drop(room);
    stream::answer(app, ask, working).await
}
