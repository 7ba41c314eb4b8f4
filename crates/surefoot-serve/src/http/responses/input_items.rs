//! `input` of a response: a text, or items, which are messages, calls that the model made earlier and what came
//! of them. They become the messages of a chat, which is what templates know.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::http::error::ApiError;
use crate::http::fields::mistyped;
use crate::http::inputs::InputLimits;

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
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

const EXPECTED: &str = "a text or a list of messages, calls and results of calls";

/// The messages of `input`.
pub(super) fn messages(raw: &RawValue, limits: InputLimits) -> Result<Vec<Value>, ApiError> {
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
    let mut reading = Reading { messages: Vec::with_capacity(items.len()), bytes: 0, limits };
    for (number, item) in items.into_iter().enumerate() {
        reading.item(item, &format!("input[{number}]"))?;
    }
    Ok(reading.messages)
}

/// What was read so far.
struct Reading {
    messages: Vec<Value>,
    bytes: usize,
    limits: InputLimits,
}

impl Reading {
    fn item(&mut self, item: Item, param: &str) -> Result<(), ApiError> {
        match item.kind.as_deref() {
            None | Some("message") => self.message(item, param),
            Some("function_call") => self.call(item, param),
            Some("function_call_output") => self.result(item, param),
            Some(kind) => Err(refused(
                format!(
                    "items of type '{kind}' are not supported; message, function_call and \
                     function_call_output are"
                ),
                param,
            )),
        }
    }

    fn message(&mut self, item: Item, param: &str) -> Result<(), ApiError> {
        let role = item.role.unwrap_or_default();
        if !["system", "developer", "user", "assistant"].contains(&role.as_str()) {
            return Err(refused(format!("the role '{role}' is unknown"), param));
        }
        let Some(content) = item.content else {
            return Err(mistyped(param, "a message with a 'content'"));
        };
        let content = self.text(content, param)?;
        self.messages.push(json!({"role": role, "content": content}));
        Ok(())
    }

    /// A call belongs to the answer that it was part of: to a message of the assistant that stands directly
    /// before it, with the calls before this one.
    fn call(&mut self, item: Item, param: &str) -> Result<(), ApiError> {
        let (Some(id), Some(name), Some(arguments)) = (item.call_id, item.name, item.arguments)
        else {
            return Err(mistyped(param, "a call with 'call_id', 'name' and 'arguments'"));
        };
        self.count(id.len() + name.len() + arguments.len())?;
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        if let Some(last) = self.messages.last_mut().filter(|last| last["role"] == "assistant") {
            match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => last["tool_calls"] = json!([call]),
            }
        } else {
            self.messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
        }
        Ok(())
    }

    fn result(&mut self, item: Item, param: &str) -> Result<(), ApiError> {
        let (Some(id), Some(output)) = (item.call_id, item.output) else {
            return Err(mistyped(param, "a result with 'call_id' and 'output'"));
        };
        let calls =
            self.messages.iter().filter_map(|message| message.get("tool_calls")?.as_array());
        let call = calls.flatten().find(|call| call["id"] == id.as_str());
        let Some(name) = call.map(|call| call["function"]["name"].clone()) else {
            let message = format!(
                "there is no call '{id}' before this result: send the function_call item of the \
                 answer too, since nothing is stored here"
            );
            return Err(ApiError::invalid(message).param(param));
        };
        let content = self.text(output, param)?;
        self.messages
            .push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": content}));
        Ok(())
    }

    fn text(&mut self, content: Content, param: &str) -> Result<String, ApiError> {
        let text = match content {
            Content::Text(text) => text,
            Content::Parts(parts) => {
                let mut text = String::new();
                for part in parts {
                    match (part.kind.as_str(), part.text) {
                        ("input_text" | "output_text" | "text", Some(more)) => text.push_str(&more),
                        (kind, _) => {
                            let message = format!("content of type '{kind}' is not supported");
                            return Err(refused(message, param));
                        }
                    }
                }
                text
            }
        };
        self.count(text.len())?;
        Ok(text)
    }

    fn count(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        self.limits.check_text("input", self.bytes)
    }
}

fn refused(message: String, param: &str) -> ApiError {
    ApiError::invalid(message).code("unsupported_content").param(param)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<Vec<Value>, ApiError> {
        let limits = InputLimits { inputs: 1, tokens: 100, bytes: 400 };
        messages(serde_json::from_str(&value.to_string()).unwrap(), limits)
    }

    fn call(id: &str, name: &str) -> Value {
        json!({"type": "function_call", "id": "fc", "call_id": id, "name": name, "arguments": "{}", "status": "completed"})
    }

    #[test]
    fn calls_and_their_results_become_messages_as_chats_have_them() {
        let read = read(&json!([
            {"role": "user", "content": "hi"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
            call("1", "find"),
            call("2", "stop"),
            {"type": "function_call_output", "call_id": "2", "output": "ok"},
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "7"}]},
            call("3", "find"),
        ]))
        .unwrap();
        let called = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let expected = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "let me see", "tool_calls": [called("1", "find"), called("2", "stop")]},
            {"role": "tool", "tool_call_id": "2", "name": "stop", "content": "ok"},
            {"role": "tool", "tool_call_id": "1", "name": "find", "content": "7"},
            {"role": "assistant", "content": "", "tool_calls": [called("3", "find")]},
        ]);
        assert_eq!(json!(read), expected);
    }

    #[test]
    fn what_can_not_be_read_is_refused_with_its_place() {
        for (value, param) in [
            (json!([{"type": "reasoning"}]), "input[0]"),
            (json!([{"role": "wizard", "content": "x"}]), "input[0]"),
            (json!([{"role": "user"}]), "input[0]"),
            (json!([{"type": "function_call", "call_id": "1", "name": "f"}]), "input[0]"),
            (
                json!([call("1", "f"), {"type": "function_call_output", "call_id": "2", "output": "x"}]),
                "input[1]",
            ),
            (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0]"),
            (json!([{"role": "user", "content": "x".repeat(401)}]), "input"),
            (json!([]), "input"),
            (json!(7), "input"),
        ] {
            let error = read(&value).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }
}
