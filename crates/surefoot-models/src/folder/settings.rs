//! `config.json` with every value checked where it is read: a wrong type or a number out of
//! range names the file and the key.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::ModelError;

/// More than any published configuration needs.
const MAX_CONFIG: u64 = 1 << 20;

/// The keys of a configuration file, or of an object inside it.
#[derive(Clone, Debug)]
pub struct Settings {
    file: PathBuf,
    /// The keys that lead to this object, each followed by a dot.
    path: String,
    values: Map<String, Value>,
}

impl Settings {
    /// Reads `file`.
    pub fn open(file: &Path) -> Result<Self, ModelError> {
        Self::parse(file, &super::read_bounded(file, MAX_CONFIG)?)
    }

    /// Parses JSON that was read from `file`.
    pub fn parse(file: &Path, json: &[u8]) -> Result<Self, ModelError> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(values)) => {
                Ok(Self { file: file.to_owned(), path: String::new(), values })
            }
            Ok(_) => Err(ModelError::file(file, "is not a JSON object")),
            Err(error) => Err(ModelError::file(file, format!("can't be read: {error}"))),
        }
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// An error about `key`.
    pub fn problem(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::config(&self.file, format!("{}{key}", self.path), problem)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether the key is there, even if its value is null.
    pub fn mentions(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A whole number in `range`, or nothing if the key is absent or null.
    pub fn count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_u64()
            .and_then(|value| usize::try_from(value).ok())
            .filter(|value| range.contains(value))
            .map(Some)
            .ok_or_else(|| {
                self.problem(
                    key,
                    format!(
                        "is {}, not a whole number from {} to {}",
                        shown(value),
                        range.start(),
                        range.end()
                    ),
                )
            })
    }

    /// A whole number in `range` that must be there.
    pub fn needed(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        self.count(key, range)?.ok_or_else(|| self.problem(key, "is missing"))
    }

    /// A whole number, which may be negative.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_i64()
            .map(Some)
            .ok_or_else(|| self.problem(key, format!("is {}, not a whole number", shown(value))))
    }

    /// A finite number greater than zero.
    pub fn positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_f64()
            .filter(|value| value.is_finite() && *value > 0.0 && *value < 1e30)
            .map(Some)
            .ok_or_else(|| self.problem(key, format!("is {}, not a positive number", shown(value))))
    }

    /// True or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.problem(key, format!("is {}, not true or false", shown(value))))
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.problem(key, format!("is {}, not a text", shown(value))))
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_str).collect::<Option<Vec<_>>>())
            .map(Some)
            .ok_or_else(|| self.problem(key, format!("is {}, not a list of texts", shown(value))))
    }

    /// One whole number or a list of them.
    pub fn counts(&self, key: &str) -> Result<Vec<u32>, ModelError> {
        let one = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
        let ids = match self.get(key) {
            None => Some(Vec::new()),
            Some(Value::Array(items)) => items.iter().map(one).collect(),
            Some(value) => one(value).map(|value| vec![value]),
        };
        ids.ok_or_else(|| self.problem(key, "is neither a token id nor a list of them"))
    }

    /// An object inside this one.
    pub fn object(&self, key: &str) -> Result<Option<Self>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let values = value
            .as_object()
            .cloned()
            .ok_or_else(|| self.problem(key, format!("is {}, not an object", shown(value))))?;
        Ok(Some(Self { file: self.file.clone(), path: format!("{}{key}.", self.path), values }))
    }

    /// Whether the object has no keys.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// A value as it is shown in an error: never more than a line.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
