//! Calls of tools.

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
        begin: "<tool_call>\n".to_owned(),
        end: "\n</tool_call>".to_owned(),
        between: "\n".to_owned(),
        arguments: "arguments".to_owned(),
        is_required,
        is_parallel,
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
        let constraint = tokens.constraint(&Format::ToolCalls(calls.clone())).unwrap();
        for text in good {
            assert!(tokens.admits(&constraint, text), "{calls:?}: {text} can't come");
        }
        for text in bad {
            assert!(!tokens.admits(&constraint, text), "{calls:?}: {text} can come");
        }
    }
    let mut bare = calls(false, false);
    (bare.begin, bare.end) = (String::new(), String::new());
    let constraint = tokens.constraint(&Format::ToolCalls(bare)).unwrap();
    for text in ["", "Hello {", "{\"name\": \"add\", \"arguments\": {\"a\":1}}"] {
        assert!(tokens.admits(&constraint, text), "{text} can't come");
    }
    assert!(!tokens.admits(&constraint, " {\"x\": 1}"));
}

#[test]
fn a_tool_whose_parameters_are_wrong_is_named() {
    let mut calls = calls(true, true);
    calls.tools[1].parameters = r#"{"properties": {"x": {"type": "text"}}}"#.to_owned();
    let tokens = Tokens::of_bytes_and_words();
    match tokens.constraint(&Format::ToolCalls(calls)).unwrap_err() {
        FormatError::Schema { path, problem } => {
            assert_eq!(path, "/properties/x");
            assert!(problem.contains("text") && problem.contains("stop.now"), "{problem}");
        }
        other => panic!("{other}"),
    }
}
