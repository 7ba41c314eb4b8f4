//! `POST /v1/responses`: OpenAI's newer interface for text and calls of tools. One answer, whole or as typed
//! events; nothing is stored, so an earlier response can't be referred to: clients send its items again.

mod input_items;
mod output_items;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use surefoot_models::generate::text::Texts;

use super::App;
use super::answer::Form;
use super::answer_end::AnswerEnd;
use super::call_reader::{AnswerPart, CallReader};
use super::chat::template_variables;
use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::format::{self, AskedFormat};
use super::inputs::Input;
use super::request_body::RequestBody;
use super::sampling::GenerationParameters;
use super::stream::{self, Ask, Events, Gone};
use super::text_stream::{Piece, SpentTokens, TextStream};
use super::tokenize::Special;
use super::tools::{AskedTools, ToolNotation};
use crate::engine::{EngineError, GenerationStream};
use output_items::{NamedEvent, OutputItems};

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
    let mut messages = input_items::messages(fields.needed("input")?, limits)?;
    let instructions = fields.long_text("instructions", limits)?;
    if let Some(instructions) = &instructions {
        messages.insert(0, json!({"role": "system", "content": instructions}));
    }
    let most = app.settings.max_tokens;
    let answering = GenerationParameters::take(
        &mut fields,
        &["max_output_tokens"],
        1..=most,
        working.identity.seed,
    )?;
    if answering.choices != 1 {
        return Err(ApiError::invalid("'n' is not a parameter of this endpoint").param("n"));
    }
    let format = match fields.raw("text") {
        None => None,
        Some(raw) => text_format(raw)?,
    };
    let tools = AskedTools::take(&mut fields, ToolNotation::Responses)?;
    let variables = template_variables(&mut fields)?;
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.without("include", is_empty)?;
    fields.without("truncation", |value| value == "disabled")?;
    fields.without("background", |value| *value == json!(false))?;
    for key in ["previous_response_id", "conversation"] {
        if fields.raw(key).is_some() {
            let message = format!(
                "'{key}' is not supported by this server, which keeps no answers: send what was said before in 'input'"
            );
            return Err(ApiError::invalid(message).code("unsupported_parameter").param(key));
        }
    }
    fields.without_all(&["max_tool_calls", "prompt", "reasoning", "top_logprobs"])?;
    fields.finish()?;
    drop(body);
    let template = app.template()?;
    let offered = tools.as_ref().map_or(&[][..], |tools| &tools.tools);
    let prompt = template
        .prompt_with_variables(&messages, offered, &variables)
        .map_err(|error| ApiError::invalid(error.to_string()).param("input"))?;
    drop(messages);
    let call_style = tools.as_ref().map(|_| Arc::clone(template.call_style()));
    let format = AskedTools::format_of(tools.as_ref(), format, template.call_style());
    limits.check_text("input", prompt.len())?;
    let prompt = vec![Input::Text(prompt)];
    let texts = Arc::clone(app.texts()?);
    let prompts =
        app.tokenizing.tokens(Some(&texts), prompt, "input", Special::Written, limits).await?;
    let ask = Ask {
        model,
        form: Form::Chat,
        prompt_field: "input",
        prompts,
        echoes: Vec::new(),
        rates_prompt: false,
        answering,
        logprobs: None,
        format,
        call_style,
        usual_tokens: most,
    };
    drop(room);
    let mut heard = stream::begin(&app, &ask, &working)?;
    let Some(heard) = heard.pop() else {
        return Err(ApiError::internal("the answer could not be begun"));
    };
    let written = Written {
        id: working.identity.id("resp"),
        created: working.identity.created,
        model: ask.model.name.clone(),
        input_tokens: ask.prompts.iter().map(Vec::len).sum(),
        temperature: ask.answering.sampling.temperature,
        max_output_tokens: ask.answering.max_tokens,
        instructions,
        tools: tools.as_ref().map_or_else(|| json!([]), AskedTools::echoed),
        tool_choice: tools.as_ref().map_or_else(|| json!("none"), |tools| tools.choice.clone()),
        is_parallel: tools.as_ref().is_some_and(|tools| tools.is_parallel),
    };
    if ask.answering.stream {
        let path = "/v1/responses";
        return Ok(stream::events(app, working, path, move |events| async move {
            let answer = AnswerParts::new(&texts, &ask, heard);
            written.stream(answer, &events).await
        }));
    }
    let mut answer = AnswerParts::new(&texts, &ask, heard);
    let mut output = OutputItems::new(&written.id);
    loop {
        let (parts, end) = answer.next().await?;
        for part in parts {
            output.push(part);
        }
        if let Some(status) = end {
            output.end(status);
            let usage = Some(answer.text.spent());
            return Ok(Json(written.response(status, output.items(), usage)).into_response());
        }
    }
}

