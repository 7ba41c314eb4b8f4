//! Calls of tools.

use surefoot_serve::chat::{CallSpace, CallStyle};
use surefoot_serve::structured::{Format, FormatError, Tool, ToolCalls};

use crate::random_text::Tokens;

fn calls(is_required: bool, is_parallel: bool) -> ToolCalls {
    let tool = |name: &str, parameters: &str| Tool {
        name: name.to_owned(),
        parameters: parameters.to_owned(),
    };
    ToolCalls {
        tools: vec![
            tool(
                "add",
                r#"{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}"#,
            ),
            tool("stop.now", "{}"),
        ],
        style: CallStyle::tagged(),
        is_required,
        is_parallel,
        answer: None,
    }
}

const ADD: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 5}}\n</tool_call>";
const STOP: &str = "<tool_call>\n{\"name\": \"stop.now\", \"arguments\": {}}\n</tool_call>";

#[test]
fn texts_and_calls_come_as_they_were_asked_for() {
    let tokens = Tokens::of_bytes_and_words();
    let both = format!("{ADD}\n{STOP}");
    let behind_text = format!("Let me see < <tool\n{ADD}");
    for (calls, good, bad) in [
        (
            calls(true, true),
            vec![ADD, STOP, &both],
            vec![
                "",
                "Hello.",
                &behind_text,
                "<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>",
            ],
        ),
        (calls(true, false), vec![ADD, STOP], vec![&both, ""]),
        (
            calls(false, true),
            vec!["", "Hello <tool_cal", ADD, &both, &behind_text],
            vec![
                "<tool_call>",
                "x <tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
            ],
        ),
    ] {
        let constraint = tokens.constraint(&Format::ToolCalls(Box::new(calls.clone()))).unwrap();
        for text in good {
            assert!(tokens.admits(&constraint, text), "{calls:?}: {text} can't come");
        }
        for text in bad {
            assert!(!tokens.admits(&constraint, text), "{calls:?}: {text} can come");
        }
    }
    let mut bare = calls(false, false);
    bare.style = CallStyle { arguments_key: "arguments".to_owned(), ..CallStyle::bare() };
    let constraint = tokens.constraint(&Format::ToolCalls(Box::new(bare))).unwrap();
    for text in ["", "Hello {", "{\"name\": \"add\", \"arguments\": {\"a\":1}}"] {
        assert!(tokens.admits(&constraint, text), "{text} can't come");
    }
    assert!(!tokens.admits(&constraint, " {\"x\": 1}"));
}

/// Calls in a list, as a template would write them.
fn listed(marker: &str, end_marker: &str) -> CallStyle {
    CallStyle {
        marker: marker.to_owned(),
        end_marker: end_marker.to_owned(),
        is_list: true,
        space: CallSpace::default(),
        ..CallStyle::tagged()
    }
}

#[test]
fn calls_in_lists_come_as_the_template_writes_them() {
    let tokens = Tokens::of_bytes_and_words();
    let mistral = CallStyle {
        id_keys: [None, Some("id".to_owned())],
        space: CallSpace {
            behind_marker: " ".to_owned(),
            in_list: " ".to_owned(),
            ..CallSpace::default()
        },
        ..listed("[TOOL_CALLS]", "")
    };
    let command = CallStyle {
        name_key: "tool_name".to_owned(),
        arguments_key: "parameters".to_owned(),
        id_keys: [Some("tool_call_id".to_owned()), None],
        space: CallSpace {
            before_end: "\n".to_owned(),
            in_list: "\n    ".to_owned(),
            ..CallSpace::default()
        },
        ..listed("<|START_ACTION|>", "<|END_ACTION|>")
    };
    for (style, single, both) in [
        (
            mistral,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 5}}]",
            "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 5}, \"id\": \"a1b2c3d4e\"}, {\"name\": \"stop.now\", \"arguments\": {}}]",
        ),
        (
            listed("functools[", ""),
            "functools[{\"name\": \"add\", \"arguments\": {\"a\": 5}}]",
            "functools[{\"name\": \"add\", \"arguments\": {\"a\": 5}}, {\"name\": \"stop.now\", \"arguments\": {}}]",
        ),
        (
            command,
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"add\", \"parameters\": {\"a\": 5}}\n]<|END_ACTION|>",
            "<|START_ACTION|>[\n    {\"tool_name\": \"add\", \"parameters\": {\"a\": 5}},\n    {\"tool_name\": \"stop.now\", \"parameters\": {}}\n]<|END_ACTION|>",
        ),
    ] {
        let required = |is_parallel| ToolCalls { style: style.clone(), ..calls(true, is_parallel) };
        let constraint = tokens.constraint(&Format::ToolCalls(Box::new(required(true)))).unwrap();
        for text in [single, both] {
            assert!(tokens.admits(&constraint, text), "{text} can't come");
            assert!(!tokens.admits(&constraint, &text[..text.len() - 1]), "{text} can be cut");
            assert!(!tokens.admits(&constraint, &text.replace("add", "sub")));
        }
        let constraint = tokens.constraint(&Format::ToolCalls(Box::new(required(false)))).unwrap();
        assert!(tokens.admits(&constraint, single) && !tokens.admits(&constraint, both));
        let auto = ToolCalls { style: style.clone(), ..calls(false, true) };
        let constraint = tokens.constraint(&Format::ToolCalls(Box::new(auto))).unwrap();
        let behind_text = format!("I [look].{both}");
        for text in ["", "Hello [TOOL <|START", single, &behind_text] {
            assert!(tokens.admits(&constraint, text), "{text} can't come");
        }
        assert!(!tokens.admits(&constraint, &style.marker));
    }
}

