//! `tools`, `tool_choice` and `parallel_tool_calls` of chats and responses.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, mistyped};
use super::format::AskedFormat;
use crate::chat::{CallStyle, OfferedTool};
use crate::structured::{Format, Tool, ToolCalls};

/// The most tools, and the most bytes of all of them.
const MAX_TOOLS: usize = 128;
const MAX_BYTES: usize = 1 << 20;

/// How an endpoint writes a function: chats as `{"type": "function", "function": {"name": …}}`, responses as
/// `{"type": "function", "name": …}`. A choice of a function is written in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolNotation {
    Chat,
    Responses,
}

/// The tools that an answer may call.
#[derive(Clone, Debug)]
pub(super) struct AskedTools {
    pub(super) tools: Vec<OfferedTool>,
    /// `tool_choice` as the client wrote it.
    pub(super) choice: Value,
    is_required: bool,
    pub(super) is_parallel: bool,
}

#[derive(Deserialize)]
struct ToolDefinition<'b> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    function: Option<&'b RawValue>,
}

/// A function, with the fields that prompts have of it.
#[derive(Deserialize, Serialize)]
struct Function<'b> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    parameters: Option<&'b RawValue>,
}

/// A function as chats write it, which is what models are trained on.
#[derive(Serialize)]
struct NestedFunction<'a, 'b> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: &'a Function<'b>,
}

impl AskedTools {
    /// Takes the fields; none if no tool may be called.
    pub(super) fn take(
        fields: &mut Fields<'_>,
        notation: ToolNotation,
    ) -> Result<Option<Self>, ApiError> {
        let tools = match fields.raw("tools") {
            None => Vec::new(),
            Some(raw) => offered(raw, notation)?,
        };
        let choice = fields.take("tool_choice")?.unwrap_or_else(|| json!("auto"));
        let is_parallel = match fields.take("parallel_tool_calls")? {
            None => true,
            Some(Value::Bool(parallel)) => parallel,
            Some(_) => return Err(mistyped("parallel_tool_calls", "true or false")),
        };
        let mut asked = Self { tools, choice, is_required: false, is_parallel };
        match &asked.choice {
            Value::String(choice) => match choice.as_str() {
                "none" => asked.tools.clear(),
                "auto" => {}
                "required" => asked.is_required = true,
                other => return Err(unknown(&format!("'tool_choice' is '{other}'"))),
            },
            value => {
                let place = match notation {
                    ToolNotation::Chat => "/function/name",
                    ToolNotation::Responses => "/name",
                };
                let name = value.pointer(place).and_then(Value::as_str);
                let Some(name) = name else {
                    return Err(unknown("'tool_choice' names no function"));
                };
                asked.tools.retain(|tool| tool.name == name);
                if asked.tools.is_empty() {
                    return Err(unknown(&format!(
                        "'tool_choice' names '{name}', which is not among 'tools'"
                    )));
                }
                // One function by name is called once.
                (asked.is_required, asked.is_parallel) = (true, false);
            }
        }
        if asked.is_required && asked.tools.is_empty() {
            return Err(unknown("'tool_choice' asks for a call, but there are no 'tools'"));
        }
        Ok((!asked.tools.is_empty()).then_some(asked))
    }

    /// The format that answers must have: that of calls, the one that was asked for, or either of them.
    pub(super) fn format_of(
        tools: Option<&Self>,
        asked: Option<AskedFormat>,
        style: &CallStyle,
    ) -> Option<AskedFormat> {
        match tools {
            None => asked,
            Some(tools) => Some(tools.format(style, asked)),
        }
    }

    /// The tools as responses write them.
    pub(super) fn echoed(&self) -> Value {
        let tools = self.tools.iter().map(|tool| {
            let mut told = json!({"type": "function", "name": tool.name, "strict": true});
            let definition: Value = serde_json::from_str(&tool.definition).unwrap_or_default();
            for key in ["description", "parameters"] {
                told[key] = definition["function"][key].clone();
            }
            told
        });
        tools.collect()
    }

    /// Calls, or an answer in the format that was asked for beside them.
    fn format(&self, style: &CallStyle, asked: Option<AskedFormat>) -> AskedFormat {
        let tool = |tool: &OfferedTool| Tool {
            name: tool.name.clone(),
            parameters: tool.parameters.clone(),
        };
        let param = asked.as_ref().map_or("tools", |asked| asked.param);
        let calls = ToolCalls {
            tools: self.tools.iter().map(tool).collect(),
            style: style.clone(),
            is_required: self.is_required,
            is_parallel: self.is_parallel && style.is_parallel,
            answer: asked.map(|asked| Box::new(asked.format)),
        };
        AskedFormat { format: Format::ToolCalls(Box::new(calls)), param }
    }
}

fn unknown(problem: &str) -> ApiError {
    let message =
        format!("{problem}; it can be none, auto, required, or the name of one of the tools");
    ApiError::invalid(message).param("tool_choice")
}

