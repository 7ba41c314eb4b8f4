//! Constraints of generated text: JSON schemas, regular expressions and grammars.
//!
//! A [`Constraint`] is made once from what a request asks for and the [`Vocabulary`] of the model. Each
//! sequence has a [`Matcher`], which says before each token which tokens may come
//! ([`Matcher::restrict`]) and is told which one came ([`Matcher::accept`]). Whatever is chosen, the text
//! can be completed, and if there is room for it, it is: close to the end of that room only tokens are left
//! that lead to an end in time.
//!
//! This crate knows neither models nor tensors nor HTTP.

#![cfg_attr(not(test), warn(clippy::expect_used))]

mod error;
mod gbnf;
mod grammar;
mod json;
mod machine;
mod matcher;
mod pattern;
mod schema;
mod tool_calls;
mod vocabulary;

use std::sync::Arc;

use derivre::RegexAst;

pub use error::GrammarError;
pub use matcher::{Constraint, Matcher};
pub use tool_calls::{Tool, ToolCalls};
pub use vocabulary::Vocabulary;

use grammar::Grammar;

/// What a text has to satisfy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A JSON object, whatever is in it.
    JsonObject,
    /// JSON that a JSON schema admits; the schema as JSON.
    JsonSchema(String),
    /// A text that a regular expression matches as a whole. `\\d` and `\\w` are ASCII.
    Regex(String),
    /// A grammar in the notation of llama.cpp (GBNF), whose rule `root` is the text.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of tools.
    ToolCalls(ToolCalls),
}

impl Format {
    /// Makes it ready for the tokens of a model.
    pub fn constraint(&self, vocabulary: &Arc<Vocabulary>) -> Result<Constraint, GrammarError> {
        let grammar = match self {
            Self::JsonObject => schema::grammar(r#"{"type": "object"}"#)?,
            Self::JsonSchema(schema) => schema::grammar(schema)?,
            Self::Regex(regex) => of_one(RegexAst::Regex(pattern::ascii_classes(regex)))?,
            Self::Gbnf(text) => gbnf::grammar(text)?,
            Self::ToolCalls(calls) => calls.grammar()?,
            Self::Choice(texts) => {
                of_one(RegexAst::Or(texts.iter().cloned().map(RegexAst::Literal).collect()))?
            }
        };
        Constraint::new(grammar, Arc::clone(vocabulary))
    }
}

fn of_one(regex: RegexAst) -> Result<Grammar, GrammarError> {
    let mut grammar = Grammar::default();
    let start = grammar.rule("root");
    let terminal = grammar.terminal(regex);
    grammar.add(start, vec![terminal])?;
    Ok(grammar)
}
