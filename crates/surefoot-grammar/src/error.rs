//! Why a constraint can't be used.

/// Why a constraint can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A JSON schema that is wrong, or says something that can't be made a constraint.
    #[error("the JSON schema can't be used: {problem} (at '#{path}')")]
    Schema {
        /// The JSON pointer of the place.
        path: String,
        /// What is wrong there.
        problem: String,
    },
    /// A regular expression that can't be read.
    #[error("the regular expression can't be used: {0}")]
    Regex(String),
    /// A grammar that can't be read.
    #[error("the grammar can't be used: {problem} (line {line})")]
    Notation {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A rule of a grammar that begins with itself.
    #[error(
        "the rule '{0}' begins with itself; write the repetition with * or at the end of the rule"
    )]
    LeftRecursion(String),
    /// Nothing satisfies the constraint.
    #[error("no text satisfies the constraint, as far as the model's vocabulary can spell texts")]
    Unsatisfiable,
    /// The constraint takes more memory or time than a request may.
    #[error("the constraint is too large: {0}")]
    TooLarge(String),
    /// The vocabulary has no token that goes on.
    #[error("the model's vocabulary has no token with which the text could go on")]
    NoToken,
}