/// How far a response, or an item of it, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    InProgress,
    Completed,
    /// It was cut off for its length.
    Incomplete,
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

/// The parts of an answer as they come: text, and calls if there may be some.
struct AnswerParts<'a> {
    text: TextStream<'a>,
    calls: Option<CallReader>,
}

impl<'a> AnswerParts<'a> {
    fn new(texts: &'a Texts, ask: &'a Ask, heard: GenerationStream) -> Self {
        let text = TextStream::new(texts, &ask.answering.stops, heard);
        Self { text, calls: ask.call_style.as_ref().map(CallReader::new) }
    }

    /// Some more parts, and how the answer ended if it did.
    async fn next(&mut self) -> Result<(Vec<AnswerPart>, Option<Status>), EngineError> {
        let Piece { text, end, .. } = self.text.next().await?;
        let parts = match &mut self.calls {
            Some(reader) => reader.push(&text, end),
            None if text.is_empty() => Vec::new(),
            None => vec![AnswerPart::Content(text)],
        };
        let end = end.map(|end| self.calls.as_ref().map_or(end, |reader| reader.end(end)));
        let status = end.map(|end| match end {
            AnswerEnd::Length => Status::Incomplete,
            AnswerEnd::Stop | AnswerEnd::ToolCalls => Status::Completed,
        });
        Ok((parts, status))
    }
}

/// A response that is being written: what does not depend on the answer.
struct Written {
    id: String,
    created: u64,
    model: String,
    input_tokens: usize,
    temperature: f32,
    max_output_tokens: Option<usize>,
    instructions: Option<String>,
    tools: Value,
    tool_choice: Value,
    is_parallel: bool,
}

impl Written {
    /// The response with its items; `tokens` are known at its end.
    fn response(&self, status: Status, output: &[Value], tokens: Option<SpentTokens>) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "error": null,
            "incomplete_details": (status == Status::Incomplete).then(|| json!({"reason": "max_output_tokens"})),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": self.is_parallel,
            "previous_response_id": null,
            "store": false,
            "temperature": self.temperature,
            "tool_choice": self.tool_choice,
            "tools": self.tools,
            "top_p": null,
            "usage": tokens.map(|tokens| json!({
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": tokens.cached},
                "output_tokens": tokens.count,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.input_tokens + tokens.count,
            })),
        })
    }

    async fn stream(&self, mut answer: AnswerParts<'_>, events: &Events) -> Result<(), Gone> {
        let mut sending = NumberedEvents { events, number: 0 };
        let begun = self.response(Status::InProgress, &[], None);
        sending.send(("response.created", json!({"response": begun}))).await?;
        sending.send(("response.in_progress", json!({"response": begun}))).await?;
        let mut output = OutputItems::new(&self.id);
        loop {
            let (parts, end) = match answer.next().await {
                Ok(next) => next,
                Err(error) => {
                    let error = ApiError::from(error).body()["error"].clone();
                    let fields = json!({"message": error["message"], "code": error["code"], "param": error["param"]});
                    return sending.send(("error", fields)).await;
                }
            };
            for part in parts {
                for event in output.push(part) {
                    sending.send(event).await?;
                }
            }
            let Some(status) = end else { continue };
            for event in output.end(status) {
                sending.send(event).await?;
            }
            let last = match status {
                Status::Incomplete => "response.incomplete",
                Status::Completed | Status::InProgress => "response.completed",
            };
            let response = self.response(status, output.items(), Some(answer.text.spent()));
            return sending.send((last, json!({"response": response}))).await;
        }
    }
}

/// Sends events, each with its type and its number.
struct NumberedEvents<'a> {
    events: &'a Events,
    number: usize,
}

impl NumberedEvents<'_> {
    async fn send(&mut self, (kind, mut fields): NamedEvent) -> Result<(), Gone> {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.number.into();
        self.number += 1;
        self.events.send_named(kind, &fields).await
    }
}
