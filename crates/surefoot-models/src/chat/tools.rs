//! Tools in the prompts of chats: how a template writes calls, and what is said to models whose template
//! knows none.

use serde_json::{Map, Value};

use super::call_style::CallStyle;

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

/// Where a template takes the tools from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolsPlace {
    /// The variable `tools`.
    Variable,
    /// `tools` of the system's message: their functions, as JSON.
    SystemMessage,
    /// It knows none.
    Nowhere,
}

/// A tool that a template is given to see where it takes tools from.
pub(super) const PROBE: &str = "probe_tool";

pub(super) fn probe() -> OfferedTool {
    let parameters = r#"{"type":"object","properties":{"probe_key":{"type":"string","description":"A key."}},"required":["probe_key"]}"#;
    OfferedTool {
        name: PROBE.to_owned(),
        parameters: parameters.to_owned(),
        definition: format!(
            r#"{{"type":"function","function":{{"name":"{PROBE}","description":"A tool.","parameters":{parameters}}}}}"#
        ),
    }
}

/// Messages for a template that takes the functions from the system's message.
pub(super) fn beside_system(messages: &[Value], tools: &[OfferedTool]) -> Vec<Value> {
    let functions: Vec<Value> = tools
        .iter()
        .filter_map(|tool| serde_json::from_str::<Value>(&tool.definition).ok())
        .map(|definition| definition["function"].clone())
        .collect();
    let mut messages = messages.to_vec();
    if messages.first().is_none_or(|first| first["role"] != "system") {
        let mut system = Map::new();
        system.insert("role".to_owned(), "system".into());
        system.insert("content".to_owned(), "You are a helpful assistant with some tools.".into());
        messages.insert(0, Value::Object(system));
    }
    messages[0]["tools"] = Value::Array(functions).to_string().into();
    messages
}

/// Messages whose calls are part of their text, for templates that leave calls out.
pub(super) fn with_calls_as_text(messages: &[Value], style: &CallStyle) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let Some(calls) = message["tool_calls"].as_array() else { continue };
        let written = style.written(calls);
        let before = message["content"].as_str().unwrap_or_default();
        let parts: Vec<&str> =
            [before, &written].into_iter().filter(|part| !part.is_empty()).collect();
        message["content"] = parts.join("\n").into();
    }
    messages
}

/// Messages whose calls are known by nine letters, which Mistral's templates insist on.
pub(super) fn with_short_ids(messages: &[Value]) -> Vec<Value> {
    let mut ids: Vec<String> = Vec::new();
    let mut short = |id: &mut Value| {
        let Some(long) = id.as_str().map(str::to_owned) else { return };
        let number = ids.iter().position(|known| *known == long).unwrap_or_else(|| {
            ids.push(long);
            ids.len() - 1
        });
        *id = format!("call{number:05}").into();
    };
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            calls.iter_mut().filter_map(|call| call.get_mut("id")).for_each(&mut short);
        }
        if let Some(id) = message.get_mut("tool_call_id") {
            short(id);
        }
    }
    messages
}

/// Messages for a template that knows no tools: what can be called is said by the system, calls and
/// results are texts.
pub(super) fn spelled_out(messages: &[Value], tools: &[OfferedTool]) -> Vec<Value> {
    let messages = with_calls_as_text(messages, &CallStyle::tagged());
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
