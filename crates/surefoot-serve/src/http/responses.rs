//! `POST /v1/responses`: OpenAI's newer interface for text. One answer, whole or as typed events; nothing is
//! stored, so an earlier response can't be referred to.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answer::Form;
use super::answer_end::AnswerEnd;
use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::format::{self, AskedFormat};
use super::inputs::{Input, InputLimits};
use super::request_body::RequestBody;
use super::sampling::GenerationParameters;
use super::stream::{self, Ask, Events, Gone};
use super::text_stream::TextStream;
use super::tokenize::Special;
use super::{App, now};
use crate::engine::GenerationStream;

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct TextSettings<'b> {
    #[serde(borrow)]
    format: Option<&'b RawValue>,
}

pub(super) async fn responses(
    State(app): State<Arc<App>>,
    RequestBody { body, room, working }: RequestBody,
) -> Result<Response, ApiError> {
    let mut fields = Fields::read(&body)?;
    let model = app.model(&fields.needed_text("model")?)?;
    app.check_generates()?;
    let limits = app.prompt_limits();
    let mut messages = messages(fields.needed("input")?, limits)?;
    if let Some(instructions) = fields.text("instructions")? {
        messages.insert(0, json!({"role": "system", "content": instructions}));
    }
    let most = app.settings.max_tokens;
    let answering = GenerationParameters::take(&mut fields, &["max_output_tokens"], 1..=most)?;
    if answering.choices != 1 {
        return Err(ApiError::invalid("'n' is not a parameter of this endpoint").param("n"));
    }
    let format = match fields.raw("text") {
        None => None,
        Some(raw) => text_format(raw)?,
    };
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.without("tools", is_empty)?;
    fields.without("include", is_empty)?;
    fields.without("tool_choice", |value| value == "none" || value == "auto")?;
    fields.without("truncation", |value| value == "disabled")?;
    fields.without("background", |value| *value == json!(false))?;
    // Calls of tools are not supported here, one at a time or several.
    fields.take("parallel_tool_calls")?;
    fields.finish()?;
    drop(body);
    let prompt = app
        .template()?
        .prompt(&messages)
        .map_err(|error| ApiError::invalid(error.to_string()).param("input"))?;
    limits.check_text("input", prompt.len())?;
    let prompt = vec![Input::Text(prompt)];
    let texts = Arc::clone(app.texts()?);
    let prompts =
        app.tokenizing.tokens(Some(&texts), prompt, "input", Special::Written, limits).await?;
    let ask = Ask {
        model,
        form: Form::Chat,
        prompts,
        echoes: Vec::new(),
        rates_prompt: false,
        answering,
        logprobs: None,
        format,
        call_style: None,
        usual_tokens: most,
    };
    drop(room);
    let mut heard = stream::begin(&app, &ask)?;
    let Some(heard) = heard.pop() else {
        return Err(ApiError::internal("the answer could not be begun"));
    };
    let written = Written {
        id: app.id("resp"),
        message: app.id("msg"),
        created: now(),
        model: ask.model.name.clone(),
        input_tokens: ask.prompts.iter().map(Vec::len).sum(),
        temperature: ask.answering.sampling.temperature,
    };
    if ask.answering.stream {
        let path = "/v1/responses";
        return Ok(stream::events(app, working, path, move |events| async move {
            written.stream(&texts, &ask.answering.stops, heard, &events).await
        }));
    }
    let mut speaker = TextStream::new(&texts, &ask.answering.stops, heard);
    let piece = speaker.whole().await?;
    let status = status(piece.end);
    Ok(Json(written.response(status, Some(&piece.text), speaker.count())).into_response())
}

/// How far a response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    InProgress,
    Completed,
    /// It was cut off for its length.
    Incomplete,
}

fn status(end: Option<AnswerEnd>) -> Status {
    match end {
        Some(AnswerEnd::Length) => Status::Incomplete,
        _ => Status::Completed,
    }
}

fn text_format(raw: &RawValue) -> Result<Option<AskedFormat>, ApiError> {
    let settings: TextSettings<'_> = serde_json::from_str(raw.get())
        .map_err(|_| mistyped("text", "an object with a 'format'"))?;
    match settings.format {
        None => Ok(None),
        Some(raw) => {
            let format = format::response_format(raw)?;
            Ok(format.map(|format| AskedFormat { format, param: "text" }))
        }
    }
}

