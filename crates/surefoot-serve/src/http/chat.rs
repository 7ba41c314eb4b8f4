//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Form;
use super::error::ApiError;
use super::fields::{Input, mistyped};
use super::posted::Posted;
use super::sampling::Answering;
use super::stream::{self, Ask};
use super::{App, tokenized};

/// The most alternatives to a token.
const MAX_LOGPROBS: usize = 20;

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Posted { mut fields, room, working }: Posted,
) -> Result<Response, ApiError> {
    let Value::String(model) = fields.needed("model")? else {
        return Err(mistyped("model", "a text"));
    };
    app.check_model(&model)?;
    app.check_generates()?;
    let messages = messages(fields.needed("messages")?)?;
    let limits = ["max_tokens", "max_completion_tokens"];
    let answering = Answering::take(&mut fields, &limits, app.settings.max_tokens)?;
    let rated = fields.flag("logprobs")?;
    let top = fields.count("top_logprobs", 0..=MAX_LOGPROBS)?;
    if top.is_some() && !rated {
        let message = "'top_logprobs' means something only with 'logprobs': true";
        return Err(ApiError::invalid(message).param("top_logprobs"));
    }
    let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.without("tools", empty)?;
    fields.without("functions", empty)?;
    fields.without("tool_choice", |value| value == "none" || value == "auto")?;
    fields.without("response_format", |value| *value == json!({"type": "text"}))?;
    fields.without("modalities", |value| *value == json!(["text"]))?;
    fields.finish()?;
    let Some(template) = &app.template else {
        let message = "this model has no chat template: use /v1/completions, or start the server \
                       with --chat-template";
        return Err(ApiError::invalid(message).code("no_chat_template"));
    };
    let prompt = template
        .prompt(&messages)
        .map_err(|error| ApiError::invalid(error.to_string()).param("messages"))?;
    let texts = app.texts()?;
    let prompts =
        tokenized(vec![Input::Text(prompt)], "messages", |text| texts.encode_as_written(text))?;
    let ask = Ask {
        form: Form::Chat,
        prompts,
        echoes: Vec::new(),
        answering,
        logprobs: rated.then(|| top.unwrap_or(0)),
        usual_tokens: app.settings.max_tokens,
    };
    drop(room);
    stream::answer(app, ask, working).await
}

/// The messages as templates expect them: with content that is a text.
fn messages(value: Value) -> Result<Vec<Value>, ApiError> {
    let Value::Array(messages) = value else { return Err(mistyped("messages", "a list")) };
    if messages.is_empty() {
        return Err(ApiError::invalid("'messages' is empty").param("messages"));
    }
    let one = |(number, message): (usize, Value)| {
        let param = |field: &str| format!("messages[{number}]{field}");
        let Value::Object(mut message) = message else {
            return Err(mistyped(&param(""), "an object"));
        };
        if !message.get("role").is_some_and(Value::is_string) {
            return Err(mistyped(&param(".role"), "a text"));
        }
        let content = match message.remove("content") {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => text_of(parts, &param(".content"))?,
            None | Some(Value::Null) => String::new(),
            Some(_) => return Err(mistyped(&param(".content"), "a text or a list of parts")),
        };
        message.insert("content".to_owned(), Value::String(content));
        Ok(Value::Object(message))
    };
    messages.into_iter().enumerate().map(one).collect()
}

/// Parts of a message as one text; only text can be read.
fn text_of(parts: Vec<Value>, param: &str) -> Result<String, ApiError> {
    let mut text = String::new();
    for part in parts {
        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(more)) => text.push_str(more),
            (Some(kind), _) if kind != "text" => {
                return Err(ApiError::invalid(format!(
                    "content of type '{kind}' is not supported"
                ))
                .code("unsupported_content")
                .param(param));
            }
            _ => return Err(mistyped(param, "a text or a list of parts")),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_becomes_one_text() {
        let read = messages(json!([
            {"role": "system", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": null, "name": "kept"},
        ]))
        .unwrap();
        assert_eq!(read[0]["content"], "a");
        assert_eq!(read[1]["content"], "bc");
        assert_eq!(read[2], json!({"role": "assistant", "name": "kept", "content": ""}));
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_place() {
        for (value, param) in [
            (json!("hi"), "messages"),
            (json!([]), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "user", "content": 5}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"text": "x"}]}]), "messages[0].content"),
        ] {
            let error = messages(value.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }
}
