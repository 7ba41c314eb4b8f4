//! Reads the messages of a chat as templates expect them: objects whose content is a text.
//!
//! Messages are read one by one and within limits, as [`inputs`](super::inputs) are.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, mistyped, small_value};
use super::inputs::InputLimits;

/// The roles of OpenAI's chat messages. A template that is given any other either ignores the
/// message or writes the role into the prompt, where it can imitate the template's own markers.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// The bytes of all fields that are neither role nor content, such as `name`, in one request.
const MAX_OTHER_FIELDS: usize = 256 << 10;

/// Reads the messages of a request. Each takes at least a token, so there are no more of them than
/// one sequence has tokens, and their contents together are one text.
pub(super) fn messages(value: &RawValue, limits: InputLimits) -> Result<Vec<Value>, ApiError> {
    let mut reading = Reading { limits, text_bytes: 0, other_bytes: 0, problem: None };
    let mut json = serde_json::Deserializer::from_str(value.get());
    let read = List(&mut reading).deserialize(&mut json);
    if let Some(problem) = reading.problem {
        return Err(problem);
    }
    let messages = read.map_err(|_| mistyped("messages", "a list"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("'messages' is empty").param("messages"));
    }
    Ok(messages)
}

/// What was read so far.
struct Reading {
    limits: InputLimits,
    text_bytes: usize,
    other_bytes: usize,
    /// A refusal that ended the reading.
    problem: Option<ApiError>,
}

struct List<'a>(&'a mut Reading);

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = Vec<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Value>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Value>, A::Error> {
        let mut messages = Vec::new();
        while let Some(raw) = list.next_element::<&RawValue>()? {
            match self.0.message(messages.len(), raw) {
                Ok(message) => messages.push(message),
                Err(problem) => {
                    self.0.problem = Some(problem);
                    return Err(A::Error::custom("refused"));
                }
            }
        }
        Ok(messages)
    }
}

impl Reading {
    fn message(&mut self, number: usize, raw: &RawValue) -> Result<Value, ApiError> {
        let param = |field: &str| format!("messages[{number}]{field}");
        if number >= self.limits.tokens {
            let message =
                format!("more messages than the {} tokens this server takes", self.limits.tokens);
            return Err(ApiError::invalid(message)
                .code("context_length_exceeded")
                .param("messages"));
        }
        let mut fields: Fields<'_> =
            serde_json::from_str(raw.get()).map_err(|_| mistyped(&param(""), "an object"))?;
        let role = match fields.raw("role").map(|role| small_value(&param(".role"), role)) {
            Some(Ok(Value::String(role))) => role,
            Some(Err(error)) => return Err(error),
            _ => return Err(mistyped(&param(".role"), "a text")),
        };
        if !ROLES.contains(&role.as_str()) {
            let message = format!("the role '{role}' is unknown; roles are {}", ROLES.join(", "));
            return Err(ApiError::invalid(message).code("invalid_value").param(param(".role")));
        }
        let content = match fields.raw("content") {
            None => String::new(),
            Some(raw) => content(raw, &param(".content"))?,
        };
        self.text_bytes += content.len();
        self.limits.check_text("messages", self.text_bytes)?;
        let mut message = Map::new();
        message.insert("role".to_owned(), Value::String(role));
        message.insert("content".to_owned(), Value::String(content));
        for (key, raw) in fields.rest() {
            self.other_bytes += key.len() + raw.get().len();
            if self.other_bytes > MAX_OTHER_FIELDS {
                let message = format!(
                    "the fields of messages beside role and content have more than \
                     {MAX_OTHER_FIELDS} bytes"
                );
                return Err(ApiError::invalid(message).param(param("")));
            }
            let value = small_value(&param(&format!(".{key}")), raw)?;
            message.insert(key.into_owned(), value);
        }
        Ok(Value::Object(message))
    }
}

/// The content of a message as one text: a string, or a list of parts that are texts.
fn content(raw: &RawValue, param: &str) -> Result<String, ApiError> {
    const EXPECTED: &str = "a text or a list of parts";
    if raw.get().starts_with('"') {
        return serde_json::from_str(raw.get()).map_err(|_| mistyped(param, EXPECTED));
    }
    let mut text = String::new();
    let mut parts = Parts { text: &mut text, problem: None, param };
    let mut json = serde_json::Deserializer::from_str(raw.get());
    let read = json.deserialize_seq(&mut parts);
    match (parts.problem, read) {
        (Some(problem), _) => Err(problem),
        (None, Err(_)) => Err(mistyped(param, EXPECTED)),
        (None, Ok(())) => Ok(text),
    }
}

/// Joins the texts of parts.
struct Parts<'a> {
    text: &'a mut String,
    problem: Option<ApiError>,
    param: &'a str,
}

/// A part of a message's content.
#[derive(serde::Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl<'de> Visitor<'de> for &mut Parts<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of parts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(Part { kind, text }) = list.next_element()? {
            match text {
                Some(text) if kind == "text" => self.text.push_str(&text),
                None if kind == "text" => return Err(A::Error::custom("a part without text")),
                _ => {
                    let message = format!("content of type '{kind}' is not supported");
                    let problem = ApiError::invalid(message).code("unsupported_content");
                    self.problem = Some(problem.param(self.param));
                    return Err(A::Error::custom("refused"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<Vec<Value>, ApiError> {
        let limits = InputLimits { inputs: 1, tokens: 4, bytes: 16 };
        messages(serde_json::from_str(&value.to_string()).unwrap(), limits)
    }

    #[test]
    fn content_becomes_one_text() {
        let read = read(&json!([
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
            (json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "User", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user", "content": 5}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"text": "x"}]}]), "messages[0].content"),
        ] {
            let error = read(&value).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }

    #[test]
    fn more_than_fits_the_model_is_refused_while_it_is_read() {
        let message = |text: &str| json!({"role": "user", "content": text});
        assert!(read(&json!([message("12345678"), message("12345678")])).is_ok());
        for many in [vec![message("12345678"); 3], vec![message(""); 5]] {
            let error = read(&json!(many)).unwrap_err().body();
            assert_eq!(error["error"]["code"], "context_length_exceeded");
        }
        let large = "x".repeat(100 << 10);
        assert!(read(&json!([{"role": "user", "name": large}])).is_err());
    }
}
