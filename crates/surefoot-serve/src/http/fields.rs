//! The fields of a JSON request, each checked as it is taken.
//!
//! The body is split into fields without building a tree: parsed as a [`Value`], a list of small
//! numbers takes sixteen times the memory of its text. Small fields are parsed into a `Value` when
//! they are taken; prompts and messages have readers of their own with limits
//! ([`inputs`](super::inputs), [`messages`](super::messages)). What is left at the end was not
//! understood and is refused rather than ignored.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::inputs::InputLimits;

/// More fields than any endpoint has.
const MAX_FIELDS: usize = 100;
/// The largest field that is parsed into a tree, as text.
const MAX_VALUE: usize = 64 << 10;

/// Fields that change nothing about an answer: who asks, what for, and where it is kept.
const WITHOUT_EFFECT: [&str; 7] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// The fields of a JSON object, as their text.
#[derive(Debug)]
pub(super) struct Fields<'b>(BTreeMap<Cow<'b, str>, &'b RawValue>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    if fields.len() >= MAX_FIELDS {
                        return Err(A::Error::custom(format!("more than {MAX_FIELDS} fields")));
                    }
                    fields.insert(key, value);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// A key, borrowed from the text where it has no escapes.
#[derive(Deserialize)]
struct Key<'b>(#[serde(borrow)] Cow<'b, str>);

impl<'b> Fields<'b> {
    /// Splits a request's body.
    pub(super) fn read(body: &'b [u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                ApiError::misshapen(format!("the body must be a JSON object: {error}"))
            }
            _ => ApiError::invalid(format!("the body is not JSON: {error}")),
        })
    }

    #[cfg(test)]
    pub(super) fn of(text: &'b str) -> Self {
        Self::read(text.as_bytes()).unwrap()
    }

    /// The text of a field, unless it is absent or null.
    pub(super) fn raw(&mut self, key: &str) -> Option<&'b RawValue> {
        self.0.remove(key).filter(|value| !is_null(value))
    }

    /// The text of a field that must be there.
    pub(super) fn needed(&mut self, key: &str) -> Result<&'b RawValue, ApiError> {
        self.raw(key).ok_or_else(|| ApiError::misshapen(format!("'{key}' is missing")).param(key))
    }

    /// The value of a small field, unless it is absent or null.
    pub(super) fn take(&mut self, key: &str) -> Result<Option<Value>, ApiError> {
        self.raw(key).map(|raw| small_value(key, raw)).transpose()
    }

    /// A text that must be there.
    pub(super) fn needed_text(&mut self, key: &str) -> Result<String, ApiError> {
        match small_value(key, self.needed(key)?)? {
            Value::String(text) => Ok(text),
            _ => Err(mistyped(key, "a text")),
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, ApiError> {
        match self.take(key)? {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(mistyped(key, "true or false")),
        }
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        match self.take(key)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(mistyped(key, "a text")),
        }
    }

    /// A text that may be as long as a prompt.
    pub(super) fn long_text(
        &mut self,
        key: &str,
        limits: InputLimits,
    ) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.raw(key) else { return Ok(None) };
        let text: String = serde_json::from_str(raw.get()).map_err(|_| mistyped(key, "a text"))?;
        limits.check_text(key, text.len())?;
        Ok(Some(text))
    }

    /// A whole number, of which some mean the same as none.
    pub(super) fn count_unless(
        &mut self,
        key: &str,
        none: &[i64],
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let is_none = |raw: &&RawValue| raw.get().parse().is_ok_and(|n: i64| none.contains(&n));
        if self.0.get(key).is_some_and(is_none) {
            self.0.remove(key);
        }
        self.count(key, range)
    }

    pub(super) fn count(
        &mut self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(key)? else { return Ok(None) };
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
        let Some(value) = self.take(key)? else { return Ok(None) };
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
        match self.take(key)? {
            Some(value) if !asks_nothing(&value) => {
                Err(ApiError::invalid(format!("'{key}' is not supported by this server"))
                    .code("unsupported_parameter")
                    .param(key))
            }
            _ => Ok(()),
        }
    }

    /// Refuses fields that OpenAI knows and this server does not, so that nobody takes them for misspelt.
    pub(super) fn without_all(&mut self, keys: &[&str]) -> Result<(), ApiError> {
        keys.iter().try_for_each(|key| self.without(key, |_| false))
    }

    /// The fields that are left and not null.
    pub(super) fn rest(self) -> impl Iterator<Item = (Cow<'b, str>, &'b RawValue)> {
        self.0.into_iter().filter(|(_, value)| !is_null(value))
    }

    /// Refuses what is left.
    pub(super) fn finish(mut self) -> Result<(), ApiError> {
        for key in WITHOUT_EFFECT {
            self.0.remove(key);
        }
        match self.rest().next() {
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

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// A value that is small enough to be parsed into a tree.
pub(super) fn small_value(key: &str, raw: &RawValue) -> Result<Value, ApiError> {
    if raw.get().len() > MAX_VALUE {
        let message = format!("'{key}' has {} bytes; it can have {MAX_VALUE}", raw.get().len());
        return Err(ApiError::invalid(message).param(key));
    }
    serde_json::from_str(raw.get())
        .map_err(|error| ApiError::invalid(format!("'{key}' is not JSON: {error}")).param(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_took_is_refused_unless_it_has_no_effect() {
        let harmless = r#"{"user": "me", "metadata": {}, "odd": null}"#;
        assert!(Fields::of(harmless).finish().is_ok());
        let error = Fields::of(r#"{"temprature": 1}"#).finish().unwrap_err();
        assert_eq!(error.body()["error"]["param"], "temprature");
        let mut fields = Fields::of(r#"{"n": 2.5, "t": "x", "f": 1, "big": 9}"#);
        assert!(fields.count("n", 1..=4).is_err());
        assert!(fields.number("t", 0.0..=1.0).is_err());
        assert!(fields.flag("f").is_err());
        assert!(fields.count("big", 1..=4).is_err());
    }

    #[test]
    fn keys_with_escapes_are_read_and_the_last_of_equal_keys_counts() {
        let mut fields = Fields::of(r#"{"\u006e": 1, "n": 2}"#);
        assert_eq!(fields.count("n", 0..=9).unwrap(), Some(2));
    }

    #[test]
    fn what_is_no_object_or_too_much_is_refused() {
        let status = |body: &str| Fields::read(body.as_bytes()).unwrap_err().status();
        assert_eq!(status("[]"), 422);
        assert_eq!(status("7"), 422);
        assert_eq!(status("{\"a\":"), 400);
        assert_eq!(status("{\"a\": 1} x"), 400);
        let many: Vec<String> = (0..101).map(|n| format!("\"f{n}\": 1")).collect();
        assert_eq!(status(&format!("{{{}}}", many.join(","))), 422);
        let large = format!("{{\"stop\": {:?}}}", "x".repeat(MAX_VALUE));
        assert!(Fields::of(&large).take("stop").is_err());
    }
}
