//! JSON schemas as constraints, and the place of what is wrong in one.

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value};

use super::constraint::{Constraint, Refused, Vocabulary};
use super::error::FormatError;

/// Keywords whose value is a schema, a list of schemas, or schemas by name.
const ONE: [&str; 10] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
];
const LISTS: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords whose definitions a part of a schema needs too.
pub(super) const SHARED: [&str; 2] = ["$defs", "definitions"];

/// The constraint of a schema, which is given as JSON.
pub(super) fn constraint(schema: &str, vocabulary: &Vocabulary) -> Result<Constraint, FormatError> {
    let schema = parsed(schema)?;
    attempt(&schema, vocabulary).map_err(|refused| match refused {
        Refused::Grammar(problem) => located(&schema, problem, vocabulary),
        Refused::Other(error) => error,
    })
}

/// A schema that is given as JSON, with the way we write white space.
pub(super) fn parsed(schema: &str) -> Result<Value, FormatError> {
    let mut schema: Value = serde_json::from_str(schema).map_err(|error| FormatError::Schema {
        path: String::new(),
        problem: format!("it is not JSON: {error}"),
    })?;
    if schema == Value::Bool(true) {
        schema = Value::Object(Map::new());
    }
    if !schema.is_object() && !schema.is_boolean() {
        return Err(FormatError::Schema {
            path: String::new(),
            problem: "a schema is an object or a boolean".to_owned(),
        });
    }
    Ok(schema)
}

/// The schema with the options of the translation, which are part of it.
pub(super) fn with_options(schema: &Value) -> Value {
    // Unlimited white space would let a model write nothing else.
    let options = JsonCompileOptions {
        whitespace_pattern: Some(r"[ \t\r\n]{1,20}".to_owned()),
        json_allow_general_unicode_escapes: true,
        ..JsonCompileOptions::default()
    };
    let mut schema = schema.clone();
    if schema.is_object() {
        options.apply_to(&mut schema);
    }
    schema
}

fn attempt(schema: &Value, vocabulary: &Vocabulary) -> Result<Constraint, Refused> {
    Constraint::new(TopLevelGrammar::from_json_schema(with_options(schema)), vocabulary)
}

/// Finds the innermost part of a schema that is refused by itself.
pub(super) fn located(schema: &Value, problem: String, vocabulary: &Vocabulary) -> FormatError {
    let shared: Map<String, Value> = SHARED
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), schema.get(*key)?.clone())))
        .collect();
    let (mut path, mut problem, mut part) = (String::new(), problem, schema.clone());
    'deeper: loop {
        for (step, child) in children(&part) {
            let mut alone = child.clone();
            if let Some(object) = alone.as_object_mut() {
                for (key, value) in &shared {
                    object.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
            // A part that nothing satisfies need not be what is wrong with the whole.
            if let Err(Refused::Grammar(inner)) = attempt(&alone, vocabulary)
                && is_unsatisfiable(&inner) == is_unsatisfiable(&problem)
            {
                path.push_str(&step);
                (problem, part) = (inner, child.clone());
                continue 'deeper;
            }
        }
        break;
    }
    if is_unsatisfiable(&problem) {
        return FormatError::Unsatisfiable;
    }
    FormatError::Schema { path, problem: explained(&problem) }
}

/// The parts of a schema that are schemas, with the step of a JSON pointer that leads to each.
fn children(schema: &Value) -> Vec<(String, &Value)> {
    let Some(object) = schema.as_object() else { return Vec::new() };
    let mut found = Vec::new();
    for (key, value) in object {
        let name = key.as_str();
        match value {
            Value::Array(parts) if LISTS.contains(&name) => {
                let numbered = parts.iter().enumerate();
                found.extend(numbered.map(|(number, part)| (format!("/{name}/{number}"), part)));
            }
            Value::Object(parts) if NAMED.contains(&name) => {
                let named = parts.iter();
                found.extend(named.map(|(part, value)| {
                    (format!("/{name}/{}", part.replace('~', "~0").replace('/', "~1")), value)
                }));
            }
            part if ONE.contains(&name) => found.push((format!("/{name}"), part)),
            _ => {}
        }
    }
    found
}

/// The library has no type for this.
fn is_unsatisfiable(problem: &str) -> bool {
    problem.contains("Unsatisfiable schema")
}

/// What the library says, in the words of its users.
fn explained(problem: &str) -> String {
    let first = problem.lines().next().unwrap_or_default();
    match first.strip_prefix("Unimplemented keys: ") {
        Some(keys) => format!("these keywords are not supported: {keys}"),
        None if first.contains("coerce_one_of") => {
            "'oneOf' is supported only where its schemas evidently exclude each other; 'anyOf' would do"
                .to_owned()
        }
        // What is wrong with a regular expression is said last, below a drawing.
        None if first.ends_with(':') => {
            format!("{first} {}", problem.lines().last().unwrap_or_default().trim())
        }
        None => first.to_owned(),
    }
}
