//! `input` of a response: a text, or items, which are messages, calls that the model made earlier and what came
//! of them. They become the messages of a chat, which is what templates know.
//!
//! Items are read one by one and within limits, as [`messages`](crate::http::messages) are.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::http::error::ApiError;
use crate::http::fields::mistyped;
use crate::http::inputs::InputLimits;

/// What is read of an item. The rest, such as its `status`, changes nothing.
#[derive(Deserialize)]
struct Item<'b> {
    #[serde(rename = "type", borrow)]
    kind: Option<&'b RawValue>,
    #[serde(borrow)]
    role: Option<&'b RawValue>,
    #[serde(borrow)]
    content: Option<&'b RawValue>,
    #[serde(borrow)]
    call_id: Option<&'b RawValue>,
    #[serde(borrow)]
    name: Option<&'b RawValue>,
    #[serde(borrow)]
    arguments: Option<&'b RawValue>,
    #[serde(borrow)]
    output: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

const EXPECTED: &str = "a text or a list of messages, calls and results of calls";
/// The longest kind, role, name of a function or id of a call, as JSON.
const LONGEST_NAME: usize = 4 << 10;

/// The messages of `input`.
pub(super) fn messages(raw: &RawValue, limits: InputLimits) -> Result<Vec<Value>, ApiError> {
    if raw.get().starts_with('"') {
        let text: String =
            serde_json::from_str(raw.get()).map_err(|_| mistyped("input", EXPECTED))?;
        limits.check_text("input", text.len())?;
        return Ok(vec![json!({"role": "user", "content": text})]);
    }
    let mut reading = Reading {
        messages: Vec::new(),
        names: HashMap::new(),
        items: 0,
        bytes: 0,
        limits,
        problem: None,
    };
    let mut json = serde_json::Deserializer::from_str(raw.get());
    let read = json.deserialize_seq(&mut reading);
    match (reading.problem, read) {
        (Some(problem), _) => Err(problem),
        (None, Err(_)) => Err(mistyped("input", EXPECTED)),
        (None, Ok(())) if reading.items == 0 => {
            Err(ApiError::invalid("'input' is empty").param("input"))
        }
        (None, Ok(())) => Ok(reading.messages),
    }
}

/// What was read so far.
struct Reading {
    messages: Vec<Value>,
    /// The functions that calls are of, by the ids of the calls.
    names: HashMap<String, String>,
    items: usize,
    bytes: usize,
    limits: InputLimits,
    /// A refusal that ended the reading.
    problem: Option<ApiError>,
}

impl<'de> Visitor<'de> for &mut Reading {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(raw) = list.next_element::<&RawValue>()? {
            if let Err(problem) = self.item(raw) {
                self.problem = Some(problem);
                return Err(A::Error::custom("refused"));
            }
            self.items += 1;
        }
        Ok(())
    }
}

impl Reading {
    fn item(&mut self, raw: &RawValue) -> Result<(), ApiError> {
        let most = self.limits.tokens;
        if self.items >= most {
            let message = format!("more items than the {most} tokens that this server takes");
            return Err(ApiError::invalid(message).code("context_length_exceeded").param("input"));
        }
        let param = format!("input[{}]", self.items);
        let item: Item<'_> =
            serde_json::from_str(raw.get()).map_err(|_| mistyped(&param, "an object"))?;
        match short_text(item.kind, &param, "type")?.as_deref() {
            None | Some("message") => self.message(&item, &param),
            Some("function_call") => self.call(&item, &param),
            Some("function_call_output") => self.result(&item, &param),
            Some(kind) => Err(refused(
                format!(
                    "items of type '{kind}' are not supported; message, function_call and \
                     function_call_output are"
                ),
                &param,
            )),
        }
    }

    fn message(&mut self, item: &Item<'_>, param: &str) -> Result<(), ApiError> {
        let role = short_text(item.role, param, "role")?.unwrap_or_default();
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
    fn call(&mut self, item: &Item<'_>, param: &str) -> Result<(), ApiError> {
        let id = short_text(item.call_id, param, "call_id")?;
        let name = short_text(item.name, param, "name")?;
        let (Some(id), Some(name), Some(arguments)) = (id, name, item.arguments) else {
            return Err(mistyped(param, "a call with 'call_id', 'name' and 'arguments'"));
        };
        let arguments: String = serde_json::from_str(arguments.get())
            .map_err(|_| mistyped(&format!("{param}.arguments"), "a text"))?;
        self.count(id.len() + name.len() + arguments.len())?;
        self.names.entry(id.clone()).or_insert_with(|| name.clone());
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

    fn result(&mut self, item: &Item<'_>, param: &str) -> Result<(), ApiError> {
        let id = short_text(item.call_id, param, "call_id")?;
        let (Some(id), Some(output)) = (id, item.output) else {
            return Err(mistyped(param, "a result with 'call_id' and 'output'"));
        };
        let Some(name) = self.names.get(&id).cloned() else {
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

    /// A text: a string, or the texts of a list of parts.
    fn text(&mut self, raw: &RawValue, param: &str) -> Result<String, ApiError> {
        const EXPECTED: &str = "a text or a list of parts";
        if raw.get().starts_with('"') {
            let text: String =
                serde_json::from_str(raw.get()).map_err(|_| mistyped(param, EXPECTED))?;
            self.count(text.len())?;
            return Ok(text);
        }
        let mut parts = Parts { text: String::new(), problem: None, reading: self, param };
        let mut json = serde_json::Deserializer::from_str(raw.get());
        let read = json.deserialize_seq(&mut parts);
        match (parts.problem, read) {
            (Some(problem), _) => Err(problem),
            (None, Err(_)) => Err(mistyped(param, EXPECTED)),
            (None, Ok(())) => Ok(parts.text),
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        self.limits.check_text("input", self.bytes)
    }
}

/// Joins the texts of parts.
struct Parts<'a> {
    text: String,
    problem: Option<ApiError>,
    reading: &'a mut Reading,
    param: &'a str,
}

impl Parts<'_> {
    fn push(&mut self, part: &Part) -> Result<(), ApiError> {
        match (part.kind.as_str(), &part.text) {
            ("input_text" | "output_text" | "text", Some(more)) => {
                self.reading.count(more.len())?;
                self.text.push_str(more);
                Ok(())
            }
            (kind, _) => {
                Err(refused(format!("content of type '{kind}' is not supported"), self.param))
            }
        }
    }
}

impl<'de> Visitor<'de> for &mut Parts<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of parts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(part) = list.next_element::<Part>()? {
            if let Err(problem) = self.push(&part) {
                self.problem = Some(problem);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// A text that is one of a few, or a name.
fn short_text(raw: Option<&RawValue>, param: &str, key: &str) -> Result<Option<String>, ApiError> {
    let Some(raw) = raw else { return Ok(None) };
    let text =
        if raw.get().len() > LONGEST_NAME { None } else { serde_json::from_str(raw.get()).ok() };
    let expected = format!("a text of at most {LONGEST_NAME} bytes");
    text.map(Some).ok_or_else(|| mistyped(&format!("{param}.{key}"), &expected))
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
            (json!([{"role": "x".repeat(5000), "content": "x"}]), "input[0].role"),
            (json!([{"type": 7}]), "input[0].type"),
            (json!([7]), "input[0]"),
            (json!(vec![json!({"role": "user", "content": ""}); 101]), "input"),
            (json!([]), "input"),
            (json!(7), "input"),
        ] {
            let error = read(&value).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }
}
