//! Structured output: texts that are held to a JSON schema, a regular expression, a grammar, a list of
//! choices or calls of tools, whatever the model would rather say.
//!
//! The crate `llguidance` enforces formats; this module translates requests to it and its answers to ours.
//! A [`Constraint`] is made once from a [`Format`] and the [`Vocabulary`] of a model. Each sequence has a
//! [`Matcher`], which says before each token which tokens may come ([`Matcher::restrict`]) and is told
//! which one came ([`Matcher::accept`]).
//!
//! Invariant: a text whose matcher is complete ([`Matcher::is_complete`]) has the format. A text that
//! reaches its limit of tokens earlier is a beginning of one; close to the limit the matcher looks for a
//! short way to complete the text and takes it, which `llguidance` does not do by itself.

mod completion;
mod constraint;
mod error;
mod gbnf;
mod lark;
mod schema;
mod tool_calls;

pub use constraint::{Constraint, Matcher, Vocabulary};
pub use error::FormatError;
pub use tool_calls::{Tool, ToolCalls};

use llguidance::api::TopLevelGrammar;

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
    ToolCalls(Box<ToolCalls>),
}

impl Format {
    /// Makes it ready for the tokens of a model.
    pub fn constraint(&self, vocabulary: &Vocabulary) -> Result<Constraint, FormatError> {
        match self {
            Self::JsonObject => schema::constraint(r#"{"type": "object"}"#, vocabulary),
            Self::JsonSchema(schema) => schema::constraint(schema, vocabulary),
            Self::Regex(_) => {
                let grammar = TopLevelGrammar::from_lark(self.lark_rule("start")?);
                Constraint::new(grammar, vocabulary).map_err(|error| error.of_regex())
            }
            Self::Gbnf(_) | Self::Choice(_) => {
                let grammar = TopLevelGrammar::from_lark(self.lark_rule("start")?);
                Ok(Constraint::new(grammar, vocabulary)?)
            }
            Self::ToolCalls(calls) => calls.constraint(vocabulary),
        }
    }

    /// A rule of this name for it, with the rules that it needs, in Lark's notation.
    fn lark_rule(&self, name: &str) -> Result<String, FormatError> {
        let schema = |schema: &str| -> Result<String, FormatError> {
            let schema = schema::with_options(&schema::parsed(schema)?);
            Ok(format!("{name}: %json {schema}"))
        };
        match self {
            Self::JsonObject => schema(r#"{"type": "object"}"#),
            Self::JsonSchema(text) => schema(text),
            Self::Regex(regex) => {
                Ok(format!("{name}: /{}/", llguidance::regex_to_lark(regex, "dw")))
            }
            Self::Gbnf(text) => {
                let lark = lark::of_gbnf(&gbnf::rules(text)?)?;
                Ok(lark.replacen("start:", &format!("{name}:"), 1))
            }
            Self::Choice(texts) => {
                let choices: Vec<String> = texts.iter().map(|text| lark::escaped(text)).collect();
                Ok(format!("{name}: /(?:{})/", choices.join("|")))
            }
            Self::ToolCalls(_) => {
                Err(FormatError::Defect("calls of tools are no format of an answer".to_owned()))
            }
        }
    }
}
