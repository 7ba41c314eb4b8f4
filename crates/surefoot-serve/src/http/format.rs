//! What format an answer has to have: OpenAI's `response_format`, and the fields that vLLM and llama.cpp have
//! for regular expressions, choices and grammars.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use surefoot_models::generate::text::Texts;

use super::error::ApiError;
use super::fields::{Fields, mistyped};
use crate::structured::{Constraint, Format, FormatError, Vocabulary};

/// The largest schema or grammar, as text.
const MAX_TEXT: usize = 256 << 10;
/// The most choices of `guided_choice`.
const MAX_CHOICES: usize = 1000;
/// How many constraints are kept for further requests.
const KEPT: usize = 16;

/// A format of an answer, and the field that asked for it.
#[derive(Clone, Debug)]
pub(super) struct AskedFormat {
    pub(super) format: Format,
    pub(super) param: &'static str,
}

#[derive(Deserialize)]
struct ResponseFormat<'b> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    json_schema: Option<&'b RawValue>,
    #[serde(borrow)]
    schema: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct NamedSchema<'b> {
    #[serde(borrow)]
    schema: Option<&'b RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StructuredOutputs<'b> {
    #[serde(borrow)]
    json: Option<&'b RawValue>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
}

/// Takes the format that a request asks for, if it asks for one.
pub(super) fn asked(fields: &mut Fields<'_>) -> Result<Option<AskedFormat>, ApiError> {
    let mut all: Vec<AskedFormat> = Vec::new();
    let mut ask = |param, format| all.push(AskedFormat { format, param });
    if let Some(raw) = fields.raw("response_format")
        && let Some(format) = response_format(raw)?
    {
        ask("response_format", format);
    }
    for param in ["guided_json", "json_schema"] {
        if let Some(raw) = fields.raw(param) {
            ask(param, schema(param, raw)?);
        }
    }
    if let Some(regex) = fields.text("guided_regex")? {
        ask("guided_regex", Format::Regex(regex));
    }
    if let Some(choices) = fields.take("guided_choice")? {
        ask("guided_choice", choice(choices)?);
    }
    for param in ["guided_grammar", "grammar"] {
        if let Some(grammar) = fields.text(param)? {
            ask(param, Format::Gbnf(grammar));
        }
    }
    if let Some(raw) = fields.raw("structured_outputs") {
        structured_outputs(raw, ask)?;
    }
    if let [first, second, ..] = all.as_slice() {
        let message = format!(
            "'{}' and '{}' both ask for the format of the answer: send one of them",
            first.param, second.param
        );
        return Err(ApiError::invalid(message).param(second.param));
    }
    Ok(all.pop())
}

/// The format that a `response_format` asks for; none for any text.
pub(super) fn response_format(raw: &RawValue) -> Result<Option<Format>, ApiError> {
    const NAME: &str = "response_format";
    const EXPECTED: &str = "an object whose 'type' is text, json_object or json_schema, with 'json_schema.schema' for the last";
    check_size(NAME, raw.get().len())?;
    let asked: ResponseFormat<'_> =
        serde_json::from_str(raw.get()).map_err(|_| mistyped(NAME, EXPECTED))?;
    match asked.kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(match asked.schema {
            None => Format::JsonObject,
            Some(schema) => Format::JsonSchema(schema.get().to_owned()),
        })),
        "json_schema" => {
            let named =
                asked.json_schema.map(|raw| serde_json::from_str::<NamedSchema<'_>>(raw.get()));
            let schema = match named {
                Some(Ok(named)) => named.schema.or(asked.schema),
                Some(Err(_)) => None,
                None => asked.schema,
            };
            let schema = schema.ok_or_else(|| mistyped(NAME, EXPECTED))?;
            Ok(Some(Format::JsonSchema(schema.get().to_owned())))
        }
        other => {
            let message =
                format!("'{NAME}.type' is '{other}'; it can be text, json_object or json_schema");
            Err(ApiError::invalid(message).param(NAME))
        }
    }
}

/// A schema, as an object or as a text of one.
fn schema(param: &'static str, raw: &RawValue) -> Result<Format, ApiError> {
    check_size(param, raw.get().len())?;
    match serde_json::from_str::<String>(raw.get()) {
        Ok(text) => Ok(Format::JsonSchema(text)),
        Err(_) => Ok(Format::JsonSchema(raw.get().to_owned())),
    }
}

fn choice(value: Value) -> Result<Format, ApiError> {
    let texts: Result<Vec<String>, _> = serde_json::from_value(value);
    match texts {
        Ok(texts) if (1..=MAX_CHOICES).contains(&texts.len()) => Ok(Format::Choice(texts)),
        _ => Err(mistyped("guided_choice", "a list of 1 to 1000 texts")),
    }
}

