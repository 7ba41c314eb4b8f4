//! Calls of tools as a grammar: text without a call, if one is not required, and calls in the way that a
//! model's template has them.

use std::fmt::Write;

use llguidance::api::TopLevelGrammar;

use super::constraint::{Constraint, Refused, Vocabulary};
use super::error::FormatError;
use super::lark::escaped;
use super::schema;

/// A function that can be called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, which are an object.
    pub parameters: String,
}

/// How a model writes calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCalls {
    /// What can be called.
    pub tools: Vec<Tool>,
    /// What stands before a call. If it is empty, a call is all there is, and begins with `{`.
    pub begin: String,
    /// What stands behind a call.
    pub end: String,
    /// What stands between two calls.
    pub between: String,
    /// The key of the arguments beside `name`.
    pub arguments: String,
    /// Whether there has to be a call.
    pub is_required: bool,
    /// Whether there can be several.
    pub is_parallel: bool,
}

impl ToolCalls {
    pub(super) fn constraint(&self, vocabulary: &Vocabulary) -> Result<Constraint, FormatError> {
        let lark = TopLevelGrammar::from_lark(self.lark()?);
        Constraint::new(lark, vocabulary).map_err(|refused| match refused {
            Refused::Grammar(problem) => self.located(problem, vocabulary),
            Refused::Other(error) => error,
        })
    }

    /// The grammar in Lark's notation. `call` is a call from behind its marker to its end.
    fn lark(&self) -> Result<String, FormatError> {
        let marker = self.begin.trim();
        let behind_marker = &self.begin[self.begin.find(marker).unwrap_or(0) + marker.len()..];
        let mut calls = Vec::with_capacity(self.tools.len());
        for tool in &self.tools {
            let parameters = schema::with_options(&arguments(&tool.parameters)?);
            calls.push(format!(
                "/{}\\{{ ?\"name\": ?\"{}\", ?\"{}\": ?/ %json {parameters} / ?\\}}{}/",
                escaped(behind_marker),
                escaped(&tool.name),
                escaped(&self.arguments),
                escaped(&self.end),
            ));
        }
        let more = match self.is_parallel {
            true => format!(" (/{}{}/ call)*", escaped(&self.between), escaped(marker)),
            false => String::new(),
        };
        let mut lark = String::new();
        let mut line = |text: String| {
            let _ = writeln!(lark, "{text}");
        };
        if marker.is_empty() {
            line("start: call".to_owned() + if self.is_required { "" } else { " | TEXT" });
            line(r"TEXT: /\s*([^\s{](?s:.)*)?/".to_owned());
        } else {
            line(format!("calls: call{more}"));
            if self.is_required {
                line(format!("start: /{}/ calls", escaped(marker)));
            } else {
                line("start: TEXT | text_and_marker calls".to_owned());
                line(format!("TEXT: /(?s:.)*/ & ~/(?s:.)*{}(?s:.)*/", escaped(marker)));
                line(format!("text_and_marker[lazy]: /(?s:.)*{}/", escaped(marker)));
            }
        }
        line(format!("call: {}", calls.join("\n    | ")));
        Ok(lark)
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
        FormatError::TooLarge(problem)
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
