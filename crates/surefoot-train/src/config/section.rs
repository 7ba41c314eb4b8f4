//! Taking typed values out of a mapping; what is left over at the end is a mistake.

use std::fmt::Display;
use std::str::FromStr;

use super::ConfigError;
use super::yaml::{Node, Value};

/// A mapping of the configuration that is being read.
pub(super) struct Section {
    name: String,
    line: usize,
    entries: Vec<(String, usize, Node)>,
    known: Vec<&'static str>,
}

impl Section {
    pub(super) fn new(name: &str, node: Node) -> Result<Self, ConfigError> {
        let line = node.line;
        match node.value {
            Value::Map(entries) => {
                Ok(Self { name: name.to_owned(), line, entries, known: Vec::new() })
            }
            _ => Err(ConfigError::at(line, format!("'{name}' must hold keys with values"))),
        }
    }

    fn empty(name: &str) -> Self {
        Self { name: name.to_owned(), line: 0, entries: Vec::new(), known: Vec::new() }
    }

    fn full_name(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Takes a key's value and line, if it is there and not empty.
    fn take(&mut self, key: &'static str) -> Option<(usize, Node)> {
        self.known.push(key);
        let at = self.entries.iter().position(|(name, ..)| name == key)?;
        let (_, line, node) = self.entries.remove(at);
        (node.value != Value::Nothing).then_some((line, node))
    }

    /// A section below this one; an empty one if it isn't there.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Self, ConfigError> {
        let name = self.full_name(key);
        match self.take(key) {
            None => Ok(Self::empty(&name)),
            Some((_, node)) => Self::new(&name, node),
        }
    }

    /// A value that `read` understands.
    pub(super) fn read<T, E: Display>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let name = self.full_name(key);
        let Some((line, node)) = self.take(key) else { return Ok(None) };
        let Value::Text(text) = &node.value else {
            return Err(ConfigError::at(line, format!("'{name}' must be a single value")));
        };
        read(text)
            .map(Some)
            .map_err(|error| ConfigError::at(line, format!("'{name}' is wrong: {error}")))
    }

    /// A value that is written like a number, a word or a path.
    pub(super) fn parsed<T: FromStr<Err: Display>>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        self.read(key, |text| text.parse::<T>())
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        self.read(key, |text| match text {
            "true" | "yes" | "on" => Ok(true),
            "false" | "no" | "off" => Ok(false),
            other => Err(format!("'{other}' is neither true nor false")),
        })
    }

    /// A number that must pass a test; `wanted` says which.
    pub(super) fn number<T: FromStr + Copy>(
        &mut self,
        key: &'static str,
        fits: impl FnOnce(T) -> bool,
        wanted: &str,
    ) -> Result<Option<T>, ConfigError> {
        self.read(key, |text| {
            let number = text.replace('_', "").parse::<T>().ok();
            number.filter(|number| fits(*number)).ok_or_else(|| format!("'{text}' is not {wanted}"))
        })
    }

    /// One of several words.
    pub(super) fn choice<T: Clone>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        self.read(key, |text| {
            choices
                .iter()
                .find(|(word, _)| *word == text)
                .map(|(_, value)| value.clone())
                .ok_or_else(|| {
                    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                    let near = nearest(text, &words)
                        .map(|near| format!("; did you mean '{near}'?"))
                        .unwrap_or_default();
                    format!("'{text}' is none of {}{near}", words.join(", "))
                })
        })
    }

    /// A list of whole numbers.
    pub(super) fn sizes(&mut self, key: &'static str) -> Result<Option<Vec<usize>>, ConfigError> {
        let name = self.full_name(key);
        let Some((line, node)) = self.take(key) else { return Ok(None) };
        let items = match node.value {
            Value::List(items) => items,
            _ => vec![node],
        };
        let number = |item: &Node| match &item.value {
            Value::Text(text) => text.parse::<usize>().ok().filter(|number| *number > 0),
            _ => None,
        };
        items.iter().map(number).collect::<Option<Vec<_>>>().map(Some).ok_or_else(|| {
            ConfigError::at(line, format!("'{name}' must be a list of whole numbers above 0"))
        })
    }

    /// A mapping from names to numbers above 0; none if the key holds no mapping.
    pub(super) fn numbers(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Vec<(String, f64)>>, ConfigError> {
        let is_map = |(name, _, node): &(String, usize, Node)| {
            name == key && matches!(node.value, Value::Map(_))
        };
        if !self.entries.iter().any(is_map) {
            return Ok(None);
        }
        let name = self.full_name(key);
        let Some((_, Node { value: Value::Map(entries), .. })) = self.take(key) else {
            return Ok(None);
        };
        let number = |(class, line, node): (String, usize, Node)| {
            let number = match &node.value {
                Value::Text(text) => text.parse::<f64>().ok(),
                _ => None,
            };
            let number = number.filter(|number| *number > 0.0 && number.is_finite());
            number.map(|number| (class.clone(), number)).ok_or_else(|| {
                ConfigError::at(line, format!("'{name}.{class}' must be a number above 0"))
            })
        };
        entries.into_iter().map(number).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A list of texts, or a single one.
    pub(super) fn texts(&mut self, key: &'static str) -> Result<Option<Vec<String>>, ConfigError> {
        let name = self.full_name(key);
        let Some((line, node)) = self.take(key) else { return Ok(None) };
        let items = match node.value {
            Value::List(items) => items,
            _ => vec![node],
        };
        let text = |item: Node| match item.value {
            Value::Text(text) => Some(text),
            _ => None,
        };
        items
            .into_iter()
            .map(text)
            .collect::<Option<Vec<_>>>()
            .map(Some)
            .ok_or_else(|| ConfigError::at(line, format!("'{name}' must be a list of names")))
    }

    /// A key that must be there.
    pub(super) fn missing(&self, key: &str, example: &str) -> ConfigError {
        let name = self.full_name(key);
        ConfigError::at(self.line, format!("'{name}' is missing"))
            .hint(format!("for example `{key}: {example}`"))
    }

    /// Reports the first key that was not read as a mistake, with the known key that is most like it.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let Some((key, line, _)) = self.entries.first() else { return Ok(()) };
        let name = self.full_name(key);
        let place = match self.name.as_str() {
            "" => "the keys are".to_owned(),
            name => format!("the keys of '{name}' are"),
        };
        let hint = match nearest(key, &self.known) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("{place} {}", self.known.join(", ")),
        };
        Err(ConfigError::at(*line, format!("there is no key '{name}'")).hint(hint))
    }
}

/// The word that is most like `word`, if one is like it at all.
pub(super) fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let similar = |other: &&str| strsim::jaro_winkler(word, other);
    let best = words.iter().copied().max_by(|a, b| similar(a).total_cmp(&similar(b)))?;
    let contained = best.contains(word) || word.contains(best);
    (similar(&best) > 0.8 || (contained && word.len() > 1)).then_some(best)
}
