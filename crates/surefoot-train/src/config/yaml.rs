//! YAML with the line of every value, so that a mistake can be shown where it was made.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::ConfigError;

/// A value and where it stands. Line 0 is the command line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Text(String),
    Map(Vec<(String, usize, Node)>),
    List(Vec<Node>),
}

/// What is open while events come in.
enum Open {
    Map { line: usize, entries: Vec<(String, usize, Node)>, key: Option<(String, usize)> },
    List { line: usize, items: Vec<Node> },
}

/// More would not be a configuration.
const DEEPEST: usize = 16;

/// Reads one document whose root is a mapping.
pub(super) fn parse(text: &str) -> Result<Node, ConfigError> {
    let mut open: Vec<Open> = Vec::new();
    let mut root: Option<Node> = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            ConfigError::at(error.marker().line(), format!("this is not YAML: {}", error.info()))
        })?;
        let line = span.start.line();
        let done = match event {
            Event::Scalar(text, style, _, _) => {
                let nothing = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null");
                let value = if nothing { Value::Nothing } else { Value::Text(text.into_owned()) };
                Some(Node { line, value })
            }
            Event::MappingStart(..) => {
                open.push(Open::Map { line, entries: Vec::new(), key: None });
                None
            }
            Event::SequenceStart(..) => {
                open.push(Open::List { line, items: Vec::new() });
                None
            }
            Event::MappingEnd | Event::SequenceEnd => open.pop().map(|open| match open {
                Open::Map { line, entries, .. } => Node { line, value: Value::Map(entries) },
                Open::List { line, items } => Node { line, value: Value::List(items) },
            }),
            Event::Alias(_) => return Err(ConfigError::at(line, "anchors are not used here")),
            _ => None,
        };
        if open.len() > DEEPEST {
            return Err(ConfigError::at(line, "this is nested too deep"));
        }
        let Some(node) = done else { continue };
        match open.last_mut() {
            None if root.is_some() => {
                return Err(ConfigError::at(line, "there is a second document"));
            }
            None => root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match key.take() {
                Some((name, at)) => entries.push((name, at, node)),
                None => {
                    let Value::Text(name) = node.value else {
                        return Err(ConfigError::at(line, "a key must be a word"));
                    };
                    if let Some((_, first, _)) = entries.iter().find(|(other, ..)| *other == name) {
                        let why = format!("'{name}' is here twice: also in line {first}");
                        return Err(ConfigError::at(line, why));
                    }
                    *key = Some((name, line));
                }
            },
        }
    }
    match root {
        Some(root @ Node { value: Value::Map(_), .. }) => Ok(root),
        Some(other) => Err(ConfigError::at(other.line, "the file must hold keys with values")),
        None => Err(ConfigError::at(1, "the file is empty")),
    }
}

/// Sets `path` (`optimizer.lr`) to `text`, as if it stood in the file.
pub(super) fn set(root: &mut Node, path: &str, text: &str) -> Result<(), ConfigError> {
    // The value reads as YAML, so that lists and quotes work as in the file.
    let parsed = parse(&format!("x: {text}")).map_err(|error| error.in_flag(path))?;
    let Value::Map(mut entries) = parsed.value else { return Ok(()) };
    if let Some((_, _, value)) = entries.pop() {
        let words: Vec<&str> = path.split('.').collect();
        put(root, &words, value.value);
    }
    Ok(())
}

fn put(node: &mut Node, path: &[&str], value: Value) {
    let Some((word, rest)) = path.split_first() else {
        *node = Node { line: 0, value };
        return;
    };
    if !matches!(node.value, Value::Map(_)) {
        node.value = Value::Map(Vec::new());
    }
    if let Value::Map(entries) = &mut node.value {
        let at = entries.iter().position(|(name, ..)| name == word).unwrap_or_else(|| {
            let empty = Node { line: 0, value: Value::Nothing };
            entries.push(((*word).to_owned(), 0, empty));
            entries.len() - 1
        });
        entries[at].1 = 0;
        put(&mut entries[at].2, rest, value);
    }
}