fn offered(raw: &RawValue, notation: ToolNotation) -> Result<Vec<OfferedTool>, ApiError> {
    let expected = match notation {
        ToolNotation::Chat => {
            "a list of {\"type\": \"function\", \"function\": {\"name\": …, \"parameters\": …}}"
        }
        ToolNotation::Responses => {
            "a list of {\"type\": \"function\", \"name\": …, \"parameters\": …}"
        }
    };
    if raw.get().len() > MAX_BYTES {
        let message = format!("'tools' has {} bytes; it can have {MAX_BYTES}", raw.get().len());
        return Err(ApiError::invalid(message).param("tools"));
    }
    let wrong = |error: serde_json::Error| mistyped("tools", expected).because(&error.to_string());
    let list: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(wrong)?;
    if list.len() > MAX_TOOLS {
        let message = format!("'tools' has {}; it can have {MAX_TOOLS}", list.len());
        return Err(ApiError::invalid(message).param("tools"));
    }
    let mut tools: Vec<OfferedTool> = Vec::with_capacity(list.len());
    for (number, raw) in list.into_iter().enumerate() {
        let param = format!("tools[{number}]");
        let definition: ToolDefinition<'_> = serde_json::from_str(raw.get()).map_err(wrong)?;
        let function = match notation {
            ToolNotation::Chat => definition.function,
            ToolNotation::Responses => Some(raw),
        };
        let Some(function) = function.filter(|_| definition.kind == "function") else {
            let message =
                format!("tools of type '{}' are not supported; functions are", definition.kind);
            return Err(ApiError::invalid(message).param(param));
        };
        let function: Function<'_> = serde_json::from_str(function.get()).map_err(wrong)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let is_good = !function.name.is_empty() && function.name.chars().all(is_name);
        if !is_good || tools.iter().any(|tool| tool.name == function.name) {
            let message = format!(
                "the name '{}' can't be used: names have letters, digits, '_', '-' and '.', and each is there once",
                function.name
            );
            return Err(ApiError::invalid(message).param(param));
        }
        let definition = match notation {
            ToolNotation::Chat => raw.get().to_owned(),
            ToolNotation::Responses => {
                let nested = NestedFunction { kind: "function", function: &function };
                serde_json::to_string(&nested).map_err(wrong)?
            }
        };
        let parameters = function.parameters.map_or("{}", RawValue::get);
        tools.push(OfferedTool {
            parameters: if parameters == "null" { "{}" } else { parameters }.to_owned(),
            name: function.name,
            definition,
        });
    }
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn taken(value: Value) -> Result<Option<AskedTools>, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of(&text);
        let asked = AskedTools::take(&mut fields, ToolNotation::Chat)?;
        fields.finish()?;
        Ok(asked)
    }

    #[test]
    fn functions_of_responses_are_told_to_models_as_those_of_chats() {
        let function = json!({"type": "function", "name": "f", "description": "Finds.", "strict": true,
                              "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}});
        let named = json!({"type": "function", "name": "f"});
        let text = json!({"tools": [function], "tool_choice": named}).to_string();
        let mut fields = Fields::of(&text);
        let asked = AskedTools::take(&mut fields, ToolNotation::Responses).unwrap().unwrap();
        assert!(asked.is_required && !asked.is_parallel);
        assert_eq!((&asked.choice, asked.echoed()), (&named, json!([function])));
        let definition: Value = serde_json::from_str(&asked.tools[0].definition).unwrap();
        let expected = json!({"type": "function", "function": {"name": "f", "description": "Finds.",
                              "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}});
        assert_eq!(definition, expected);
        let nested = json!({"tools": [tool("f")]}).to_string();
        let refused = AskedTools::take(&mut Fields::of(&nested), ToolNotation::Responses);
        assert_eq!(refused.unwrap_err().body()["error"]["param"], "tools");
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn choices_say_which_tools_may_or_must_be_called() {
        let tools = json!([tool("a"), tool("b")]);
        let asked = |choice: Value| taken(json!({"tools": tools, "tool_choice": choice})).unwrap();
        let names =
            |asked: &AskedTools| asked.tools.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
        assert!(asked(json!("none")).is_none());
        assert!(taken(json!({"tools": []})).unwrap().is_none());
        let auto = taken(json!({"tools": tools})).unwrap().unwrap();
        assert_eq!((auto.is_required, auto.is_parallel, names(&auto).len()), (false, true, 2));
        let required = asked(json!("required")).unwrap();
        assert!(required.is_required && required.is_parallel);
        let named = asked(json!({"type": "function", "function": {"name": "b"}})).unwrap();
        assert_eq!(
            (names(&named), named.is_required, named.is_parallel),
            (vec!["b".to_owned()], true, false)
        );
        let single = taken(json!({"tools": tools, "parallel_tool_calls": false})).unwrap().unwrap();
        assert!(!single.is_parallel);
    }

    #[test]
    fn what_can_not_be_called_is_refused_with_the_name_of_the_field() {
        for (value, param) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
            (json!({"tools": [tool("a"), tool("a")]}), "tools[1]"),
            (json!({"tools": [tool("no spaces")]}), "tools[0]"),
            (json!({"tools": [tool("a")], "tool_choice": "sometimes"}), "tool_choice"),
            (
                json!({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}),
                "tool_choice",
            ),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [tool("a")], "parallel_tool_calls": 1}), "parallel_tool_calls"),
        ] {
            let error = taken(value.clone()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{value}");
        }
    }
}
