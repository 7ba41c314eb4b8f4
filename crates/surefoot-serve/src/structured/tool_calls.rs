//! Calls of tools as a grammar: text without a call, if one is not required, and calls in the way that a
//! model's template has them.

use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use serde_json::json;

use super::Format;
use super::constraint::{Constraint, Refused, Vocabulary};
use super::error::FormatError;
use super::lark::escaped;
use super::schema;
use crate::chat::CallStyle;

/// A function that can be called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, which are an object.
    pub parameters: String,
}

/// Calls of tools, and what may come instead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCalls {
    /// What can be called.
    pub tools: Vec<Tool>,
    /// How the model writes calls.
    pub style: CallStyle,
    /// Whether there has to be a call.
    pub is_required: bool,
    /// Whether there can be several.
    pub is_parallel: bool,
    /// The format of a text without calls; any text if there is none.
    pub answer: Option<Box<Format>>,
}

impl ToolCalls {
    pub(super) fn constraint(&self, vocabulary: &Vocabulary) -> Result<Constraint, FormatError> {
        let lark = TopLevelGrammar::from_lark(self.lark()?);
        Constraint::new(lark, vocabulary).map_err(|refused| match refused {
            Refused::Grammar(problem) => self.located(problem, vocabulary),
            Refused::Other(error) => error,
        })
    }

    /// The grammar in Lark's notation. `calls` is what comes behind the marker.
    fn lark(&self) -> Result<String, FormatError> {
        let style = &self.style;
        let marker = escaped(&style.marker);
        let mut lark = String::new();
        let mut line = |text: String| {
            let _ = writeln!(lark, "{text}");
        };
        // A terminal is never empty, so a marker that is makes no terminal.
        let marked = match marker.is_empty() {
            true => "calls".to_owned(),
            false => format!("/{marker}/ calls"),
        };
        match &self.answer {
            _ if self.is_required => line(format!("start: {marked}")),
            Some(answer) => {
                line(format!("start: answer | {marked}"));
                line(answer.lark_rule("answer")?);
            }
            None if marker.is_empty() => {
                line("start: TEXT | calls".to_owned());
                let first = if style.is_list { "\\[" } else { "{" };
                line(format!("TEXT: /\\s*([^\\s{first}](?s:.)*)?/"));
            }
            None => {
                line("start: TEXT | text_and_marker calls".to_owned());
                line(format!("TEXT: /(?s:.)*/ & ~/(?s:.)*{marker}(?s:.)*/"));
                line(format!("text_and_marker[lazy]: /(?s:.)*{marker}/"));
            }
        }
        let answer = self.answer.as_deref().filter(|_| !self.is_required);
        let is_json = matches!(answer, Some(Format::JsonObject | Format::JsonSchema(_)));
        if is_json && marker.is_empty() && !style.is_list {
            line(format!("calls: {}", self.calls_as_objects()?));
            return Ok(lark);
        }
        let (behind_marker, in_list) =
            (space(&style.space.behind_marker), space(&style.space.in_list));
        let end = match style.end_marker.is_empty() && !style.is_list {
            true => String::new(),
            false => space(&style.space.before_end),
        };
        let end_marker = escaped(&style.end_marker);
        if style.is_list {
            let open = match style.marker.ends_with('[') {
                true => String::new(),
                false => format!("/{behind_marker}\\[/ "),
            };
            let more = if self.is_parallel { " (/,/ call)*" } else { "" };
            line(format!("calls: {open}call{more} /{end}\\]{end_marker}/"));
            line(format!("call: {}", self.calls(&in_list, "")?));
        } else {
            let more = match self.is_parallel && !marker.is_empty() {
                true => format!(" (/[ \\n]?{marker}/ call)*"),
                false => String::new(),
            };
            line(format!("calls: call{more}"));
            line(format!("call: {}", self.calls(&behind_marker, &format!("{end}{end_marker}"))?));
        }
        Ok(lark)
    }

    /// A call of each tool, with regular expressions for what is around it.
    fn calls(&self, before: &str, behind: &str) -> Result<String, FormatError> {
        let style = &self.style;
        let (inside, brace) = (space(&style.space.in_call), space(&style.space.before_brace));
        let id = |key: &Option<String>| {
            key.as_ref().map(|key| format!("\"{}\": ?\"[a-zA-Z0-9_]{{0,40}}\"", escaped(key)))
        };
        let id_before =
            id(&style.id_keys[0]).map_or(String::new(), |id| format!("({id},{inside})?"));
        let id_behind =
            id(&style.id_keys[1]).map_or(String::new(), |id| format!("(,{inside}{id})?"));
        let (name_key, arguments_key) = (escaped(&style.name_key), escaped(&style.arguments_key));
        let mut calls = Vec::with_capacity(self.tools.len());
        for tool in &self.tools {
            let parameters = schema::with_options(&arguments(&tool.parameters)?);
            let name = escaped(&tool.name);
            calls.push(format!(
                "/{before}\\{{{inside}{id_before}\"{name_key}\": ?\"{name}\",{inside}\"{arguments_key}\": ?/ \
                 %json {parameters} /{id_behind}{brace}\\}}{behind}/"
            ));
        }
        Ok(calls.join("\n    | "))
    }

    /// A call of each tool as a schema. The lexer goes on with the longest terminal that has begun, so beside an answer in JSON
    /// a call has to consist of the same terminals.
    fn calls_as_objects(&self) -> Result<String, FormatError> {
        let (name, parameters) = (&self.style.name_key, &self.style.arguments_key);
        let mut calls = Vec::with_capacity(self.tools.len());
        for tool in &self.tools {
            let mut schema = arguments(&tool.parameters)?;
            let mut call = json!({"type": "object", "required": [name, parameters], "additionalProperties": false});
            for key in schema::SHARED {
                // What references name is looked for at the root.
                if let Some(shared) = schema.as_object_mut().and_then(|schema| schema.remove(key)) {
                    call[key] = shared;
                }
            }
            call["properties"] = json!({name: {"const": tool.name}, parameters: schema});
            calls.push(format!("%json {}", schema::with_options(&call)));
        }
        Ok(calls.join("\n    | "))
    }

    /// Which tool's parameters are wrong, and where.
    fn located(&self, problem: String, vocabulary: &Vocabulary) -> FormatError {
        for tool in &self.tools {
            if let Err(error) = schema::constraint(&tool.parameters, vocabulary) {
                return match error {
                    FormatError::Schema { path, problem } => FormatError::Schema {
                        path,
                        problem: format!("{problem}, in the parameters of '{}'", tool.name),
                    },
                    other => other,
                };
            }
        }
        if let Some(Err(error)) = self.answer.as_ref().map(|answer| answer.constraint(vocabulary)) {
            return error;
        }
        FormatError::TooLarge(problem)
    }
}

/// White space that may be there, as the template has it or a single space.
fn space(shown: &str) -> String {
    match shown {
        "" | " " => " ?".to_owned(),
        other => format!("( |{})?", escaped(other)),
    }
}

/// A schema of arguments, which are an object even if it does not say so.
fn arguments(parameters: &str) -> Result<serde_json::Value, FormatError> {
    let mut schema = schema::parsed(parameters)?;
    if let Some(schema) = schema.as_object_mut()
        && !schema.contains_key("$ref")
    {
        schema.entry("type").or_insert_with(|| "object".into());
    }
    Ok(schema)
}
