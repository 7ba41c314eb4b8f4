//! Tools in the prompts of chats: how a template writes calls, and what is said to models whose template
//! knows none.

use serde_json::{Map, Value};

/// A function that a client offers.
#[derive(Clone, Debug)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: String,
    /// All that the client said of it, in its order.
    pub definition: String,
}

/// How a template writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStyle {
    /// `<tool_call>` and `</tool_call>` around `{"name": …, "arguments": …}`, as Hermes and Qwen do.
    Tagged,
    /// `{"name": …, "parameters": …}` and nothing else, as Llama 3 does.
    Bare,
}

impl CallStyle {
    /// The style of a template's source.
    pub(super) fn of(source: &str) -> Self {
        let is_bare = source.contains("\"parameters\"") && source.contains("python_tag");
        if is_bare && !source.contains("<tool_call>") { Self::Bare } else { Self::Tagged }
    }

    /// What precedes each call; empty if nothing does.
    pub fn marker(self) -> &'static str {
        match self {
            Self::Tagged => "<tool_call>",
            Self::Bare => "",
        }
    }

    /// What ends each call.
    pub fn end_marker(self) -> &'static str {
        match self {
            Self::Tagged => "</tool_call>",
            Self::Bare => "",
        }
    }

    /// The key of the arguments.
    pub fn arguments_key(self) -> &'static str {
        match self {
            Self::Tagged => "arguments",
            Self::Bare => "parameters",
        }
    }
}

/// Messages for a template that knows no tools: what can be called is said by the system, calls and
/// results are texts.
pub(super) fn spelled_out(messages: &[Value], tools: &[OfferedTool]) -> Vec<Value> {
    let mut said: Vec<Value> = messages.iter().map(spelled_message).collect();
    let definitions: Vec<&str> = tools.iter().map(|tool| tool.definition.as_str()).collect();
    let offer = format!(
        "You may call these functions:\n{}\nTo call one, answer with its name and its arguments as \
         JSON:\n<tool_call>\n{{\"name\": NAME, \"arguments\": ARGUMENTS}}\n</tool_call>",
        definitions.join("\n")
    );
    match said.first_mut().filter(|first| first["role"] == "system") {
        Some(system) => {
            let before = system["content"].as_str().unwrap_or_default();
            system["content"] = Value::String(format!("{before}\n\n{offer}"));
        }
        None => {
            let mut system = Map::new();
            system.insert("role".to_owned(), "system".into());
            system.insert("content".to_owned(), offer.into());
            said.insert(0, Value::Object(system));
        }
    }
    said
}

fn spelled_message(message: &Value) -> Value {
    let mut message = message.clone();
    let content = message["content"].as_str().unwrap_or_default().to_owned();
    if message["role"] == "tool" {
        message["role"] = "user".into();
        message["content"] = format!("<tool_response>\n{content}\n</tool_response>").into();
    } else if let Some(calls) = message["tool_calls"].as_array() {
        let mut parts = vec![content];
        for call in calls {
            let function = &call["function"];
            parts.push(format!(
                "<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                function["name"], function["arguments"]
            ));
        }
        parts.retain(|part| !part.is_empty());
        message["content"] = parts.join("\n").into();
    }
    message
}

/// Calls of earlier answers as templates want them: arguments as objects, not as texts of JSON.
pub(super) fn with_arguments_as_objects(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else {
            continue;
        };
        for call in calls {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            if let Some(parsed) =
                arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
            {
                *arguments = parsed;
            }
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn styles_are_told_by_the_source() {
        assert_eq!(CallStyle::of("{{ '<tool_call>' }}"), CallStyle::Tagged);
        assert_eq!(
            CallStyle::of("{\"name\": x, \"parameters\": y} <|python_tag|>"),
            CallStyle::Bare
        );
        assert_eq!(CallStyle::of("{{ messages }}"), CallStyle::Tagged);
    }

    #[test]
    fn a_template_without_tools_is_told_them_in_words() {
        let tools = [OfferedTool {
            name: "f".to_owned(),
            parameters: "{}".to_owned(),
            definition: "{\"name\": \"f\"}".to_owned(),
        }];
        let messages = with_arguments_as_objects(&[
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
            json!({"role": "tool", "content": "7"}),
        ]);
        let said = spelled_out(&messages, &tools);
        assert_eq!(said[0]["role"], "system");
        assert!(said[0]["content"].as_str().unwrap().contains("{\"name\": \"f\"}"));
        assert_eq!(
            said[2]["content"],
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>"
        );
        assert_eq!(
            (&said[3]["role"], &said[3]["content"]),
            (&json!("user"), &json!("<tool_response>\n7\n</tool_response>"))
        );
    }
}
