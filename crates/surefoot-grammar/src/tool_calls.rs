//! Calls of tools as a grammar: text without a call, if one is not required, and calls in the way that a
//! model's template has them.

use derivre::RegexAst;

use crate::error::GrammarError;
use crate::grammar::{Grammar, Symbol};
use crate::json::quoted;
use crate::schema;

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
    pub(crate) fn grammar(&self) -> Result<Grammar, GrammarError> {
        let mut grammar = Grammar::default();
        let root = grammar.rule("root");
        let calls = grammar.rule("calls");
        let call = grammar.rule("call");
        for tool in &self.tools {
            let value = schema::object(&mut grammar, &tool.parameters)?;
            let head = format!(
                r#"\{{ ?"name": ?{}, ?"{}": ?"#,
                literal(&quoted(&tool.name)),
                literal(&self.arguments)
            );
            let begin = grammar.terminal(RegexAst::Concat(vec![
                RegexAst::Literal(self.begin.clone()),
                RegexAst::Regex(head),
            ]));
            let end = grammar.terminal(RegexAst::Concat(vec![
                RegexAst::Regex(" ?\\}".to_owned()),
                RegexAst::Literal(self.end.clone()),
            ]));
            grammar.add(call, vec![begin, value, end])?;
        }
        grammar.add(calls, vec![Symbol::Rule(call)])?;
        if self.is_parallel {
            let between = grammar.literal(&self.between);
            grammar.add(calls, vec![Symbol::Rule(call), between, Symbol::Rule(calls)])?;
        }
        grammar.add(root, vec![Symbol::Rule(calls)])?;
        if self.is_required {
            return Ok(grammar);
        }
        let any = RegexAst::Regex("(?s:.)*".to_owned());
        let begin = self.begin.trim();
        let not = |regex: RegexAst| RegexAst::Not(Box::new(regex));
        if begin.is_empty() {
            let call = RegexAst::Regex(r"\s*\{(?s:.)*".to_owned());
            let text = grammar.terminal(RegexAst::And(vec![any, not(call)]));
            grammar.add(root, vec![text])?;
        } else {
            let call = RegexAst::Concat(vec![
                any.clone(),
                RegexAst::Literal(begin.to_owned()),
                any.clone(),
            ]);
            let text = grammar.terminal(RegexAst::And(vec![any, not(call)]));
            grammar.add(root, vec![text])?;
            grammar.add(root, vec![text, Symbol::Rule(calls)])?;
        }
        Ok(grammar)
    }
}

/// A text as a regular expression.
fn literal(text: &str) -> String {
    text.chars().map(|c| format!("\\x{{{:x}}}", c as u32)).collect()
}