fn structured_outputs(
    raw: &RawValue,
    mut ask: impl FnMut(&'static str, Format),
) -> Result<(), ApiError> {
    const NAME: &str = "structured_outputs";
    check_size(NAME, raw.get().len())?;
    let asked: StructuredOutputs<'_> = serde_json::from_str(raw.get()).map_err(|error| {
        mistyped(NAME, "an object with json, regex, choice, grammar or json_object")
            .because(&error.to_string())
    })?;
    if let Some(json) = asked.json {
        ask(NAME, schema(NAME, json)?);
    }
    if let Some(regex) = asked.regex {
        ask(NAME, Format::Regex(regex));
    }
    if let Some(texts) = asked.choice {
        ask(NAME, choice(texts.into())?);
    }
    if let Some(grammar) = asked.grammar {
        ask(NAME, Format::Gbnf(grammar));
    }
    if asked.json_object == Some(true) {
        ask(NAME, Format::JsonObject);
    }
    Ok(())
}

fn check_size(param: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_TEXT {
        return Ok(());
    }
    let message = format!("'{param}' has {bytes} bytes; it can have {MAX_TEXT}");
    Err(ApiError::invalid(message).param(param))
}

/// Makes constraints, and keeps the last ones: clients ask for the same form again and again.
#[derive(Default)]
pub(super) struct Constraints {
    vocabulary: OnceLock<Result<Vocabulary, String>>,
    kept: Mutex<VecDeque<(Format, Arc<Constraint>)>>,
}

impl Constraints {
    /// The constraint for a format, for a model with `vocab` tokens.
    pub(super) fn constraint(
        &self,
        asked: &AskedFormat,
        texts: &Texts,
        vocab: usize,
    ) -> Result<Arc<Constraint>, ApiError> {
        let known = {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter()
                .find(|(format, _)| *format == asked.format)
                .map(|(_, known)| Arc::clone(known))
        };
        if let Some(known) = known {
            return Ok(known);
        }
        // Schemas can take a while, and vocabularies are large: others are not held up.
        let made = tokio::task::block_in_place(|| {
            let vocabulary = self.vocabulary(texts, vocab).map_err(|problem| {
                ApiError::invalid(problem).code("unsupported_parameter").param(asked.param)
            })?;
            asked.format.constraint(vocabulary).map_err(|error| refused(&error, asked.param))
        })?;
        let made = Arc::new(made);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(format, _)| *format != asked.format);
        kept.truncate(KEPT - 1);
        kept.push_front((asked.format.clone(), Arc::clone(&made)));
        Ok(made)
    }

    fn vocabulary(&self, texts: &Texts, vocab: usize) -> Result<&Vocabulary, String> {
        let made = self.vocabulary.get_or_init(|| {
            let bytes = texts.token_bytes().map_err(|error| error.to_string())?;
            Vocabulary::new(vocab, |id| bytes.get(id as usize).cloned().flatten())
                .map_err(|error| error.to_string())
        });
        made.as_ref().map_err(Clone::clone)
    }
}

fn refused(error: &FormatError, param: &str) -> ApiError {
    ApiError::invalid(error.to_string()).code("invalid_format").param(param)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn taken(value: Value) -> Result<Option<Format>, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of(&text);
        let asked = asked(&mut fields)?;
        fields.finish()?;
        Ok(asked.map(|asked| asked.format))
    }

    #[test]
    fn each_way_to_ask_is_understood() {
        let schema = Format::JsonSchema(r#"{"type":"null"}"#.to_owned());
        for (value, expected) in [
            (json!({}), None),
            (json!({"response_format": null}), None),
            (json!({"response_format": {"type": "text"}}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Format::JsonObject)),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "null"}}}}),
                Some(schema.clone()),
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": {"type": "null"}}}),
                Some(schema.clone()),
            ),
            (json!({"guided_json": {"type": "null"}}), Some(schema.clone())),
            (json!({"guided_json": "{\"type\":\"null\"}"}), Some(schema.clone())),
            (json!({"json_schema": {"type": "null"}}), Some(schema.clone())),
            (json!({"structured_outputs": {"json": {"type": "null"}}}), Some(schema)),
            (json!({"guided_regex": "a+"}), Some(Format::Regex("a+".to_owned()))),
            (
                json!({"guided_choice": ["a", "b"]}),
                Some(Format::Choice(vec!["a".to_owned(), "b".to_owned()])),
            ),
            (
                json!({"guided_grammar": "root ::= \"a\""}),
                Some(Format::Gbnf("root ::= \"a\"".to_owned())),
            ),
            (json!({"grammar": "root ::= \"a\""}), Some(Format::Gbnf("root ::= \"a\"".to_owned()))),
            (json!({"structured_outputs": {"regex": "a+"}}), Some(Format::Regex("a+".to_owned()))),
        ] {
            assert_eq!(taken(value.clone()).unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn what_is_no_form_is_refused_with_the_name_of_the_field() {
        for (value, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {"type": "xml"}}), "response_format"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
                "response_format",
            ),
            (json!({"guided_regex": 5}), "guided_regex"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_regex": "a", "grammar": "root ::= \"a\""}), "grammar"),
            (json!({"structured_outputs": {"xml": 1}}), "structured_outputs"),
        ] {
            let error = taken(value.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }
}
