//! The fields of a request, each checked as it is taken. What is left at the end was not
//! understood, and is refused rather than ignored.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// Fields that change nothing about an answer: who asks, what for, and where it is kept.
const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
];

/// The fields of a JSON object.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a request's body.
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(ApiError::misshapen("the body must be a JSON object")),
            Err(error) => Err(ApiError::invalid(format!("the body is no JSON: {error}"))),
        }
    }

    #[cfg(test)]
    pub(super) fn of(value: Value) -> Self {
        Self(value.as_object().cloned().unwrap_or_default())
    }

    /// The value of a field, unless it is absent or null.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_null())
    }

    /// A value that must be there.
    pub(super) fn needed(&mut self, key: &str) -> Result<Value, ApiError> {
        self.take(key).ok_or_else(|| ApiError::misshapen(format!("'{key}' is missing")).param(key))
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, ApiError> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(mistyped(key, "true or false")),
        }
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(mistyped(key, "a text")),
        }
    }

    pub(super) fn count(
        &mut self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let Some(number) = value.as_i64() else { return Err(mistyped(key, "a whole number")) };
        match usize::try_from(number).ok().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(out_of_range(key, number, &range)),
        }
    }

    pub(super) fn number(
        &mut self,
        key: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            Some(number) => Err(out_of_range(key, number, &range)),
            None => Err(mistyped(key, "a number")),
        }
    }

    /// A field that is known and not supported: only values that ask for nothing are let through.
    pub(super) fn without(
        &mut self,
        key: &str,
        asks_nothing: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        match self.take(key) {
            Some(value) if !asks_nothing(&value) => {
                Err(ApiError::invalid(format!("'{key}' is not supported by this server"))
                    .code("unsupported_parameter")
                    .param(key))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    pub(super) fn finish(mut self) -> Result<(), ApiError> {
        for key in WITHOUT_EFFECT {
            self.0.remove(key);
        }
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            Some((key, _)) => {
                Err(ApiError::invalid(format!("'{key}' is not a parameter of this endpoint"))
                    .code("unknown_parameter")
                    .param(key))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn mistyped(key: &str, what: &str) -> ApiError {
    ApiError::misshapen(format!("'{key}' must be {what}")).param(key)
}

fn out_of_range<T: Display>(
    key: &str,
    number: impl Display,
    range: &RangeInclusive<T>,
) -> ApiError {
    let message = format!("'{key}' is {number}; it can be {} to {}", range.start(), range.end());
    ApiError::invalid(message).param(key)
}

/// Token ids, if all of `values` are.
pub(super) fn ids(key: &str, values: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    values
        .iter()
        .map(|value| {
            id(value).ok_or_else(|| mistyped(key, "a text, token ids, or a list of either"))
        })
        .collect()
}

/// One of the things that are to be run: a text, or its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

/// A text, token ids, or a list of either.
pub(super) fn inputs(key: &str, value: Value) -> Result<Vec<Input>, ApiError> {
    let inputs = match value {
        Value::String(text) => vec![Input::Text(text)],
        Value::Array(values) if values.first().is_some_and(Value::is_number) => {
            vec![Input::Tokens(ids(key, &values)?)]
        }
        Value::Array(values) => values
            .into_iter()
            .map(|value| match value {
                Value::String(text) => Ok(Input::Text(text)),
                Value::Array(values) => ids(key, &values).map(Input::Tokens),
                _ => Err(mistyped(key, "a text, token ids, or a list of either")),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(mistyped(key, "a text, token ids, or a list of either")),
    };
    if inputs.is_empty() {
        return Err(ApiError::invalid(format!("'{key}' is empty")).param(key));
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn inputs_are_texts_tokens_or_lists_of_either() {
        let read = |value| inputs("input", value);
        let text = |text: &str| Input::Text(text.to_owned());
        assert_eq!(read(json!("a")).unwrap(), [text("a")]);
        assert_eq!(read(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(read(json!([1, 2])).unwrap(), [Input::Tokens(vec![1, 2])]);
        assert_eq!(read(json!([[1], "x"])).unwrap(), [Input::Tokens(vec![1]), text("x")]);
        for wrong in [json!(7), json!([]), json!([-1]), json!([1, "a"]), json!([{}]), json!([1.5])]
        {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_nobody_took_is_refused_unless_it_has_no_effect() {
        assert!(Fields::of(json!({"user": "me", "metadata": {}, "odd": null})).finish().is_ok());
        let error = Fields::of(json!({"temprature": 1})).finish().unwrap_err();
        assert_eq!(error.body()["error"]["param"], "temprature");
        let mut fields = Fields::of(json!({"n": 2.5, "t": "x", "f": 1, "big": 9}));
        assert!(fields.count("n", 1..=4).is_err());
        assert!(fields.number("t", 0.0..=1.0).is_err());
        assert!(fields.flag("f").is_err());
        assert!(fields.count("big", 1..=4).is_err());
    }

    proptest! {
        #[test]
        fn no_input_makes_reading_panic(text in "\\PC{0,40}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let _ = inputs("input", value);
            }
        }
    }
}