/// The messages of `input`: a text, or a list of them.
fn messages(raw: &RawValue, limits: InputLimits) -> Result<Vec<Value>, ApiError> {
    const EXPECTED: &str = "a text or a list of messages";
    if raw.get().starts_with('"') {
        let text: String =
            serde_json::from_str(raw.get()).map_err(|_| mistyped("input", EXPECTED))?;
        limits.check_text("input", text.len())?;
        return Ok(vec![json!({"role": "user", "content": text})]);
    }
    let items: Vec<Item> =
        serde_json::from_str(raw.get()).map_err(|_| mistyped("input", EXPECTED))?;
    if items.is_empty() {
        return Err(ApiError::invalid("'input' is empty").param("input"));
    }
    let mut messages = Vec::with_capacity(items.len());
    let mut bytes = 0;
    for (number, item) in items.into_iter().enumerate() {
        let param = format!("input[{number}]");
        let refused =
            |message: String| ApiError::invalid(message).code("unsupported_content").param(&param);
        if let Some(kind) = item.kind.filter(|kind| kind != "message") {
            return Err(refused(format!("items of type '{kind}' are not supported; messages are")));
        }
        let role = item.role.unwrap_or_default();
        if !["system", "developer", "user", "assistant"].contains(&role.as_str()) {
            return Err(refused(format!("the role '{role}' is unknown")));
        }
        let mut text = String::new();
        match item.content {
            None => return Err(mistyped(&param, "a message with a 'content'")),
            Some(Content::Text(all)) => text = all,
            Some(Content::Parts(parts)) => {
                for part in parts {
                    match (part.kind.as_str(), part.text) {
                        ("input_text" | "output_text" | "text", Some(more)) => text.push_str(&more),
                        (kind, _) => {
                            return Err(refused(format!(
                                "content of type '{kind}' is not supported"
                            )));
                        }
                    }
                }
            }
        }
        bytes += text.len();
        limits.check_text("input", bytes)?;
        messages.push(json!({"role": role, "content": text}));
    }
    Ok(messages)
}

/// A response that is being written.
struct Written {
    id: String,
    message: String,
    created: u64,
    model: String,
    input_tokens: usize,
    temperature: f32,
}

impl Written {
    fn part(text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    }

    fn item(&self, status: Status, text: Option<&str>) -> Value {
        let content: Vec<Value> = text.into_iter().map(Self::part).collect();
        json!({"type": "message", "id": self.message, "status": status, "role": "assistant", "content": content})
    }

    fn response(&self, status: Status, text: Option<&str>, tokens: usize) -> Value {
        let output: Vec<Value> = text.map(|_| self.item(status, text)).into_iter().collect();
        let is_done = text.is_some();
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "error": null,
            "incomplete_details": (status == Status::Incomplete).then(|| json!({"reason": "max_output_tokens"})),
            "instructions": null,
            "metadata": {},
            "parallel_tool_calls": false,
            "temperature": self.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": null,
            "usage": is_done.then(|| json!({
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.input_tokens + tokens,
            })),
        })
    }

    async fn stream(
        &self,
        texts: &surefoot_models::generate::text::Texts,
        stops: &[String],
        heard: GenerationStream,
        events: &Events,
    ) -> Result<(), Gone> {
        let mut number = 0;
        let mut event = |kind: &str, mut body: Value| {
            body["type"] = kind.into();
            body["sequence_number"] = number.into();
            number += 1;
            (kind.to_owned(), body)
        };
        let place = || json!({"item_id": self.message, "output_index": 0, "content_index": 0});
        let with = |key: &str, value: Value| {
            let mut body = place();
            body[key] = value;
            body
        };
        let begun = self.response(Status::InProgress, None, 0);
        for (kind, body) in [
            event("response.created", json!({"response": begun})),
            event("response.in_progress", json!({"response": begun})),
            event(
                "response.output_item.added",
                json!({"output_index": 0, "item": self.item(Status::InProgress, None)}),
            ),
            event("response.content_part.added", with("part", Self::part(""))),
        ] {
            events.send_named(&kind, &body).await?;
        }
        let mut speaker = TextStream::new(texts, stops, heard);
        let mut text = String::new();
        let end = loop {
            let piece = match speaker.next().await {
                Ok(piece) => piece,
                Err(error) => {
                    let error = ApiError::from(error).body()["error"].clone();
                    let (kind, body) =
                        event("error", json!({"message": error["message"], "code": error["code"]}));
                    return events.send_named(&kind, &body).await;
                }
            };
            if !piece.text.is_empty() {
                text.push_str(&piece.text);
                let (kind, body) =
                    event("response.output_text.delta", with("delta", piece.text.into()));
                events.send_named(&kind, &body).await?;
            }
            if piece.end.is_some() {
                break piece.end;
            }
        };
        let status = status(end);
        let last =
            if status == Status::Completed { "response.completed" } else { "response.incomplete" };
        for (kind, body) in [
            event("response.output_text.done", with("text", text.clone().into())),
            event("response.content_part.done", with("part", Self::part(&text))),
            event(
                "response.output_item.done",
                json!({"output_index": 0, "item": self.item(status, Some(&text))}),
            ),
            event(last, json!({"response": self.response(status, Some(&text), speaker.count())})),
        ] {
            events.send_named(&kind, &body).await?;
        }
        Ok(())
    }
}