#[test]
fn beside_calls_an_answer_has_the_format_that_was_asked_for() {
    let tokens = Tokens::of_bytes_and_words();
    let schema = Format::JsonSchema(
        r#"{"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name", "n"], "additionalProperties": false}"#
            .to_owned(),
    );
    let call = "{\"name\": \"add\", \"parameters\": {\"a\": 5}}";
    for (style, call) in [(CallStyle::tagged(), ADD), (CallStyle::bare(), call)] {
        let with = |answer: &Format| {
            let calls = ToolCalls {
                style: style.clone(),
                answer: Some(Box::new(answer.clone())),
                ..calls(false, false)
            };
            tokens.constraint(&Format::ToolCalls(Box::new(calls))).unwrap()
        };
        let constraint = with(&schema);
        for text in [call, "{\"name\": \"add\", \"n\": 5}"] {
            assert!(tokens.admits(&constraint, text), "{text} can't come");
        }
        for text in ["", "Hello.", "{\"name\": \"x\"}", &format!("Hello. {call}")] {
            assert!(!tokens.admits(&constraint, text), "{text} can come");
        }
        for (format, good, bad) in [
            (Format::JsonObject, "{\"x\": [1]}", "[1]"),
            (Format::Regex("a+b".to_owned()), "aab", "aa"),
            (Format::Choice(vec!["red".to_owned(), "green".to_owned()]), "red", "blue"),
            (Format::Gbnf("root ::= \"<\" root? \">\"".to_owned()), "<<>>", "<"),
        ] {
            let constraint = with(&format);
            for text in [call, good] {
                assert!(tokens.admits(&constraint, text), "{format:?}: {text} can't come");
            }
            assert!(!tokens.admits(&constraint, bad), "{format:?}: {bad} can come");
        }
    }
    // Parameters with definitions, beside an answer that begins as a call does.
    let mut bare = ToolCalls {
        style: CallStyle::bare(),
        answer: Some(Box::new(schema)),
        ..calls(false, false)
    };
    bare.tools[0].parameters =
        r##"{"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"type": "integer"}}}"##
            .to_owned();
    let constraint = tokens.constraint(&Format::ToolCalls(Box::new(bare))).unwrap();
    assert!(tokens.admits(&constraint, call));
    assert!(!tokens.admits(&constraint, &call.replace('5', "true")));
    let wrong = ToolCalls {
        answer: Some(Box::new(Format::JsonSchema(r#"{"type": "text"}"#.to_owned()))),
        ..calls(false, false)
    };
    assert!(tokens.constraint(&Format::ToolCalls(Box::new(wrong))).is_err());
}

#[test]
fn a_tool_whose_parameters_are_wrong_is_named() {
    let mut calls = calls(true, true);
    calls.tools[1].parameters = r#"{"properties": {"x": {"type": "text"}}}"#.to_owned();
    let tokens = Tokens::of_bytes_and_words();
    match tokens.constraint(&Format::ToolCalls(Box::new(calls))).unwrap_err() {
        FormatError::Schema { path, problem } => {
            assert_eq!(path, "/properties/x");
            assert!(problem.contains("text") && problem.contains("stop.now"), "{problem}");
        }
        other => panic!("{other}"),
    }
}
